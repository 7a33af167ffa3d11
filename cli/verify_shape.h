// What a case of `locks verify` is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "locks/locks.h"
#include "support/data.h"
#include "support/summaries.h"

namespace locks::cli {

struct CaseShape {
  Geometry geometry;
  DType key_type = DType::kF16;
  DType value_type = DType::kF16;
  const SummaryFormat* format = nullptr;
  test::Layout layout = test::Layout::kTokenMajor;
  test::Content content = test::Content::kNormal;
  int block_tokens = kPageTokens;
  std::vector<std::int32_t> lengths;
  DecodeConfig config;
  int num_pages = 0;
  std::uint64_t data_seed = 0;

  CaseShape(std::uint64_t seed, std::uint64_t number);
  [[nodiscard]] int longest() const;
  [[nodiscard]] std::string text() const;
};

/// The data of a case. Records are the reference's, with value parts.
struct CaseData {
  test::CacheData keys;
  test::CacheData values;
  test::TableData table;
  std::vector<float> queries;  // [requests, query_heads, head_dim]
  test::SummaryData summaries;

  explicit CaseData(const CaseShape& shape);
  [[nodiscard]] View<const float, 3> query_view(const Geometry& geometry) const;
};

/// What exact attention of one query head may lose in float over the first `tokens` tokens of a request, for any subset
/// of them, as an absolute bound on each output component; and the largest value component among them. With
/// L = softmax_scale sum |q k| at its largest, a logit is off by e = (head_dim + 4) eps L, a weight by
/// 2 e + 2 L eps + 2e-7 relatively, a sum of n terms by (n / 16 + 24) eps; numerator and denominator both suffer.
struct AttendBound {
  double error = 0.0;
  double largest_value = 0.0;
};
[[nodiscard]] AttendBound attend_bound(const CaseShape& shape, const CaseData& data, int request, int query_head,
                                       int tokens);

}  // namespace locks::cli
