// A symmetric 16 x 16 matrix made tridiagonal by Householder reflections, and vectors taken back.
#pragma once

#include "summarize/deviations.cuh"

namespace locks::cuda::summarize_stage {

/// Deviations with less energy, next to components near 1, are below any rounding.
constexpr float kVanishing = 1e-30F;
constexpr int kReflections = kPageTokens - 2;

/// Floats in shared memory. Eigenvalues are in units of the mean energy of a token: the trace is 16.
struct Tridiagonal {
  float reflections[kReflections][kPageTokens];  // v of I - factor v v^T; zero up to its own index
  float factors[kPageTokens];
  float column[kPageTokens];
  float product[kPageTokens];
  struct {
    float diagonal[kPageTokens];
    float below[kPageTokens];  // [i] couples i and i + 1
  } side[2];                   // from the first row on, and from the last row on
};

__device__ __forceinline__ void set_diagonal(Tridiagonal& t, int i, float x) {
  t.side[0].diagonal[i] = x;
  t.side[1].diagonal[kPageTokens - 1 - i] = x;
}
__device__ __forceinline__ void set_below(Tridiagonal& t, int i, float x) {
  t.side[0].below[i] = x;
  t.side[1].below[kPageTokens - 2 - i] = x;
}

template <int kCount>
__device__ __forceinline__ void load_floats(const float* from, float (&x)[kCount]) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    x[i] = four.x;
    x[i + 1] = four.y;
    x[i + 2] = four.z;
    x[i + 3] = four.w;
  }
}
template <int kCount>
__device__ __forceinline__ float dot(const float (&x)[kCount], const float* y) {
  float sums[2] = {x[0] * y[0], x[1] * y[1]};
#pragma unroll
  for (int i = 2; i < kCount; ++i) sums[i % 2] = fmaf(x[i], y[i], sums[i % 2]);
  return sums[0] + sums[1];
}

/// Eliminates columns k and k + 1, k even. Lane 16 h + i holds of row i the columns k + 2 j + h in a[j], j < kWidth, and in
/// the end those two further on. In shared memory a column is in the same order: even rows first, from row k on.
template <int kWidth>
__device__ __forceinline__ void eliminate_two(float (&a)[8], int k, int lane, Tridiagonal& t) {
  const int row = lane % kPageTokens;
  const int half = lane / kPageTokens;
  const int own = (row / 2 - k / 2 & 7) + 8 * (row & 1);
#pragma unroll
  for (int step = 0; step < 2; ++step, ++k) {
    const bool open = row > k;
    if (half == step) {
      t.column[own] = open ? a[0] : 0.0F;
      if (row == k) set_diagonal(t, k, a[0]);
    }
    __syncwarp();
    float v[kWidth];
    load_floats(t.column + 8 * half, v);
    const float first = t.column[step == 0 ? 8 : 1];
    float own_v = t.column[own];
    float norm2 = dot(v, v);
    float product = dot(v, a);
    norm2 += __shfl_xor_sync(kAll, norm2, kPageTokens);
    product += __shfl_xor_sync(kAll, product, kPageTokens);
    const float next = __shfl_sync(kAll, a[step], row + (step == 0 ? kPageTokens : 0));  // of column k + 1
    const bool some = norm2 > kVanishing;
    const float norm = some ? norm2 * ptx::reciprocal_root(norm2) : 0.0F;
    const float factor = some ? ptx::reciprocal(fmaf(norm, fabsf(first), norm2)) : 0.0F;
    const float alpha = first > 0.0F ? -norm : norm;
    product = open ? fmaf(-alpha, next, product) : 0.0F;
    own_v = row == k + 1 ? first - alpha : own_v;
    v[step] = half == step ? v[step] : first - alpha;
    if (half == 0) {
      t.product[own] = product;
      t.reflections[k][row] = own_v;
    }
    if (lane == 0) {
      t.factors[k] = factor;
      set_below(t, k, alpha);
    }
    __syncwarp();
    float products[kWidth];
    load_floats(t.product + 8 * half, products);
    float square = dot(v, products);
    square += __shfl_xor_sync(kAll, square, kPageTokens);
    const float scaled_v = factor * own_v;
    const float scaled_product = factor * fmaf(-scaled_v, square, product);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) a[j] = fmaf(-scaled_v, products[j], fmaf(-scaled_product, v[j], a[j]));
  }
#pragma unroll
  for (int j = 0; j + 1 < kWidth; ++j) a[j] = a[j + 1];
  a[kWidth - 1] = 0.0F;
}

/// Makes M + M^T, with trace 16, tridiagonal. False if it is nothing.
__device__ __forceinline__ bool tridiagonalise(const float* gram, int lane, Tridiagonal& t) {
  const int row = lane % kPageTokens;
  const int half = lane / kPageTokens;
  const float trace = sum_of_warp(gram[row * kGramStride + row]);  // half of the trace, twice
  if (!__any_sync(kAll, trace > kVanishing)) return false;         // a vote, or the compiler takes it that lanes part here
  const float scale = 16.0F * ptx::reciprocal(trace);
  float a[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int column = 2 * j + half;
    a[j] = (gram[row * kGramStride + column] + gram[column * kGramStride + row]) * scale;
  }
#pragma unroll 1
  for (int k = 0; k < 8; k += 2) eliminate_two<8>(a, k, lane, t);
#pragma unroll 1
  for (int k = 8; k < kReflections; k += 2) eliminate_two<4>(a, k, lane, t);
  constexpr int kLast = kPageTokens - 1;
  if (lane == kLast - 1) set_diagonal(t, kLast - 1, a[0]);
  if (lane == kLast + kPageTokens) set_diagonal(t, kLast, a[0]);
  if (lane == kLast) set_below(t, kLast - 1, a[0]);
  __syncwarp();
  return true;
}

/// Takes a vector of the tridiagonal matrix, of which four lanes hold four components each, back to the full one.
__device__ __forceinline__ void reflect_back(const Tridiagonal& t, int lane, float (&x)[4]) {
#pragma unroll 2
  for (int k = kReflections - 1; k >= 0; --k) {
    float v[4];
    load_floats(t.reflections[k] + 4 * (lane % 4), v);
    const float share = t.factors[k] * sum_of_four(dot(v, x));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = fmaf(-share, v[i], x[i]);
  }
}

}  // namespace locks::cuda::summarize_stage
