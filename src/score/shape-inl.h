// What a kernel is compiled for, and what it knows of its query heads before it sees a record. Included once per target
// (dispatch.h).
#if defined(LOCKS_SCORE_SHAPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_SHAPE_INL_H_
#undef LOCKS_SCORE_SHAPE_INL_H_
#else
#define LOCKS_SCORE_SHAPE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "locks/page_summary.h"
#include "score/mass-inl.h"
#include "score/query.h"
#include "score/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kTokenVectors = kPageTokens / kLanes;

#if HWY_TARGET == HWY_SCALAR
inline constexpr int kRanksPerVector = 1;
inline constexpr int kHeadsPerVector = 1;
constexpr int rank_of_lane(int) noexcept { return 0; }
constexpr int lane_of_rank(int, int) noexcept { return 0; }
#endif

/// What the kernels are compiled for, and what does not depend on the page. kDims is the head dimension, or 0 if only
/// head_dim knows it.
template <const SummaryFormat& kTheFormat, int kDims, bool kUsesVnni>
struct Shape {
  static constexpr const SummaryFormat& kFormat = kTheFormat;
  static constexpr bool kVnni = kUsesVnni;
  static constexpr int kRankVectors = (kFormat.rank + kRanksPerVector - 1) / kRanksPerVector;
  static constexpr bool kNibbles = kFormat.coefficient_bits == 4;

  explicit Shape(int dimensions) noexcept : head_dim(dimensions), at(record_layout(kFormat, dimensions)) {
    for (int lane = 0; lane < kRankVectors * kLanes; ++lane) {
      const int rank = std::min(lane / kLanes * kRanksPerVector + rank_of_lane(lane % kLanes), kFormat.rank - 1);
      zero[lane] = kFormat.basis_zero(rank / 4);
      step[lane] = kFormat.basis_has_scales ? 1.0F : basis_step(kFormat.quad_bits[rank / 4], dimensions);
    }
  }

  [[nodiscard]] int dims() const noexcept { return kDims > 0 ? kDims : head_dim; }
  [[nodiscard]] RecordLayout layout() const noexcept {
    if constexpr (kDims > 0) return record_layout(kFormat, kDims);
    return at;
  }

  int head_dim;
  RecordLayout at;
  alignas(64) float zero[kRankVectors * kLanes];  // by the lanes of the ranks
  alignas(64) float step[kRankVectors * kLanes];  // without the record's scales
};

/// z_r of some heads: rank r of head h is at (h / kHeadsPerVector, position(r, h)).
template <class Shape, int kHeads>
struct Ranks {
  static constexpr int kVectors = (kHeads + kHeadsPerVector - 1) / kHeadsPerVector;
  [[nodiscard]] static constexpr int position(int rank, int head) noexcept {
    return rank / kRanksPerVector * kLanes + lane_of_rank(rank % kRanksPerVector, head % kHeadsPerVector);
  }
  alignas(64) float values[kVectors][Shape::kRankVectors * kLanes];
};

/// In the lanes of each head, its value of the `count` ones.
HWY_INLINE VF spread_heads(const float* values, int count) {
  const F32 d;
#if HWY_TARGET == HWY_AVX3
  const VF second = hn::Set(d, values[std::min(1, count - 1)]);
  return VF{_mm512_mask_blend_ps(0xCCCC, hn::Set(d, values[0]).raw, second.raw)};
#else
  return hn::Set(d, values[0 * count]);
#endif
}

/// Some query heads of one group, whose blocks lie one after the other. z_r = (sum_i code_ri q8_i * step + zero) times the
/// record's scale.
template <class Shape, int kHeads>
struct Heads {
  Heads(const Shape& shape, const std::byte* first_block, float factor) noexcept : blocks(first_block) {
    const F32 d;
    float sum8[kHeads];
    float scale8[kHeads];
    for (int head = 0; head < kHeads; ++head) {
      QueryScales scales;
      std::memcpy(&scales, blocks + head * QueryLayout::kBytes, sizeof scales);
      sum8[head] = static_cast<float>(-scales.sum8);
      scale8[head] = factor * scales.scale8;
      scale16[head] = scales.scale16;
    }
    for (int head = 0; head < kHeads; head += kHeadsPerVector) {
      const int v = head / kHeadsPerVector;
      for (int at = 0; at < Shape::kRankVectors * kLanes; at += kLanes) {
        const VF whole_step = hn::Mul(spread_heads(scale8 + head, kHeads - head), hn::Load(d, shape.step + at));
        const VF sum = hn::Mul(spread_heads(sum8 + head, kHeads - head), hn::Load(d, shape.zero + at));
        hn::Store(whole_step, d, step.values[v] + at);
        hn::Store(hn::Mul(sum, whole_step), d, zero.values[v] + at);
      }
    }
  }
  const std::byte* blocks;
  Ranks<Shape, kHeads> step;
  Ranks<Shape, kHeads> zero;
  float scale16[kHeads];
};

/// The coefficients of one record, unpacked for all heads of its group; tokens in the order of token_of_lane.
struct Coefficients {
  alignas(64) float codes[kMaxRank][kPageTokens];
  alignas(64) float token_scales[kPageTokens];  // of 8-bit coefficients
};

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_SHAPE_INL_H_
