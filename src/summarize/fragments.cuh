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

/// Deviations in shared memory: 16-byte pieces of eight components in f16, [16, pieces], what f16 has of the numbers and
/// then what is left: 2^-22 of a number, and never more than 2^-25.
template <int kHeadDim>
inline constexpr int kRowPieces = 4 * kChunks<kHeadDim>;
template <int kHeadDim>
inline constexpr int kPageBytes = 16 * kPageTokens * kRowPieces<kHeadDim>;

/// Where piece `piece` of a row is among its pieces: the turn keeps eight rows of one piece, and two rows of four pieces
/// that follow each other, in different banks.
template <int kHeadDim>
__device__ __forceinline__ int turn_of(int row) {
  return kRowPieces<kHeadDim> % 8 == 0 ? 4 * (row & 1) + (row >> 1 & 3) : row >> 1 & 3;
}

/// What lane 8 m + i points to for matrices of eight rows of two pieces: m & 1 the rows from 8 on, m & 2 the second piece.
template <int kHeadDim>
struct PieceAddresses {
  unsigned at[4];  // of the pieces 8 n + 0, 2, 4 and 6
  __device__ __forceinline__ PieceAddresses(const void* page, int lane) {
    const int row = lane % kPageTokens;
    const auto row_at = static_cast<unsigned>(__cvta_generic_to_shared(page)) + 16U * row * kRowPieces<kHeadDim>;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = row_at + 16U * ((2 * i + lane / kPageTokens) ^ turn_of<kHeadDim>(row));
  }
};

__device__ __forceinline__ void load_matrices(unsigned at, std::uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned at, std::uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
/// Components 16 `step` ... of the page, what f16 has of them (part 0) or the rest (part 1).
template <int kHeadDim>
__device__ __forceinline__ unsigned address_of(const PieceAddresses<kHeadDim>& pieces, int step, int part) {
  return pieces.at[step % 4] + 128 * (step / 4) + part * kPageBytes<kHeadDim>;
}

__device__ __forceinline__ std::uint32_t pack_halves(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float low_half(std::uint32_t packed) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(packed)));
  return x;
}
__device__ __forceinline__ float high_half(std::uint32_t packed) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(packed >> 16)));
  return x;
}
/// Two numbers in f16, and what that leaves of them.
__device__ __forceinline__ void split_halves(float low, float high, std::uint32_t& seen, std::uint32_t& rest) {
  seen = pack_halves(low, high);
  rest = pack_halves(low - low_half(seen), high - high_half(seen));
}

/// sums [16 x 8] += a [16 x 16] b [16 x 8]. Lane 4 g + t: a has columns 2 t, 2 t + 1 of rows g and g + 8, then eight columns
/// on; b has the same rows of column g; sums as everywhere.
__device__ __forceinline__ void mma_f16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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

/// Hides that x is what it was, so that nothing computed from it is kept in registers from before a loop on.
__device__ __forceinline__ void forget(int& x) { asm volatile("" : "+r"(x)); }

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
