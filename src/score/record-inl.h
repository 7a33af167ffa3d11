// One record against some query heads: the deviations of its 16 tokens. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_RECORD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_RECORD_INL_H_
#undef LOCKS_SCORE_RECORD_INL_H_
#else
#define LOCKS_SCORE_RECORD_INL_H_
#endif

#include <cstddef>

#include "score/record_scalar-inl.h"
#include "score/record_vector-inl.h"
#include "score/shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// z_r of all heads, times the factor that the heads were given.
template <int kIndex = 0, class Shape, int kHeads>
HWY_INLINE void project(const Shape& shape, const std::byte* record, const Heads<Shape, kHeads>& heads,
                        Ranks<Shape, kHeads>& z) {
  if constexpr (kIndex < Shape::kRankVectors) {
    const F32 d;
    constexpr int kAt = kIndex * kLanes;
    VI sums[Ranks<Shape, kHeads>::kVectors];
    rank_sums<kIndex, Shape, kHeads>(shape, record, heads.blocks, sums);
    const VF scales = rank_scales<kIndex>(shape, record);
    for (int v = 0; v < Ranks<Shape, kHeads>::kVectors; ++v) {
      const VF step = hn::Load(d, heads.step.values[v] + kAt);
      const VF zero = hn::Load(d, heads.zero.values[v] + kAt);
      hn::Store(hn::Mul(hn::MulAdd(hn::ConvertTo(d, sums[v]), step, zero), scales), d, z.values[v] + kAt);
    }
    project<kIndex + 1>(shape, record, heads, z);
  }
}

/// dev_t from the z_r of all heads; lane order by token_of_lane.
template <class Shape, int kHeads>
HWY_INLINE void deviations(const Shape& shape, const std::byte* record, const Ranks<Shape, kHeads>& z,
                           VF (&out)[kHeads][kTokenVectors]) {
  const F32 d;
  Coefficients coefficients;
  unpack_coefficients(shape, record, coefficients);
  for (int head = 0; head < kHeads; ++head) {
    for (int v = 0; v < kTokenVectors; ++v) out[head][v] = hn::Zero(d);
  }
  for (int rank = 0; rank < Shape::kFormat.rank; ++rank) {
    for (int v = 0; v < kTokenVectors; ++v) {
      const VF codes = hn::Load(d, coefficients.codes[rank] + v * kLanes);
      for (int head = 0; head < kHeads; ++head) {
        const VF z_r = hn::Set(d, z.values[head / kHeadsPerVector][Ranks<Shape, kHeads>::position(rank, head)]);
        out[head][v] = hn::MulAdd(z_r, codes, out[head][v]);
      }
    }
  }
  if constexpr (!Shape::kNibbles) {
    for (int head = 0; head < kHeads; ++head) {
      for (int v = 0; v < kTokenVectors; ++v)
        out[head][v] = hn::Mul(out[head][v], hn::Load(d, coefficients.token_scales + v * kLanes));
    }
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_RECORD_INL_H_
