// Leading eigenvectors of a symmetric 16 x 16 matrix. Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_SUMMARIZE_EIGEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_EIGEN_INL_H_
#undef LOCKS_SUMMARIZE_EIGEN_INL_H_
#else
#define LOCKS_SUMMARIZE_EIGEN_INL_H_
#endif

#include "summarize/bisect-inl.h"
#include "summarize/ql-inl.h"
#include "summarize/tridiagonal-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The same as bisect-inl.h gives, and all eigenvectors: for matrices with eigenvalues too close for that.
inline HWY_NOINLINE void sorted_ql_vectors(Tridiagonal& t, float* HWY_RESTRICT out) {
  HWY_ALIGN float z[kPageTokens * kPageTokens];
  solve_tridiagonal(t, z);
  int order[kPageTokens];
  for (int i = 0; i < kPageTokens; ++i) {  // insertion sort, falling, stable
    int at = i;
    for (; at > 0 && t.diagonal[order[at - 1]] < t.diagonal[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  for (int r = 0; r < kPageTokens; ++r) {
    for (int i = 0; i < kPageTokens; ++i) out[i * kPageTokens + r] = z[order[r] * kPageTokens + i];
  }
}

/// Takes the columns of `x` [16, 16], `count` of which matter, from the tridiagonal matrix back to the full one, and makes
/// the largest component of each positive.
HWY_INLINE void reflect_back(const Reflections& reflections, int count, float* HWY_RESTRICT x) {
  const FloatTag df;
  for (int column = 0; column < count; column += kLanes) {
    FloatVec rows[kPageTokens];
    for (int i = 0; i < kPageTokens; ++i) rows[i] = hn::Load(df, x + i * kPageTokens + column);
    for (int k = Reflections::kCount - 1; k >= 0; --k) {
      const float* v = reflections.v[k];
      FloatVec even = hn::Zero(df);
      FloatVec odd = hn::Zero(df);
      for (int i = (k + 1) & ~1; i < kPageTokens; i += 2) {
        even = hn::MulAdd(hn::Set(df, v[i]), rows[i], even);
        odd = hn::MulAdd(hn::Set(df, v[i + 1]), rows[i + 1], odd);
      }
      const FloatVec share = hn::Mul(hn::Add(even, odd), hn::Set(df, reflections.factor[k]));
      for (int i = k + 1; i < kPageTokens; ++i) rows[i] = hn::NegMulAdd(hn::Set(df, v[i]), share, rows[i]);
    }
    FloatVec largest = rows[0];
    for (int i = 1; i < kPageTokens; ++i) {
      largest = hn::IfThenElse(hn::Gt(hn::Abs(rows[i]), hn::Abs(largest)), rows[i], largest);
    }
    for (int i = 0; i < kPageTokens; ++i) {
      hn::Store(hn::IfThenElse(hn::Lt(largest, hn::Zero(df)), hn::Neg(rows[i]), rows[i]), df, x + i * kPageTokens + column);
    }
  }
}

/// Eigenvectors of `gram` [16, 16] (destroyed) by falling eigenvalue, the first kCount of them as columns of `vectors`
/// [16, 16]. The matrix must have trace 1 or be zero.
template <int kCount>
HWY_INLINE void leading_eigenvectors(float* HWY_RESTRICT gram, float* HWY_RESTRICT vectors) {
  Tridiagonal t;
  Reflections reflections;
  tridiagonalise(gram, t, reflections);
  // On one lane QL is the faster one anyway.
  if (kLanes == 1 || !leading_vectors_of_tridiagonal<kCount>(t, vectors)) sorted_ql_vectors(t, vectors);
  reflect_back(reflections, kCount, vectors);
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_EIGEN_INL_H_
