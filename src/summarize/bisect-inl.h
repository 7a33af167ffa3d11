// The leading eigenvectors of a tridiagonal matrix, a lane for each. Included by the SIMD sources, once per target
// (dispatch.h).
#if defined(LOCKS_SUMMARIZE_BISECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_BISECT_INL_H_
#undef LOCKS_SUMMARIZE_BISECT_INL_H_
#else
#define LOCKS_SUMMARIZE_BISECT_INL_H_
#endif

#include "summarize/records.h"
#include "summarize/tridiagonal-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<DoubleTag>;
inline constexpr int kDoubles = static_cast<int>(hn::MaxLanes(DoubleTag()));

struct Doubled {
  double diagonal[kPageTokens];
  double below[kPageTokens];
  double below_squared[kPageTokens];
};

/// How many eigenvalues lie below x, and more: the signs of the leading minors of T - x I. In double, the minors of a matrix
/// with trace 1 neither overflow nor vanish for any x that is tried.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DoubleTag>> count_below(const Doubled& t, DoubleVec x) {
  const DoubleTag dd;
  const hn::RebindToUnsigned<DoubleTag> du;
  DoubleVec before = hn::Set(dd, 1.0);
  DoubleVec minor = hn::Sub(hn::Set(dd, t.diagonal[0]), x);
  auto count = hn::ShiftRight<63>(hn::BitCast(du, minor));
  for (int i = 1; i < kPageTokens; ++i) {
    const DoubleVec pivot = hn::Sub(hn::Set(dd, t.diagonal[i]), x);
    const DoubleVec next = hn::MulSub(pivot, minor, hn::Mul(hn::Set(dd, t.below_squared[i - 1]), before));
    count = hn::Add(count, hn::ShiftRight<63>(hn::BitCast(du, hn::Xor(next, minor))));
    before = minor;
    minor = next;
  }
  return count;
}

/// Eigenvalues below this are not told from 0. The odd digits keep the points that are tried off the round numbers that
/// structured pages have for eigenvalues.
inline constexpr double kLowest = 1.2345678e-9;
/// Rounds that cut an interval to a third: 3^-21 = 1e-10.
inline constexpr int kRounds = 21;

/// values[r] for r < count, falling.
template <int kGroups>
HWY_INLINE void bisect(const Doubled& t, double* HWY_RESTRICT values) {
  const DoubleTag dd;
  const hn::RebindToSigned<DoubleTag> di;
  DoubleVec low[kGroups];
  DoubleVec high[kGroups];
  hn::Vec<decltype(di)> wanted[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    low[g] = hn::Set(dd, kLowest);
    const DoubleVec order = hn::Add(hn::Iota(dd, 1.0), hn::Set(dd, g * kDoubles));
    high[g] = hn::Add(hn::Div(hn::Set(dd, 1.0), order), hn::Set(dd, 1.2345678e-5));  // k eigenvalues above 1/k: trace over 1
    wanted[g] = hn::Sub(hn::Set(di, kPageTokens - g * kDoubles), hn::Iota(di, 0));
  }
  for (int round = 0; round < kRounds; ++round) {
    DoubleVec a[kGroups];
    DoubleVec b[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      const DoubleVec third = hn::Mul(hn::Sub(high[g], low[g]), hn::Set(dd, 1.0 / 3.0));
      a[g] = hn::Add(low[g], third);
      b[g] = hn::Sub(high[g], third);
    }
    for (int g = 0; g < kGroups; ++g) {
      const auto above_a =
          hn::MaskFromVec(hn::BitCast(dd, hn::VecFromMask(di, hn::Gt(wanted[g], hn::BitCast(di, count_below(t, a[g]))))));
      const auto above_b =
          hn::MaskFromVec(hn::BitCast(dd, hn::VecFromMask(di, hn::Gt(wanted[g], hn::BitCast(di, count_below(t, b[g]))))));
      low[g] = hn::IfThenElse(above_b, b[g], hn::IfThenElse(above_a, a[g], low[g]));
      high[g] = hn::IfThenElse(above_b, high[g], hn::IfThenElse(above_a, b[g], a[g]));
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    hn::StoreU(hn::Mul(hn::Add(low[g], high[g]), hn::Set(dd, 0.5)), dd, values + g * kDoubles);
  }
}

/// Unit eigenvectors for kDoubles eigenvalues: component i of lane l at out[i * kPageTokens + l]. Twisted factorisation: T -
/// x I is eliminated from both ends, and the vector starts where the two meet with the smallest remainder.
HWY_INLINE void twisted_vectors(const Doubled& t, const double* values, float* HWY_RESTRICT out) {
  const DoubleTag dd;
  const DoubleVec x = hn::LoadU(dd, values);
  const auto pivot = [dd](DoubleVec p) {
    const DoubleVec tiny = hn::Set(dd, 1e-30);
    return hn::IfThenElse(hn::Lt(hn::Abs(p), tiny), tiny, p);
  };
  DoubleVec down[kPageTokens];  // pivots from the top, then the factors below_i / pivot
  DoubleVec up[kPageTokens];    // pivots from the end, then below_(i-1) / pivot
  DoubleVec remainder[kPageTokens];
  constexpr int kEnd = kPageTokens - 1;
  DoubleVec p = pivot(hn::Sub(hn::Set(dd, t.diagonal[0]), x));
  DoubleVec q = pivot(hn::Sub(hn::Set(dd, t.diagonal[kEnd]), x));
  for (int i = 0, j = kEnd; i < kEnd; ++i, --j) {
    remainder[i] = p;
    up[j] = hn::Div(hn::Set(dd, t.below[j - 1]), q);
    down[i] = hn::Div(hn::Set(dd, t.below[i]), p);
    p = pivot(hn::NegMulAdd(down[i], hn::Set(dd, t.below[i]), hn::Sub(hn::Set(dd, t.diagonal[i + 1]), x)));
    q = pivot(hn::NegMulAdd(up[j], hn::Set(dd, t.below[j - 1]), hn::Sub(hn::Set(dd, t.diagonal[j - 1]), x)));
  }
  remainder[kEnd] = p;
  // What the rows below take off pivot i is up[i + 1] below[i].
  DoubleVec least = hn::Abs(remainder[kEnd]);
  DoubleVec start = hn::Set(dd, kEnd);
  for (int i = 0; i < kEnd; ++i) {
    const DoubleVec size = hn::Abs(hn::NegMulAdd(up[i + 1], hn::Set(dd, t.below[i]), remainder[i]));
    const auto better = hn::Lt(size, least);
    least = hn::IfThenElse(better, size, least);
    start = hn::IfThenElse(better, hn::Set(dd, i), start);
  }
  DoubleVec z[kPageTokens];
  DoubleVec norm2 = hn::Zero(dd);
  DoubleVec current = hn::Zero(dd);
  for (int i = kEnd; i >= 0; --i) {
    if (i < kEnd) current = hn::Neg(hn::Mul(down[i], current));
    current = hn::IfThenElse(hn::Eq(start, hn::Set(dd, i)), hn::Set(dd, 1.0), current);
    z[i] = current;
    norm2 = hn::MulAdd(current, current, norm2);
  }
  current = hn::Zero(dd);
  for (int i = 0; i < kPageTokens; ++i) {
    if (i > 0) current = hn::Neg(hn::Mul(up[i], current));
    const auto below_start = hn::Gt(hn::Set(dd, i), start);
    norm2 = hn::MulAdd(current, current, norm2);
    z[i] = hn::IfThenElse(below_start, current, z[i]);
    current = hn::IfThenElse(hn::Eq(start, hn::Set(dd, i)), hn::Set(dd, 1.0), current);
  }
  const DoubleVec factor = hn::Div(hn::Set(dd, 1.0), hn::Sqrt(norm2));
  const hn::Rebind<float, DoubleTag> df;
  for (int i = 0; i < kPageTokens; ++i) hn::StoreU(hn::DemoteTo(df, hn::Mul(z[i], factor)), df, out + i * kPageTokens);
}

/// Closer eigenvalues than this (the trace is 1) have no vectors of their own: those found one by one would not be
/// orthogonal.
inline constexpr double kCloseGap = 1e-6;

/// Eigenvectors of the `count` largest eigenvalues as columns of `out` [16, 16]; zeros in the others, because whole vectors
/// of columns are computed with. False, and nothing of use in `out`, if two
/// that matter are too close.
template <int kCount>
HWY_INLINE bool leading_vectors_of_tridiagonal(const Tridiagonal& single, float* HWY_RESTRICT out) {
  Doubled t;
  for (int i = 0; i < kPageTokens; ++i) {
    t.diagonal[i] = single.diagonal[i];
    t.below[i] = single.below[i];
    t.below_squared[i] = t.below[i] * t.below[i];
  }
  constexpr int kGroups = (kCount + kDoubles - 1) / kDoubles;
  double values[kGroups * kDoubles];
  bisect<kGroups>(t, values);
  for (int r = 0; r + 1 < kCount; ++r) {
    if (values[r] - values[r + 1] < kCloseGap && values[r + 1] > 0.5 * summarize_stage::kNullEnergy * values[0])
      return false;
  }
  constexpr int kMade = kGroups * kDoubles;
  for (int r = 0; r < kMade; r += kDoubles) twisted_vectors(t, values + r, out + r);
  for (int i = 0; i < kPageTokens; ++i) std::fill_n(out + i * kPageTokens + kMade, std::max(0, kPageTokens - kMade), 0.0F);
  return true;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_BISECT_INL_H_
