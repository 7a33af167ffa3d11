// Leading eigenvectors of any Gram matrix: Cholesky's factorisation with pivots, then one-sided Jacobi rotations of the
// factor's columns, which become the eigenvectors times the roots of their values. That keeps vectors orthogonal whatever
// the matrix is, and small energies as exact as the factor has them; it is slow, and for pages that eigenvectors.cuh cannot
// do otherwise.
#pragma once

#include <cstdint>

#include "summarize/fragments.cuh"
#include "summarize/tridiagonal.cuh"

namespace locks::cuda::summarize_stage {

constexpr int kFactorStride =
    20;  // floats of a row; rows of eight lanes lie in different banks, and at multiples of 16 bytes
constexpr int kVectorStride = 20;

/// Pivots below this share of the trace are rounding.
constexpr float kNegligiblePivot = 1e-9F;
/// Another sweep follows one that turned two columns by more than this tangent, or by a tangent whose square times their
/// energy (the trace is 1) is more than that, unless the square of the cosine between them is so small that it may be
/// rounding. Sweeps converge quadratically: what is left are angles of some 1e-4 between directions that matter.
constexpr float kSmallTurn = 0.25F;
constexpr float kSmallTurnedEnergy = 4e-5F;
constexpr float kOrthogonal = 1e-8F;
/// Keeps quotients of nothing by nothing finite. Energies are shares of the trace.
constexpr float kNothing = 1e-36F;
/// No page needs more than six; a bound, so that nothing can hang.
constexpr int kMaxSweeps = 10;

/// Columns k of L with L L^T = (M + M^T) / trace, by falling pivot, at factor + 20 k; the rows keep their order, so that L
/// is a triangle only up to that. Lanes row and row + 16 hold halves of a row of what is left. `chosen_rows` [2, 16] is
/// scratch.
__device__ __forceinline__ void pivoted_cholesky(const float* gram, int lane, float* factor, float* chosen_rows) {
  const int row = lane % kPageTokens;
  const int first = lane / kPageTokens * 8;
  float diagonal = 2.0F * gram[row * kGramStride + row];
  const float trace = 0.5F * sum_of_warp(diagonal);
  const float inverse = trace > kVanishing ? ptx::reciprocal(trace) : 0.0F;
  diagonal *= inverse;
  float left[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    left[i] = (gram[row * kGramStride + first + i] + gram[(first + i) * kGramStride + row]) * inverse;
  }
  for (int i = lane; i < kPageTokens * kFactorStride / 4; i += 32) {
    reinterpret_cast<float4*>(factor)[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
#pragma unroll 1
  for (int k = 0; k < kPageTokens; ++k) {
    const bool open = diagonal > kNegligiblePivot;
    const unsigned candidate = __reduce_max_sync(kAll, open ? (__float_as_uint(diagonal) & ~15U) | (15U - row) : 0U);
    if (candidate == 0) break;
    const int chosen = 15 - static_cast<int>(candidate & 15U);
    float* const chosen_row = chosen_rows + k % 2 * kPageTokens;
    if (row == chosen) {
      *reinterpret_cast<float4*>(chosen_row + first) = make_float4(left[0], left[1], left[2], left[3]);
      *reinterpret_cast<float4*>(chosen_row + first + 4) = make_float4(left[4], left[5], left[6], left[7]);
    }
    __syncwarp();
    const float pivot = __shfl_sync(kAll, diagonal, chosen);
    const float own = open ? chosen_row[row] : 0.0F;
    const float4 low = *reinterpret_cast<const float4*>(chosen_row + first);
    const float4 high = *reinterpret_cast<const float4*>(chosen_row + first + 4);
    const float element = own * ptx::reciprocal_root(pivot);
    const float share = own * ptx::reciprocal(pivot);
    left[0] = fmaf(-share, low.x, left[0]);
    left[1] = fmaf(-share, low.y, left[1]);
    left[2] = fmaf(-share, low.z, left[2]);
    left[3] = fmaf(-share, low.w, left[3]);
    left[4] = fmaf(-share, high.x, left[4]);
    left[5] = fmaf(-share, high.y, left[5]);
    left[6] = fmaf(-share, high.z, left[6]);
    left[7] = fmaf(-share, high.w, left[7]);
    diagonal = row == chosen ? 0.0F : fmaf(-element, element, diagonal);
    if (lane < kPageTokens) factor[k * kFactorStride + row] = element;
  }
  __syncwarp();
}

/// Two columns that four lanes hold, four numbers each, and their energies. Another sweep is needed if `excess` is above 0.
struct Columns {
  float a[4];
  float b[4];
  float energy_a;
  float energy_b;
  float excess;
};

__device__ __forceinline__ float dot_of_columns(const float (&x)[4], const float (&y)[4]) {
  return sum_of_four(fmaf(x[0], y[0], x[1] * y[1]) + fmaf(x[2], y[2], x[3] * y[3]));
}

/// Turns the two columns so that they are orthogonal.
__device__ __forceinline__ void rotate_columns(Columns& c) {
  const float product = dot_of_columns(c.a, c.b);
  const float gap = c.energy_b - c.energy_a;
  // Twice the angle has the tangent 2 product / gap, so that the angle is at most an eighth of a turn.
  const float inverse_length = ptx::reciprocal_root(fmaf(gap, gap, fmaf(4.0F * product, product, kNothing)));
  const float cosine2 = fmaf(0.5F * fabsf(gap), inverse_length, 0.5F);
  const float inverse_cosine = ptx::reciprocal_root(cosine2);
  const float cosine = cosine2 * inverse_cosine;
  const float sine = copysignf(1.0F, gap) * product * inverse_length * inverse_cosine;
  const float tangent = sine * inverse_cosine;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = c.a[i];
    c.a[i] = fmaf(-sine, c.b[i], cosine * a);
    c.b[i] = fmaf(sine, a, cosine * c.b[i]);
  }
  const float turned =
      fmaxf(fabsf(tangent) - kSmallTurn, fmaf(tangent * tangent, c.energy_a + c.energy_b, -kSmallTurnedEnergy));
  const float above_rounding = fmaf(product, product, -kOrthogonal * (c.energy_a * c.energy_b));
  c.excess = fmaxf(c.excess, fminf(turned, above_rounding));
  c.energy_a = fmaf(-tangent, product, c.energy_a);
  c.energy_b = fmaf(tangent, product, c.energy_b);
}

/// Every pair of columns meets once: in the first eight rounds b walks past all a; then each half of the lanes takes one of
/// the two sets, and so on. One column a lane moves between rounds, between lanes whose distance is 4 times a digit of
/// kMoves; with digits above 7, less 8, the lower lane gives b and gets a, the upper one the other way round.
__device__ __forceinline__ void sweep(Columns& c, int lane) {
  constexpr std::uint64_t kMoves = 0x91A121C1214121ULL;
#pragma unroll 1
  for (std::uint64_t moves = kMoves;; moves >>= 4) {
    rotate_columns(c);
    const int move = static_cast<int>(moves & 15U);
    if (move == 0) return;
    if (move < 8) {
#pragma unroll
      for (int k = 0; k < 4; ++k) c.b[k] = __shfl_xor_sync(kAll, c.b[k], 4 * move);
      c.energy_b = __shfl_xor_sync(kAll, c.energy_b, 4 * move);
      continue;
    }
    const int distance = 4 * (move - 8);
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float got = __shfl_xor_sync(kAll, upper ? c.a[k] : c.b[k], distance);
      c.a[k] = upper ? got : c.a[k];
      c.b[k] = upper ? c.b[k] : got;
    }
    const float energy = __shfl_xor_sync(kAll, upper ? c.energy_a : c.energy_b, distance);
    c.energy_a = upper ? energy : c.energy_a;
    c.energy_b = upper ? c.energy_b : energy;
  }
}

/// Puts the columns back to the lanes where they were before a sweep: sweeps that all begin alike converge sooner. `factor`
/// is where they came from.
__device__ __forceinline__ void return_columns(Columns& c, int lane, float* factor) {
  constexpr std::uint32_t kColumnsA = 0x9AFC5630U;  // digit i: the column that lanes 4 i ... have as a after a sweep
  constexpr std::uint32_t kColumnsB = 0x8BED4721U;
  const int column = lane / 4;
  float* const quarter = factor + 4 * (lane % 4);
  const auto store = [quarter](unsigned to, const float(&x)[4]) {
    *reinterpret_cast<float4*>(quarter + to * kFactorStride) = make_float4(x[0], x[1], x[2], x[3]);
  };
  const auto load = [quarter](int from, float(&x)[4]) {
    const float4 four = *reinterpret_cast<const float4*>(quarter + from * kFactorStride);
    x[0] = four.x;
    x[1] = four.y;
    x[2] = four.z;
    x[3] = four.w;
  };
  store(kColumnsA >> 4 * column & 15U, c.a);
  store(kColumnsB >> 4 * column & 15U, c.b);
  __syncwarp();
  load(column, c.a);
  load(column + 8, c.b);
  __syncwarp();
}

/// Writes a column of this energy as the unit vector of its place, the largest component positive; zeros if it is nothing.
/// Nearly equal components count as equal: the first decides.
__device__ __forceinline__ void store_vector(const float (&x)[4], float energy, int place, int rank, int lane,
                                             float* vectors) {
  const int first = 4 * (lane % 4);
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned bits = __float_as_uint(x[i]);
    largest = max(largest, (bits & 0x7FFFFFE0U) | static_cast<unsigned>(15 - first - i) << 1 | bits >> 31);
  }
  largest = max(largest, __shfl_xor_sync(kAll, largest, 1));
  largest = max(largest, __shfl_xor_sync(kAll, largest, 2));
  float factor = energy > kVanishing ? ptx::reciprocal_root(energy) : 0.0F;
  factor = (largest & 1U) != 0 ? -factor : factor;
  if (place >= rank) return;
  *reinterpret_cast<float4*>(vectors + place * kVectorStride + first) =
      make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

/// Row r < rank of `vectors` [rank, 20] is the unit eigenvector of the r-th largest value of M + M^T, its largest component
/// positive; zeros if there is none. `scratch` has room for 48 floats.
__device__ __forceinline__ void jacobi_eigenvectors(const float* gram, int rank, int lane, float* factor, float* scratch,
                                                    float* vectors) {
  pivoted_cholesky(gram, lane, factor, scratch);
  const int column = lane / 4;
  const int first = 4 * (lane % 4);
  const float4 low = *reinterpret_cast<const float4*>(factor + column * kFactorStride + first);
  const float4 high = *reinterpret_cast<const float4*>(factor + (column + 8) * kFactorStride + first);
  Columns c = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  __syncwarp();  // return_columns() writes there
  bool again = true;
#pragma unroll 1
  for (int i = 0;; ++i) {
    c.energy_a = dot_of_columns(c.a, c.a);
    c.energy_b = dot_of_columns(c.b, c.b);
    if (!again || i == kMaxSweeps) break;
    c.excess = 0.0F;
    sweep(c, lane);
    return_columns(c, lane, factor);
    again = __any_sync(kAll, c.excess > 0.0F);
  }
  float* const energies = scratch + 2 * kPageTokens;
  if (lane % 4 == 0) {
    energies[column] = c.energy_a;
    energies[column + 8] = c.energy_b;
  }
  __syncwarp();
  const float4 some = *reinterpret_cast<const float4*>(energies + first);
  int places = 0;  // in the low and in the high half
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float energy = i == 0 ? some.x : i == 1 ? some.y : i == 2 ? some.z : some.w;
    places += energy > c.energy_a || (energy == c.energy_a && first + i < column) ? 1 : 0;
    places += energy > c.energy_b || (energy == c.energy_b && first + i < column + 8) ? 0x10000 : 0;
  }
  places += __shfl_xor_sync(kAll, places, 1);
  places += __shfl_xor_sync(kAll, places, 2);
  store_vector(c.a, c.energy_a, places & 0xFFFF, rank, lane, vectors);
  store_vector(c.b, c.energy_b, places >> 16, rank, lane, vectors);
  __syncwarp();
}

}  // namespace locks::cuda::summarize_stage
