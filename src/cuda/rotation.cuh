// The rotation of locks/rotation.h for one vector in the registers of a warp: dimension 32 k + lane is x[k].
#pragma once

#include <cstdint>

#include "cuda/args.h"

namespace locks::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Dimensions that are transformed together with dimension 32 k.
__device__ __forceinline__ int block_of_word(const Rotation& rotation, int k) {
  return 32 * k < rotation.first_block ? rotation.first_block : rotation.rest_block;
}

template <int kWords>
__device__ __forceinline__ void change_signs(float (&x)[kWords], const Rotation& rotation, int lane) {
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    x[k] = __uint_as_float(__float_as_uint(x[k]) ^ (rotation.negative[k] >> lane << 31));
  }
}

/// The butterflies have the CPU's operands, so their order does not matter; nothing is fused. Dimensions past the last block
/// come out as anything.
template <int kWords>
__device__ __forceinline__ void hadamard(float (&x)[kWords], const Rotation& rotation, int lane) {
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const float other = __shfl_xor_sync(kAllLanes, x[k], half);
      const float sum = (lane & half) != 0 ? __fsub_rn(other, x[k]) : __fadd_rn(x[k], other);
      if (half < block_of_word(rotation, k)) x[k] = sum;
    }
  }
#pragma unroll
  for (int step = 1; step < kWords; step *= 2) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if ((k & step) != 0 || 32 * step >= block_of_word(rotation, k)) continue;
      const float a = x[k];
      const float b = x[k | step];
      x[k] = __fadd_rn(a, b);
      x[k | step] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    x[k] = __fmul_rn(x[k], 32 * k < rotation.first_block ? rotation.first_scale : rotation.rest_scale);
  }
}

}  // namespace locks::cuda
