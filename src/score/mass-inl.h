// exp and log of the scorer, and sums across lanes of many vectors at once. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_MASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_MASS_INL_H_
#undef LOCKS_SCORE_MASS_INL_H_
#else
#define LOCKS_SCORE_MASS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<hn::RebindToSigned<F32>>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

/// x in [-limit, limit]; not a number becomes a limit.
HWY_INLINE VF clamp(VF x, float limit) {
#if HWY_TARGET == HWY_AVX3
  return VF{_mm512_range_ps(x.raw, _mm512_set1_ps(limit), 2)};  // the smaller magnitude, the sign of x
#else
  return hn::Max(hn::Min(x, hn::Set(F32(), limit)), hn::Set(F32(), -limit));
#endif
}

/// 2^x for |x| <= 126, relative error <= 2.8e-6: a minimax polynomial on [-1/2, 1/2] (2.6e-6) and its rounding.
HWY_INLINE VF exp2(VF x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  // Adding 1.5 * 2^23 rounds x to an integer, which then stands in the sum's low bits.
  const VF shift = hn::Set(d, 12582912.0F);
  const VF shifted = hn::Add(x, shift);
  const VF f = hn::Sub(x, hn::Sub(shifted, shift));
  VF p = hn::Set(d, 0.00957010191F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0559178603F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240247448F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693121815F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.999999261F));
  const VI exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

/// Natural logarithm of positive normal x, absolute error <= 6e-8 + 1.2e-7 |log x|. With x = 2^n m, m in
/// [sqrt(1/2), sqrt(2)), and s = (m - 1) / (m + 1), |s| <= 0.172: log m = 2 (s + s^3/3 + s^5/5 + s^7/7), the rest is
/// below 2 s^9 / 9 = 2.9e-8.
HWY_INLINE VF log(VF x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VI root_half = hn::Set(di, 0x3F3504F3);  // the bits of sqrt(1/2)
  const VI above = hn::Sub(hn::BitCast(di, x), root_half);
  const VI n = hn::ShiftRight<23>(above);
  const VF m = hn::BitCast(d, hn::Sub(hn::BitCast(di, x), hn::ShiftLeft<23>(n)));
  const VF one = hn::Set(d, 1.0F);
  const VF s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VF s2 = hn::Mul(s, s);
  VF p = hn::MulAdd(s2, hn::Set(d, 2.0F / 7.0F), hn::Set(d, 2.0F / 5.0F));
  p = hn::MulAdd(s2, p, hn::Set(d, 2.0F / 3.0F));
  p = hn::MulAdd(s2, p, hn::Set(d, 2.0F));
  return hn::MulAdd(hn::ConvertTo(d, n), hn::Set(d, 0.693147181F), hn::Mul(s, p));
}

/// Lane i of the result is the sum of the lanes of row i of `rows` [kLanes][kLanes].
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> sum_rows(D d, const T* rows) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Load(d, rows);
#else
  using V = hn::Vec<D>;
  const hn::Repartition<std::uint64_t, D> pairs;
  V four[kLanes / 4];  // lane 4 b + i: what 128-bit block b of row i holds
  for (int i = 0; i < kLanes / 4; ++i) {
    const auto row = [&](int j) HWY_ATTR { return hn::Load(d, rows + (4 * i + j) * kLanes); };
    const auto halves = [&](int j) HWY_ATTR {
      return hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, row(j), row(j + 1)), hn::InterleaveUpper(d, row(j), row(j + 1))));
    };
    const auto low = halves(0);
    const auto high = halves(2);
    four[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)), hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
  }
#if HWY_TARGET == HWY_AVX3
  const auto add_blocks = [&](V a, V b) HWY_ATTR {
    const __m512i x = hn::BitCast(hn::RebindToSigned<D>(), a).raw;
    const __m512i y = hn::BitCast(hn::RebindToSigned<D>(), b).raw;
    const hn::Vec<hn::RebindToSigned<D>> even{_mm512_shuffle_i32x4(x, y, 0x88)};
    const hn::Vec<hn::RebindToSigned<D>> odd{_mm512_shuffle_i32x4(x, y, 0xDD)};
    return hn::Add(hn::BitCast(d, even), hn::BitCast(d, odd));
  };
  return add_blocks(add_blocks(four[0], four[1]), add_blocks(four[2], four[3]));
#else
  return hn::Add(hn::ConcatLowerLower(d, four[1], four[0]), hn::ConcatUpperUpper(d, four[1], four[0]));
#endif
#endif
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_MASS_INL_H_
