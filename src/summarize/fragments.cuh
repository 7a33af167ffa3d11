// How a page lies in the registers and in the shared memory of a warp, and the products made of it.
//
// Lane 4 g + t (g 0..7, t 0..3) holds of tokens g and g + 8 the dimensions 32 j + 8 t + i, i 0..7: x[0 or 1][j][i]. That is
// what 16-byte loads bring, what the tensor core's fragments want with its inner index permuted, and of a [rank, head_dim]
// matrix (rank g) what the product with the page gives back. Of 80 dimensions the last chunk is half empty (t < 2): zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "locks/types.h"

namespace locks::cuda::summarize_stage {

constexpr unsigned kAll = 0xFFFFFFFFU;

template <int kHeadDim>
inline constexpr int kChunks = (kHeadDim + 31) / 32;
/// Floats of a row in shared memory.
template <int kHeadDim>
inline constexpr int kRowFloats = 32 * kChunks<kHeadDim>;

template <int kHeadDim>
struct PageFragment {
  float x[2][kChunks<kHeadDim>][8];
};

/// True if this lane's part of chunk j is inside the head.
template <int kHeadDim>
__device__ __forceinline__ bool inside(int j, int t) {
  return kHeadDim % 32 == 0 || j + 1 < kChunks<kHeadDim> || t < 2;
}

/// Four floats of a row in shared memory, from dimension 4 `quarter` on. Exclusive or keeps rows 8 apart in the order of
/// quarters, and the four rows that a product reads at once, in different banks.
template <int kHeadDim>
__device__ __forceinline__ float4* quarter_of(float* rows, int row, int quarter) {
  const int turn = 2 * (row & 3) ^ (row & 1);
  return reinterpret_cast<float4*>(rows + row * kRowFloats<kHeadDim>) + (quarter ^ turn);
}

template <int kHeadDim>
__device__ __forceinline__ void store_page(const PageFragment<kHeadDim>& page, float* rows, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = page.x[r][j] + 4 * half;
        *quarter_of<kHeadDim>(rows, g + 8 * r, 8 * j + 2 * t + half) = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
  }
}

/// Chunk j of this lane's two tokens.
template <int kHeadDim>
__device__ __forceinline__ void load_chunk(float* rows, int j, int lane, float (&x)[2][8]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = *quarter_of<kHeadDim>(rows, lane / 4 + 8 * r, 8 * j + 2 * (lane % 4) + half);
      x[r][4 * half] = four.x;
      x[r][4 * half + 1] = four.y;
      x[r][4 * half + 2] = four.z;
      x[r][4 * half + 3] = four.w;
    }
  }
}

/// sums [16 x 8] += a [16 x 8] b [8 x 8]; 11 significant bits of a and b count. Lane 4 g + t: a has rows g, g + 8 of column
/// t, then of column t + 4; b has rows t, t + 4 of column g; sums as everywhere.
__device__ __forceinline__ void mma_tf32(float (&sums)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/// The part of x that mma_tf32 sees; the rest, seen in its turn, leaves 2^-22 of x.
__device__ __forceinline__ float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000U); }

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The largest of numbers that are 0 or more in all lanes; not a number if one is not.
__device__ __forceinline__ float largest_of_warp(float x) {
  return __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(x)));
}
__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}
/// Over the four lanes of a token or rank.
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(kAll, x, 1);
  return x + __shfl_xor_sync(kAll, x, 2);
}
__device__ __forceinline__ float largest_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAll, x, 2));
}

}  // namespace locks::cuda::summarize_stage
