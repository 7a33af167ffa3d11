// All eigenvectors of a tridiagonal matrix, orthogonal whatever the matrix is. Included by the SIMD sources, once per target
// (dispatch.h).
#if defined(LOCKS_SUMMARIZE_QL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_QL_INL_H_
#undef LOCKS_SUMMARIZE_QL_INL_H_
#else
#define LOCKS_SUMMARIZE_QL_INL_H_
#endif

#include <cmath>

#include "summarize/tridiagonal-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_QL_INL_H_
