// What a summary must be, whoever made it: the CPU's tests and the GPU's expect the same.
#pragma once

#include <cstddef>
#include <vector>

#include "support/data.h"

namespace locks::test {

inline constexpr Content kContents[] = {Content::kNormal, Content::kLowRank,  Content::kConstant,  Content::kZero,
                                        Content::kHuge,   Content::kDenormal, Content::kOneOutlier};

/// The 16 keys or values of one page and head, as the record sees them.
std::vector<std::vector<float>> page_rows(const CacheData& cache, int head_dim, std::int64_t page, int head, bool rotated);
/// Length of what a record leaves of its page's keys, or of its values.
double missed_keys(const CacheData& keys, const SummaryStore& store, std::int64_t page, int head);
double missed_values(const CacheData& values, const SummaryStore& store, std::int64_t page, int head);
/// A page's record, and its value part if there is one.
std::vector<std::byte> bytes_of(const SummaryStore& store, std::int64_t page, int head);

/// The records of `got` miss no more of their pages than the reference's in `want`, and say how much. Their residual
/// variance may be off by `variance_error`, relative.
void expect_as_good_as_reference(const SummaryStore& got, const SummaryStore& want, const CacheData& keys,
                                 const CacheData& values, int kv_heads, Content content, double variance_error);

}  // namespace locks::test
