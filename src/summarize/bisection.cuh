// Eigenvalues of a tridiagonal matrix by bisection, four lanes for each, and their vectors by twisted factorisation.
#pragma once

#include "summarize/tridiagonal.cuh"

namespace locks::cuda::summarize_stage {

/// Eigenvalues below this are not told from 0. The odd digits keep the points that are tried off the round numbers that
/// structured pages have for eigenvalues.
constexpr float kLowest = 1.2345678e-8F;
/// Rounds that cut an interval to a fifth: 5^-10 = 1e-7.
constexpr int kRounds = 10;

/// How many eigenvalues lie below x: sign changes of the leading minors of T - x I.
__device__ __forceinline__ int count_below(const float (&diagonal)[kPageTokens], const float (&squares)[kPageTokens],
                                           float x) {
  float before = 1.0F;
  float minor = diagonal[0] - x;
  std::uint32_t signs = __float_as_uint(minor) >> 31;
#pragma unroll
  for (int i = 1; i < kPageTokens; ++i) {
    const float next = fmaf(diagonal[i] - x, minor, -squares[i - 1] * before);
    before = minor;
    minor = next;
    signs = __funnelshift_l(__float_as_uint(minor), signs, 1);
    if (i % 5 == 0 && i < 15) {  // so that minors neither overflow nor vanish
      const std::uint32_t size = __float_as_uint(fmaxf(fabsf(before), fabsf(minor)));
      const float scale = __uint_as_float(0x7F000000U - (size & 0x7F800000U));
      before *= scale;
      minor *= scale;
    }
  }
  return __popc(signs ^ signs >> 1);
}

/// The eigenvalue of this lane's four: the (order + 1)-th largest.
__device__ __forceinline__ float bisect(const Tridiagonal& t, int order, int lane) {
  float diagonal[kPageTokens];
  float squares[kPageTokens];
  load_floats(t.side[0].diagonal, diagonal);
  load_floats(t.side[0].below, squares);
#pragma unroll
  for (int i = 0; i + 1 < kPageTokens; ++i) squares[i] *= squares[i];
  float low = kLowest;
  float width = 16.0123456F * ptx::reciprocal(static_cast<float>(order + 1));  // no more can be as large
  const auto part = static_cast<float>(lane % 4 + 1);
  const int wanted = kPageTokens - order;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    width *= 0.2F;
    const bool above = count_below(diagonal, squares, fmaf(part, width, low)) < wanted;
    const unsigned hits = __ballot_sync(kAll, above) >> (lane & 28) & 15U;
    low = fmaf(static_cast<float>(__popc(hits)), width, low);
  }
  return fmaf(0.5F, width, low);
}

/// Components 4 t ... of the vector of `value`, an eigenvalue, for lane t of its four; not of unit length. `halves` has room
/// for [8, 2, 16]. Returns the size of the residual of the vector.
__device__ __forceinline__ float twisted_vector(const Tridiagonal& t, float value, int lane, float* halves, float (&x)[4]) {
  constexpr int kLast = kPageTokens - 1;
  const int side = lane & 1;  // T - value I is eliminated from both ends
  float diagonal[kPageTokens];
  float below[kPageTokens];
  load_floats(t.side[side].diagonal, diagonal);
  load_floats(t.side[side].below, below);
  const auto pivot = [](float p) { return fabsf(p) < 1e-20F ? 1e-20F : p; };
  float pivots[kPageTokens];
  float factors[kPageTokens];
  diagonal[0] -= value;
  pivots[0] = pivot(diagonal[0]);
#pragma unroll
  for (int i = 0; i < kLast; ++i) {
    factors[i] = below[i] * ptx::reciprocal(pivots[i]);
    diagonal[i + 1] -= value;
    pivots[i + 1] = pivot(fmaf(-factors[i], below[i], diagonal[i + 1]));
  }
  // The vector starts where the two meet with the smallest remainder.
  std::uint32_t least = 0xFFFFFFFFU;
#pragma unroll
  for (int i = 0; i < kPageTokens; ++i) {
    const float remainder = pivots[i] + (__shfl_xor_sync(kAll, pivots[kLast - i], 1) - diagonal[i]);
    least = min(least, (__float_as_uint(remainder) & 0x7FFFFFF0U) | static_cast<unsigned>(i));
  }
  least = __shfl_sync(kAll, least, lane & ~1);
  const int start = side == 0 ? static_cast<int>(least & 15U) : kLast - static_cast<int>(least & 15U);
  float* const half = halves + (lane / 4 * 2 + side) * kPageTokens;
  float four[4];
  float z = 0.0F;
#pragma unroll
  for (int i = kLast; i >= 0; --i) {
    z = i == start ? 1.0F : i == kLast ? 0.0F : -factors[i] * z;
    four[i % 4] = z;
    if (i % 4 == 0 && (lane & 2) == 0) {
      *reinterpret_cast<float4*>(half + i) = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
  __syncwarp();
  const float* const both = halves + lane / 4 * 2 * kPageTokens;
  float other[4];
  load_floats(both + 4 * (lane % 4), x);
  load_floats(both + kPageTokens + 12 - 4 * (lane % 4), other);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = fmaf(-x[i], other[3 - i], x[i] + other[3 - i]);  // where both are 1: 1
  __syncwarp();
  return __uint_as_float(least & 0x7FFFFFF0U);
}

}  // namespace locks::cuda::summarize_stage
