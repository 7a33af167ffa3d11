// The products of small matrices that a summary needs: rows are [n, head_dim] without gaps, columns [head_dim, 16]. Included
// by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_SUMMARIZE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_MATRIX_INL_H_
#undef LOCKS_SUMMARIZE_MATRIX_INL_H_
#else
#define LOCKS_SUMMARIZE_MATRIX_INL_H_
#endif

#include "summarize/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// columns = the transpose of 16 rows.
HWY_INLINE void transpose_page(const float* HWY_RESTRICT rows, int head_dim, float* HWY_RESTRICT columns) {
#if HWY_TARGET == HWY_SCALAR
  for (int dim = 0; dim < head_dim; ++dim) {
    for (int token = 0; token < kPageTokens; ++token) columns[dim * kPageTokens + token] = rows[token * head_dim + dim];
  }
#else
  const hn::FixedTag<float, 8> d8;
  const hn::Repartition<double, decltype(d8)> pairs;
  for (int token = 0; token < kPageTokens; token += 8) {
    for (int dim = 0; dim < head_dim; dim += 8) {
      const float* from = rows + token * head_dim + dim;
      hn::Vec<decltype(d8)> x[8];  // after each step, element (i, lane) has come nearer to (lane, i)
      hn::Vec<decltype(d8)> y[8];
      for (int i = 0; i < 8; ++i) x[i] = hn::LoadU(d8, from + i * head_dim);
      for (int i = 0; i < 8; i += 2) {
        y[i] = hn::InterleaveLower(d8, x[i], x[i + 1]);
        y[i + 1] = hn::InterleaveUpper(d8, x[i], x[i + 1]);
      }
      for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; ++j) {
          const auto a = hn::BitCast(pairs, y[i + j]);
          const auto b = hn::BitCast(pairs, y[i + j + 2]);
          x[i + 2 * j] = hn::BitCast(d8, hn::InterleaveLower(pairs, a, b));
          x[i + 2 * j + 1] = hn::BitCast(d8, hn::InterleaveUpper(pairs, a, b));
        }
      }
      float* to = columns + dim * kPageTokens + token;
      for (int i = 0; i < 4; ++i) {
        hn::StoreU(hn::ConcatLowerLower(d8, x[i + 4], x[i]), d8, to + i * kPageTokens);
        hn::StoreU(hn::ConcatUpperUpper(d8, x[i + 4], x[i]), d8, to + (i + 4) * kPageTokens);
      }
    }
  }
#endif
}

/// out[i] = weights_i . columns for four rows of weights [4, head_dim]: [4, 16].
HWY_INLINE void four_by_tokens(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT columns, int head_dim,
                               float* HWY_RESTRICT out) {
  Tokens sum[4] = {zero_tokens(), zero_tokens(), zero_tokens(), zero_tokens()};
  for (int dim = 0; dim < head_dim; ++dim) {
    const Tokens column = load_tokens(columns + dim * kPageTokens);
    for (int i = 0; i < 4; ++i) sum[i] = add_scaled(sum[i], weights[i * head_dim + dim], column);
  }
  for (int i = 0; i < 4; ++i) store_tokens(sum[i], out + i * kPageTokens);
}

/// Calls take(i, dim, sum over k < n of weights[k * stride + i] * rows[k][dim...]) for i = 0..3 and every vector of
/// dimensions.
template <class Take>
HWY_INLINE void combine_rows(const float* HWY_RESTRICT weights, int stride, const float* HWY_RESTRICT rows, int n,
                             int head_dim, const Take& take) {
  const FloatTag df;
  int dim = 0;
  for (; dim + 2 * kLanes <= head_dim; dim += 2 * kLanes) {
    FloatVec low[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    FloatVec high[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    for (int k = 0; k < n; ++k) {
      const FloatVec x = hn::Load(df, rows + k * head_dim + dim);
      const FloatVec y = hn::Load(df, rows + k * head_dim + dim + kLanes);
      for (int i = 0; i < 4; ++i) {
        const FloatVec weight = hn::Set(df, weights[k * stride + i]);
        low[i] = hn::MulAdd(weight, x, low[i]);
        high[i] = hn::MulAdd(weight, y, high[i]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      take(i, dim, low[i]);
      take(i, dim + kLanes, high[i]);
    }
  }
  for (; dim < head_dim; dim += kLanes) {
    FloatVec sum[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    for (int k = 0; k < n; ++k) {
      const FloatVec x = hn::Load(df, rows + k * head_dim + dim);
      for (int i = 0; i < 4; ++i) sum[i] = hn::MulAdd(hn::Set(df, weights[k * stride + i]), x, sum[i]);
    }
    for (int i = 0; i < 4; ++i) take(i, dim, sum[i]);
  }
}

/// normal[r][s] = rows_r . rows_s for r, s < n; lanes past n are zero. [n, 16]
HWY_INLINE void normal_matrix(const float* HWY_RESTRICT rows, int n, int length, float* HWY_RESTRICT normal) {
  const FloatTag df;
  for (int r = 0; r < n; ++r) {
    for (int s = 0; s <= r; s += 2) {  // s + 1 may be r + 1: its product is then written twice, the same
      const int next = s + 1 < n ? s + 1 : s;
      FloatVec first = hn::Zero(df);
      FloatVec second = hn::Zero(df);
      for (int i = 0; i < length; i += kLanes) {
        const FloatVec x = hn::Load(df, rows + r * length + i);
        first = hn::MulAdd(x, hn::Load(df, rows + s * length + i), first);
        second = hn::MulAdd(x, hn::Load(df, rows + next * length + i), second);
      }
      normal[r * kPageTokens + s] = normal[s * kPageTokens + r] = sum_lanes(first);
      normal[r * kPageTokens + next] = normal[next * kPageTokens + r] = sum_lanes(second);
    }
    for (int s = n; s < kPageTokens; ++s) normal[r * kPageTokens + s] = 0.0F;
  }
}

/// x = normal^-1 x for 16 right-hand sides, x [n, 16]. `normal` [n, 16] is destroyed. Gauss and Jordan's elimination needs
/// no pivots, because the matrix is positive definite with its ridge.
HWY_INLINE void solve_normal(float* HWY_RESTRICT normal, int n, float* HWY_RESTRICT x) {
  for (int k = 0; k < n; ++k) {
    const float inverse = 1.0F / normal[k * kPageTokens + k];
    const Tokens pivot_row = scaled(load_tokens(normal + k * kPageTokens), inverse);
    const Tokens pivot_x = scaled(load_tokens(x + k * kPageTokens), inverse);
    store_tokens(pivot_row, normal + k * kPageTokens);
    store_tokens(pivot_x, x + k * kPageTokens);
    for (int i = 0; i < n; ++i) {
      if (i == k) continue;
      const float factor = -normal[i * kPageTokens + k];
      store_tokens(add_scaled(load_tokens(normal + i * kPageTokens), factor, pivot_row), normal + i * kPageTokens);
      store_tokens(add_scaled(load_tokens(x + i * kPageTokens), factor, pivot_x), x + i * kPageTokens);
    }
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_MATRIX_INL_H_
