// Leading eigenvectors of a page's Gram matrix: Householder reflections, bisection and twisted factorisation; one-sided
// Jacobi rotations for the few pages with eigenvalues too close for that.
#pragma once

#include <cstdint>

#include "summarize/bisection.cuh"
#include "summarize/jacobi.cuh"

namespace locks::cuda::summarize_stage {

/// Vectors found one by one are orthogonal but for about 1e-6 of the trace over the gap between their values. A page goes
/// through Jacobi rotations if two that matter have a cosine above this, or one has a residual above that (the trace is 16).
constexpr float kMostCosine = 0.02F;
constexpr float kMostResidual = 1e-4F;
/// Smaller eigenvalues, as shares of the first, do not matter: coefficients of the first have a larger error from their
/// codes.
constexpr float kNegligibleValue = 1e-6F;

/// True if vectors r of `x` (lane 4 r + t has components 4 t ...) and s of `y` have a large cosine for some r in `mine` and
/// s in `others` (bits 4 r), but for r == s if they are the same vectors. tf32 is exact enough.
__device__ __forceinline__ bool any_close(const float (&x)[4], const float (&y)[4], unsigned mine, unsigned others,
                                          bool same, int lane) {
  float cosines[4] = {};
  ptx::mma_tf32(cosines, x[0], 0.0F, x[1], 0.0F, y[0], y[1]);
  ptx::mma_tf32(cosines, x[2], 0.0F, x[3], 0.0F, y[2], y[3]);
  bool close = false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int other = 2 * (lane % 4) + i;
    const bool counts = (mine >> (lane & 28) & others >> 4 * other & 1U) != 0 && !(same && other == lane / 4);
    close = close || (counts && !(fabsf(cosines[i]) <= kMostCosine));
  }
  return __any_sync(kAll, close);
}

/// False, and nothing of use in `vectors`, if eigenvalues are too close.
__device__ __forceinline__ bool separate_eigenvectors(const Tridiagonal& t, int rank, int lane, float* vectors) {
  float first_value = 0.0F;
  float first_vectors[4] = {};
  unsigned first_counts = 0;
#pragma unroll 1
  for (int first = 0; first < rank; first += 8) {
    const int place = first + lane / 4;
    const float value = bisect(t, place, lane);
    float x[4];
    const float residual = twisted_vector(t, value, lane, vectors + first * kVectorStride, x);
    const float length2 = sum_of_four(dot(x, x));
    reflect_back(t, lane, x);
    const float inverse_length = ptx::reciprocal_root(length2);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= inverse_length;
    store_vector(x, 1.0F, place, rank, lane, vectors);
    if (first == 0) first_value = __shfl_sync(kAll, value, 0);
    const bool matters = place < rank && value > kNegligibleValue * first_value;
    // Not so with lengths that are not finite.
    const bool good = residual * residual <= kMostResidual * kMostResidual * length2 && length2 < 1e30F;
    if (__any_sync(kAll, matters && !good)) return false;
    const unsigned counts = __ballot_sync(kAll, matters);
    if (any_close(x, x, counts, counts, true, lane)) return false;
    if (first != 0 && any_close(x, first_vectors, counts, first_counts, false, lane)) return false;
#pragma unroll
    for (int i = 0; i < 4; ++i) first_vectors[i] = x[i];
    first_counts = counts;
  }
  __syncwarp();
  return true;
}

/// Row r < rank of `vectors` [rank, 20] is the unit eigenvector of the r-th largest value of M + M^T, its largest component
/// positive; zeros if there is none. `work` has room for a Tridiagonal, or for [16, 20] floats; `scratch` for 48.
__device__ __forceinline__ void leading_eigenvectors(const float* gram, int rank, int lane, float* work, float* scratch,
                                                     float* vectors) {
  forget(lane);
  Tridiagonal& t = *reinterpret_cast<Tridiagonal*>(work);
  if (tridiagonalise(gram, lane, t) && separate_eigenvectors(t, rank, lane, vectors)) return;
  __syncwarp();
  jacobi_eigenvectors(gram, rank, lane, work, scratch, vectors);
}

}  // namespace locks::cuda::summarize_stage
