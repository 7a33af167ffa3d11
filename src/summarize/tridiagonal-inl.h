// A symmetric 16 x 16 matrix made tridiagonal. Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_SUMMARIZE_TRIDIAGONAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_TRIDIAGONAL_INL_H_
#undef LOCKS_SUMMARIZE_TRIDIAGONAL_INL_H_
#else
#define LOCKS_SUMMARIZE_TRIDIAGONAL_INL_H_
#endif

#include <cmath>

#include "summarize/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Tridiagonal {
  float diagonal[kPageTokens];
  float below[kPageTokens];  // below[i] couples i and i + 1; the last is 0
};

/// Householder reflections I - factor v v^T, applied in order 0, 1, ...; v is zero up to its own index.
struct Reflections {
  static constexpr int kCount = kPageTokens - 2;
  HWY_ALIGN float v[kCount][kPageTokens];
  float factor[kCount];
};

/// Columns shorter than this (the matrix has trace 1) count as eliminated: the eigenvalues hardly feel 1e-15.
inline constexpr float kNegligibleNorm2 = 1e-30F;

/// Reduces `a` [16, 16], symmetric with trace about 1; destroys it.
HWY_INLINE void tridiagonalise(float* HWY_RESTRICT a, Tridiagonal& t, Reflections& reflections) {
  HWY_ALIGN float w_lanes[kPageTokens];
  for (int k = 0; k < Reflections::kCount; ++k) {
    float* v_lanes = reflections.v[k];
    Tokens v = tail(load_tokens(a + k * kPageTokens), k + 1);
    const float first = a[k * kPageTokens + k + 1];
    const float norm2 = dot(v, v);
    t.diagonal[k] = a[k * kPageTokens + k];
    if (norm2 < kNegligibleNorm2) {
      t.below[k] = 0.0F;
      reflections.factor[k] = 0.0F;
      store_tokens(zero_tokens(), v_lanes);
      continue;
    }
    const float alpha = first > 0.0F ? -std::sqrt(norm2) : std::sqrt(norm2);
    const float factor = 1.0F / (norm2 - alpha * first);
    t.below[k] = alpha;
    reflections.factor[k] = factor;
    store_tokens(v, v_lanes);
    v_lanes[k + 1] = first - alpha;
    v = load_tokens(v_lanes);

    Tokens even = zero_tokens();  // two chains, for the latency
    Tokens odd = zero_tokens();
    for (int i = (k + 1) & ~1; i < kPageTokens; i += 2) {
      even = add_scaled(even, v_lanes[i], load_tokens(a + i * kPageTokens));
      odd = add_scaled(odd, v_lanes[i + 1], load_tokens(a + (i + 1) * kPageTokens));
    }
    const Tokens p = scaled(tail(add_scaled(even, 1.0F, odd), k + 1), factor);
    const Tokens w = add_scaled(p, -0.5F * factor * dot(v, p), v);
    store_tokens(w, w_lanes);
    for (int i = k + 1; i < kPageTokens; ++i) {
      float* row = a + i * kPageTokens;
      store_tokens(add_scaled(add_scaled(load_tokens(row), -v_lanes[i], w), -w_lanes[i], v), row);
    }
  }
  constexpr int kEnd = kPageTokens - 1;
  t.diagonal[kEnd - 1] = a[(kEnd - 1) * kPageTokens + kEnd - 1];
  t.diagonal[kEnd] = a[kEnd * kPageTokens + kEnd];
  t.below[kEnd - 1] = a[(kEnd - 1) * kPageTokens + kEnd];
  t.below[kEnd] = 0.0F;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_TRIDIAGONAL_INL_H_
