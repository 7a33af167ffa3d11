// How a page lies in the registers and in the shared memory of a warp, and the products made of it.
//
// Lane 4 g + t (g 0..7, t 0..3) holds of tokens g and g + 8 the dimensions 32 j + 8 t + i, i 0..7: x[0 or 1][j][i]. That is
// what 16-byte loads bring, what the tensor core's fragments want with its inner index permuted, and of a [rank, head_dim]
// matrix (rank g) what the product with the page gives back. Of 80 dimensions the last chunk is half empty (t < 2): zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/mma16.cuh"
#include "cuda/ptx.cuh"
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
    const auto row_at = mma16::shared_address(page) + 16U * row * kRowPieces<kHeadDim>;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = row_at + 16U * ((2 * i + lane / kPageTokens) ^ turn_of<kHeadDim>(row));
  }
};

/// Components 16 `step` ... of the page, what f16 has of them (part 0) or the rest (part 1).
template <int kHeadDim>
__device__ __forceinline__ unsigned address_of(const PieceAddresses<kHeadDim>& pieces, int step, int part) {
  return pieces.at[step % 4] + 128 * (step / 4) + part * kPageBytes<kHeadDim>;
}

__device__ __forceinline__ float low_half(std::uint32_t packed) {
  return ptx::f16_to_float(static_cast<unsigned short>(packed));
}
__device__ __forceinline__ float high_half(std::uint32_t packed) {
  return ptx::f16_to_float(static_cast<unsigned short>(packed >> 16));
}
/// Two numbers in f16, and what that leaves of them.
__device__ __forceinline__ void split_halves(float low, float high, std::uint32_t& seen, std::uint32_t& rest) {
  seen = ptx::pack_f16(low, high);
  rest = ptx::pack_f16(low - low_half(seen), high - high_half(seen));
}

/// The part of x that mma_tf32 sees; the rest, seen in its turn, leaves 2^-22 of x.
__device__ __forceinline__ float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000U); }

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
