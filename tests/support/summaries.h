// Stores made from test caches, for the stages that read records.
#pragma once

#include <cstdint>
#include <vector>

#include "support/data.h"

namespace locks::test {

/// Owns the records of every page of `keys` (and the value part if `values` is given).
class SummaryData {
 public:
  SummaryData(const SummaryFormat& format, int head_dim, int kv_heads, const PagedCache& keys,
              const PagedCache* values = nullptr, Target target = Target::kReference);
  [[nodiscard]] const SummaryStore& store() const { return store_; }
  [[nodiscard]] const SummarizeReport& report() const { return report_; }
  [[nodiscard]] DecodedSummary decoded(std::int64_t page, int head) const;
  [[nodiscard]] DecodedValues decoded_values(std::int64_t page, int head) const;

 private:
  std::vector<std::byte> bytes_;
  SummaryStore store_;
  SummarizeReport report_;
};

}  // namespace locks::test
