// What float arithmetic may do to the logits of a page on the GPU, beside their values by the definition.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/half.h"
#include "locks/score.h"
#include "score/query.h"

namespace locks::test {

inline constexpr double kEps = 0x1p-24;

struct Bounded {
  double value = 0.0;
  double bound = 0.0;
};
struct PageLogits {
  Bounded mean;
  std::array<Bounded, kPageTokens> deviation;
};

/// By the formulas of score.h, in double, from the record and the quantised query. The integers are exact. z has 5 roundings
/// and is split in two bf16 parts, which leaves 2^-16 of it; the tensor core may lose 2^-22 of the largest of its 2 rank
/// products and its sum at each addition; a token's scale is rounded once. The mean's integer is rounded once and
/// multiplied by three factors. A factor below the normal range has an absolute error instead.
inline PageLogits page_logits(const ScoreArgs& args, int request, int query_head, std::int64_t page) {
  const SummaryFormat& format = *args.summaries.format;
  const int head_dim = args.geometry.head_dim;
  const DecodedSummary summary =
      decode_record(format, head_dim, args.summaries.record(page, query_head / args.geometry.group_size()));
  std::vector<std::byte> block(QueryLayout::kBytes);
  prepare_query(args.queries.at(request, query_head), head_dim, format.rotated, 0, block.data());
  QueryScales scales;
  std::memcpy(&scales, block.data(), sizeof scales);
  const auto* q8 = reinterpret_cast<const std::int8_t*>(block.data() + QueryLayout::kQ8At);
  const auto* q16 = reinterpret_cast<const std::int16_t*>(block.data() + QueryLayout::kQ16At);
  PageLogits out;
  for (int dim = 0; dim < head_dim; ++dim) {
    out.mean.value += summary.mean[dim] * q16[dim] * scales.scale16 * args.geometry.softmax_scale;
  }
  out.mean.bound = 5 * kEps * std::abs(out.mean.value) + 1e-30;
  for (int rank = 0; rank < format.rank; ++rank) {
    double z = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) z += summary.basis[rank][dim] * q8[dim];
    z *= static_cast<double>(scales.scale8) * args.geometry.softmax_scale;
    for (int token = 0; token < kPageTokens; ++token) {
      const double term = z * summary.coefficients[token][rank];
      out.deviation[token].value += term;
      out.deviation[token].bound += (256 + 4 * (2 * format.rank + 1) + 8) * kEps * std::abs(term) + 1e-30;
    }
  }
  return out;
}

/// The mass lies between those of the lowest and the highest deviations. A deviation x passes as x / 160 + 1/2, rounded
/// below 1 (160 * 2^-25), and as an exponent below 116 (2^-18 ln 2); exp2 has 2^-22, log2 too, of 1 or of its result.
inline Bounded page_log_mass(const PageLogits& logits) {
  constexpr double kLimit = kMaxDeviation;
  std::array<double, 3> mass{};
  for (const Bounded& deviation : logits.deviation) {
    for (int side = -1; side <= 1; ++side) {
      mass[side + 1] += std::exp(std::clamp(deviation.value + side * deviation.bound, -kLimit, kLimit));
    }
  }
  const double value = logits.mean.value + std::log(mass[1]);
  const double log2_mass = std::abs(std::log2(mass[1]));
  const double own = 160 * 0x1p-25 + 2 * 0x1p-18 * std::log(2.0) + 0x1p-22 + 16 * kEps +
                     std::log(2.0) * (0x1p-22 + 2 * kEps) * std::max(1.0, log2_mass);
  return {value, logits.mean.bound + std::log(mass[2] / mass[0]) + own + 2 * kEps * std::abs(value)};
}

}  // namespace locks::test
