// exp() of softmax arguments. Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_CPU_EXP_INL_H_
#undef LOCKS_CPU_EXP_INL_H_
#else
#define LOCKS_CPU_EXP_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// exp(x) for x <= 88; NaN stays NaN; 0 below the normal range (x < -87.3365, -infinity included).
/// With n = round(x / ln 2) and r = x - n ln 2, |r| <= 0.3467, the series to r^7 leaves out less than
/// r^8 / 8! = 5.2e-9 of a result above 0.7; rounding adds at most 1.2e-7. Relative error <= 1.4e-7 in all.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softmax_exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.3365F);
  const auto too_low = hn::Lt(x, lowest);
  const V inside = hn::IfThenElse(too_low, lowest, x);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; with 127 more, it is the exponent of 2^n.
  const V shift = hn::Set(d, 12582912.0F + 127.0F);
  const V shifted = hn::MulAdd(inside, hn::Set(d, 1.44269504F), shift);
  const V n = hn::Sub(shifted, shift);
  V r = hn::MulAdd(n, hn::Set(d, -0.693359375F), inside);  // 9 significant bits: the product is exact
  r = hn::MulAdd(n, hn::Set(d, 2.12194440e-4F), r);
  V p = hn::Set(d, 1.0F / 5040.0F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 720.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenZeroElse(too_low, hn::Mul(p, power));  // a product, so that NaN stays NaN
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_CPU_EXP_INL_H_
