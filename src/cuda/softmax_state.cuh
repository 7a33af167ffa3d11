// How states of a softmax become one on the GPU. Every operation is written out, so that the same states in the same order
// give the same bits in whatever kernel they meet.
#pragma once

#include <limits>

#include "cuda/ptx.cuh"

namespace locks::cuda {

inline constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

/// exp(logit - reference), within 2^-22 + |logit - reference| 2^-23 of it; results below 2^-126 are 0. The difference comes
/// first: with large logits, rounding after a scaling by log2(e) would cost digits that the difference still has.
__device__ __forceinline__ float exp_difference(float logit, float reference) {
  constexpr float kLog2E = 1.4426950408889634F;
  return ptx::exp2(__fmul_rn(__fsub_rn(logit, reference), kLog2E));
}

/// 2^(logit - reference), of logits in units of log 2.
__device__ __forceinline__ float exp2_difference(float logit, float reference) {
  return ptx::exp2(__fsub_rn(logit, reference));
}

/// What the sums of two states are multiplied by when they meet. A state that saw nothing (-infinity, 0, 0...) changes
/// nothing; two of them are one; an infinite max makes NaN.
struct FoldScales {
  float max;
  float into;
  float from;
};
__device__ __forceinline__ FoldScales fold_scales(float into_max, float from_max) {
  const float max = fmaxf(into_max, from_max);
  return {max, into_max == max ? 1.0F : exp_difference(into_max, max),
          from_max == max ? 1.0F : exp_difference(from_max, max)};
}
__device__ __forceinline__ float fold(float into, float from, const FoldScales& scales) {
  return __fmaf_rn(from, scales.from, __fmul_rn(into, scales.into));
}
__device__ __forceinline__ float4 fold(const float4& into, const float4& from, const FoldScales& scales) {
  return {fold(into.x, from.x, scales), fold(into.y, from.y, scales), fold(into.z, from.z, scales),
          fold(into.w, from.w, scales)};
}

}  // namespace locks::cuda
