// Eigenvectors of a symmetric matrix of the size of a page. Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_SUMMARIZE_EIGEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_EIGEN_INL_H_
#undef LOCKS_SUMMARIZE_EIGEN_INL_H_
#else
#define LOCKS_SUMMARIZE_EIGEN_INL_H_
#endif

#include <cmath>
#include <cstdint>

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

/// Couplings below this (the matrix has trace 1) are cut; single precision knows the eigenvalues no better.
inline constexpr float kCut = 3e-8F;
/// Every eigenvalue takes two or three steps; a bound, so that no input can hang the caller.
inline constexpr int kMaxSteps = 12 * kPageTokens;

/// Implicit QL steps with Wilkinson's shift. On return t.diagonal has the eigenvalues, row i of `z` [16, 16] the i-th
/// eigenvector of the tridiagonal matrix.
HWY_INLINE void solve_tridiagonal(Tridiagonal& t, float* HWY_RESTRICT z) {
  float* d = t.diagonal;
  float* e = t.below;
  for (int i = 0; i < kPageTokens; ++i) {
    store_tokens(zero_tokens(), z + i * kPageTokens);
    z[i * kPageTokens + i] = 1.0F;
  }
  int steps = 0;
  for (int low = 0; low < kPageTokens - 1;) {
    int high = low;
    while (high < kPageTokens - 1 && std::abs(e[high]) > kCut) ++high;
    if (high == low || ++steps > kMaxSteps) {
      ++low;
      continue;
    }
    const float half_gap = (d[low + 1] - d[low]) / (2.0F * e[low]);
    const float root = std::sqrt(half_gap * half_gap + 1.0F);
    const float shift = d[low] - e[low] / (half_gap + std::copysign(root, half_gap));
    // Chases the bulge from the end of the block up. `x` is the element that the next rotation zeroes against.
    float cosine = 1.0F;
    float sine = 1.0F;
    float moved = 0.0F;
    float x = d[high] - shift;
    int i = high - 1;
    for (; i >= low; --i) {
      const float bulge = sine * e[i];
      const float coupling = cosine * e[i];
      const float length = std::sqrt(bulge * bulge + x * x);
      e[i + 1] = length;
      if (length == 0.0F) {  // the block fell apart by itself
        d[i + 1] -= moved;
        break;
      }
      const float inverse = 1.0F / length;
      sine = bulge * inverse;
      cosine = x * inverse;
      const float kept = d[i + 1] - moved;
      const float mixed = (d[i] - kept) * sine + 2.0F * cosine * coupling;
      moved = sine * mixed;
      d[i + 1] = kept + moved;
      x = cosine * mixed - coupling;
      float* upper = z + i * kPageTokens;
      float* lower = upper + kPageTokens;
      const Tokens a = load_tokens(upper);
      const Tokens b = load_tokens(lower);
      store_tokens(add_scaled(scaled(b, cosine), sine, a), lower);
      store_tokens(add_scaled(scaled(a, cosine), -sine, b), upper);
    }
    e[high] = 0.0F;
    if (i >= low) continue;
    d[low] -= moved;
    e[low] = x;
  }
}

/// Eigenvectors of `gram` [16, 16] (destroyed) by falling eigenvalue, the first `count` (a multiple of 4) of them as
/// columns: vectors[token * count + r]. The matrix must have trace 1 or be zero. The largest component of a vector is positive.
HWY_INLINE void leading_eigenvectors(float* HWY_RESTRICT gram, int count, float* HWY_RESTRICT vectors) {
  Tridiagonal t;
  Reflections reflections;
  HWY_ALIGN float z[kPageTokens * kPageTokens];
  tridiagonalise(gram, t, reflections);
  solve_tridiagonal(t, z);

  int order[kPageTokens];
  for (int i = 0; i < kPageTokens; ++i) {  // insertion sort, falling, stable
    int at = i;
    for (; at > 0 && t.diagonal[order[at - 1]] < t.diagonal[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  HWY_ALIGN float lanes[kPageTokens];
  for (int r = 0; r < count; ++r) {
    Tokens u = load_tokens(z + order[r] * kPageTokens);
    for (int k = Reflections::kCount - 1; k >= 0; --k) {
      const Tokens v = load_tokens(reflections.v[k]);
      u = add_scaled(u, -reflections.factor[k] * dot(u, v), v);
    }
    store_tokens(u, lanes);
    int largest = 0;
    for (int token = 1; token < kPageTokens; ++token) {
      if (std::abs(lanes[token]) > std::abs(lanes[largest])) largest = token;
    }
    const float sign = lanes[largest] < 0.0F ? -1.0F : 1.0F;
    for (int token = 0; token < kPageTokens; ++token) vectors[token * count + r] = sign * lanes[token];
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_EIGEN_INL_H_
