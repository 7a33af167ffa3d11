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

/// 2^x for |x| <= 126, relative error <= 2.9e-6: a minimax polynomial of degree 4 (2.6e-6) and its rounding.
HWY_INLINE VF exp2(VF x) {
  const F32 d;
#if HWY_TARGET == HWY_AVX3
  const VF f{_mm512_reduce_ps(x.raw, 9)};  // x - floor(x)
  VF p = hn::Set(d, 0.0135341679F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0520114606F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.241442757F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693003834F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.00000259F));
  return VF{_mm512_scalef_ps(p.raw, x.raw)};  // p 2^floor(x)
#else
  const hn::RebindToSigned<F32> di;
  // Adding 1.5 * 2^23 rounds x to an integer, which then stands in the sum's low bits.
  const VF shift = hn::Set(d, 12582912.0F);
  const VF shifted = hn::Add(x, shift);
  const VF f = hn::Sub(x, hn::Sub(shifted, shift));  // in [-1/2, 1/2]
  VF p = hn::Set(d, 0.00957010191F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0559178603F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240247448F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693121815F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.999999261F));
  const VI exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
#endif
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

#if HWY_TARGET != HWY_SCALAR

/// Half vectors at `low` and `high` as one vector.
template <class D>
HWY_INLINE hn::Vec<D> load_halves(D d, const hn::TFromD<D>* low, const hn::TFromD<D>* high) {
  const hn::RebindToSigned<D> di;
#if HWY_TARGET == HWY_AVX3
  const auto half = [](const void* from) HWY_ATTR { return _mm256_load_si256(static_cast<const __m256i*>(from)); };
  return hn::BitCast(d, hn::Vec<decltype(di)>{_mm512_inserti64x4(_mm512_castsi256_si512(half(low)), half(high), 1)});
#else
  const auto half = [](const void* from) HWY_ATTR { return _mm_load_si128(static_cast<const __m128i*>(from)); };
  return hn::BitCast(d, hn::Vec<decltype(di)>{_mm256_inserti128_si256(_mm256_castsi128_si256(half(low)), half(high), 1)});
#endif
}

/// Of eight rows: those of rows 0 to 3 in each 128-bit block of the lower half, to be added up, of 4 to 7 in the upper.
template <class D>
HWY_INLINE hn::Vec<D> sum_eight_rows(D d, const hn::TFromD<D>* rows) {
  const hn::Repartition<std::uint64_t, D> pairs;
  const auto halves = [&](int row) HWY_ATTR {  // of rows `row` and `row` + 4; memory folds them without a shuffle
    const auto* first = rows + row * kLanes;
    const auto* second = first + 4 * kLanes;
    return hn::Add(load_halves(d, first, second), load_halves(d, first + kLanes / 2, second + kLanes / 2));
  };
  const auto two_rows = [&](int row) HWY_ATTR {
    const auto a = halves(row);
    const auto b = halves(row + 1);
    return hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto a = two_rows(0);
  const auto b = two_rows(2);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, a, b)), hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)));
}

#endif

/// Lane i of the result is the sum of the lanes of row i of `rows` [kLanes][kLanes].
template <class D>
HWY_INLINE hn::Vec<D> sum_rows(D d, const hn::TFromD<D>* rows) {
#if HWY_TARGET == HWY_AVX3
  const hn::RebindToSigned<D> di;
  const __m512i a = hn::BitCast(di, sum_eight_rows(d, rows)).raw;
  const __m512i b = hn::BitCast(di, sum_eight_rows(d, rows + 8 * kLanes)).raw;
  const hn::Vec<decltype(di)> even{_mm512_shuffle_i32x4(a, b, 0x88)};
  const hn::Vec<decltype(di)> odd{_mm512_shuffle_i32x4(a, b, 0xDD)};
  return hn::Add(hn::BitCast(d, even), hn::BitCast(d, odd));
#elif HWY_TARGET == HWY_AVX2
  return sum_eight_rows(d, rows);
#else
  return hn::Load(d, rows);
#endif
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_MASS_INL_H_
