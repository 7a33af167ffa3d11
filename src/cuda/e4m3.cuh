// e4m3 to f16, which has all of its numbers.
#pragma once

#include <cstdint>

#include "cuda/ptx.cuh"

namespace locks::cuda {

/// Bytes 0 and 1 to two f16, the first in the low half.
__device__ __forceinline__ std::uint32_t e4m3_pair_to_f16(std::uint32_t bytes) {
  std::uint32_t pair;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(bytes)));
#else
  // Bits moved to where f16 has them are 2^-8 of the number; the largest magnitude is no number.
  constexpr std::uint32_t kLargest = 0x3F803F80U;
  constexpr std::uint32_t kTwoTo8 = 0x5C005C00U;
  const std::uint32_t spread = __byte_perm(bytes, 0, 0x1404);
  const std::uint32_t magnitudes = spread >> 1 & kLargest;
  const std::uint32_t moved = (spread & 0x80008000U) | magnitudes | (__vcmpeq2(magnitudes, kLargest) & 0x7C007C00U);
  pair = ptx::multiply_f16x2(moved, kTwoTo8);
#endif
  return pair;
}

/// Four bytes of a row to two pairs.
__device__ __forceinline__ void e4m3_to_f16(std::uint32_t bytes, std::uint32_t& first, std::uint32_t& second) {
  first = e4m3_pair_to_f16(bytes);
  second = e4m3_pair_to_f16(bytes >> 16);
}

}  // namespace locks::cuda
