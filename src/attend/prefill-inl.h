// The three inner loops of prefill: unpacking keys and values, the tile product and the softmax of a row of logits.
// Included once per target (dispatch.h).
#if defined(LOCKS_ATTEND_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_ATTEND_PREFILL_INL_H_
#undef LOCKS_ATTEND_PREFILL_INL_H_
#else
#define LOCKS_ATTEND_PREFILL_INL_H_
#endif

#include <array>
#include <cstddef>
#include <limits>

#include "attend/prefill.h"
#include "cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile's sums stay in registers: tile queries x 2 vectors, with 2 more for the right side and one for the left.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kTileQueries = 12;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kTileQueries = 6;
#else
inline constexpr int kTileQueries = 4;
#endif
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanel = kPanelVectors * kLanes;
static_assert(prefill_stage::kMaxTileQueries % kTileQueries == 0);
static_assert(prefill_stage::kBlockTokens % kPanel == 0 && kLanes <= prefill_stage::kMaxLanes);

#if HWY_TARGET != HWY_SCALAR
/// Block b of 4 lanes goes to `to + 4 b * row_stride`.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* to, std::ptrdiff_t row_stride) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), to, row_stride);
    store_blocks(half, hn::UpperHalf(half, v), to + static_cast<std::ptrdiff_t>(hn::MaxLanes(d)) / 2 * row_stride,
                 row_stride);
  }
}
#endif

/// Keys of `count` tokens, at most kBlockTokens, into panels [head_dim, kPanel]. Zeros fill the last panel.
template <DType kType>
HWY_INLINE void unpack_keys(const std::byte* const* rows, int count, int head_dim, float* HWY_RESTRICT keys) {
  const FloatTag d;
#if HWY_TARGET == HWY_SCALAR
  for (int token = 0; token < count; ++token) {
    float* const to = keys + token / kPanel * kPanel * head_dim + token % kPanel;
    for (int dim = 0; dim < head_dim; ++dim) hn::StoreU(load_values<kType>(rows[token], dim), d, to + dim * kPanel);
  }
  for (int token = count; token % kPanel != 0; ++token) {
    float* const to = keys + token / kPanel * kPanel * head_dim + token % kPanel;
    for (int dim = 0; dim < head_dim; ++dim) to[dim * kPanel] = 0.0F;
  }
#else
  const hn::Repartition<double, FloatTag> pairs;
  const auto lower_pairs = [&](FloatVec a, FloatVec b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto upper_pairs = [&](FloatVec a, FloatVec b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const int padded = (count + kPanel - 1) / kPanel * kPanel;
  for (int token = 0; token < padded; token += 4) {
    float* to = keys + token / kPanel * kPanel * head_dim + token % kPanel;
    for (int dim = 0; dim < head_dim; dim += kLanes, to += kLanes * kPanel) {
      std::array<FloatVec, 4> key;
      for (int i = 0; i < 4; ++i) key[i] = token + i < count ? load_values<kType>(rows[token + i], dim) : hn::Zero(d);
      const FloatVec low01 = hn::InterleaveLower(d, key[0], key[1]);
      const FloatVec high01 = hn::InterleaveUpper(d, key[0], key[1]);
      const FloatVec low23 = hn::InterleaveLower(d, key[2], key[3]);
      const FloatVec high23 = hn::InterleaveUpper(d, key[2], key[3]);
      store_blocks(d, lower_pairs(low01, low23), to, kPanel);
      store_blocks(d, upper_pairs(low01, low23), to + kPanel, kPanel);
      store_blocks(d, lower_pairs(high01, high23), to + 2 * kPanel, kPanel);
      store_blocks(d, upper_pairs(high01, high23), to + 3 * kPanel, kPanel);
    }
  }
#endif
}

/// Values of `count` tokens into panels [kBlockTokens, kPanel]; the last panel is one vector wide if head_dim ends there.
/// False if one of them is not finite.
template <DType kType>
HWY_INLINE bool unpack_values(const std::byte* const* rows, int count, int head_dim, float* HWY_RESTRICT values) {
  const FloatTag d;
  FloatVec zeros = hn::Zero(d);  // 0 * value is 0 or not a number
  for (int token = 0; token < count; ++token) {
    for (int panel = 0; panel < head_dim; panel += kPanel) {
      const int width = HWY_MIN(kPanel, head_dim - panel);
      float* const to = values + panel * prefill_stage::kBlockTokens + token * width;
      for (int i = 0; i < width; i += kLanes) {
        const FloatVec value = load_values<kType>(rows[token], panel + i);
        zeros = hn::MulAdd(value, hn::Zero(d), zeros);
        hn::StoreU(value, d, to + i);
      }
    }
  }
  return hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
}

/// out[i][lane] = rescale[i] * out[i][lane] + sum over `depth` steps of left(step, i) * right[step][lane], in step order;
/// without `rescale` the sum alone. left(step, i) is left[step * kStepStride + i * kRowStride].
template <int kRows, int kVectors, int kStepStride, int kRowStride>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT left, const float* HWY_RESTRICT right, int depth,
                              const float* HWY_RESTRICT rescale, float* HWY_RESTRICT out, std::ptrdiff_t out_stride) {
  const FloatTag d;
  FloatVec sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = rescale == nullptr ? hn::Zero(d)
                                     : hn::Mul(hn::Set(d, rescale[i]), hn::LoadU(d, out + i * out_stride + v * kLanes));
    }
  }
  for (int step = 0; step < depth; ++step) {
    FloatVec column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) column[v] = hn::LoadU(d, right + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const FloatVec factor = hn::Set(d, left[i * kRowStride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, column[v], sum[i][v]);
    }
    left += kStepStride;
    right += kVectors * kLanes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, out + i * out_stride + v * kLanes);
  }
}

/// 2^x for x <= 127: 0 below the normal range, whose products would be slow; not a number for one. With n = round(x), the
/// polynomial of x - n was fitted with its constant fixed at 1 and misses 2^(x - n) by at most 9.2e-8 of it; with rounding
/// the relative error stays below 2e-7.
HWY_INLINE FloatVec power_of_two(FloatVec x) {
  const FloatTag d;
#if HWY_TARGET == HWY_AVX3
  const __mmask16 normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const FloatVec part{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
#else
#if HWY_TARGET == HWY_SCALAR
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, -127.0F)), hn::Set(d, -127.0F), x);
#else
  x = hn::Max(hn::Set(d, -127.0F), x);  // the processor's maximum is its second operand if one is not a number
#endif
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; with 127 more, it is the exponent of 2^n.
  const FloatVec shift = hn::Set(d, 12582912.0F + 127.0F);
  const FloatVec shifted = hn::Add(x, shift);
  const FloatVec part = hn::Sub(x, hn::Sub(shifted, shift));
#endif
  FloatVec p = hn::Set(d, 0.0013264727F);
  p = hn::MulAdd(p, part, hn::Set(d, 0.009671513F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.055507336F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.24022242F));
  p = hn::MulAdd(p, part, hn::Set(d, 0.693147F));
  p = hn::MulAdd(p, part, hn::Set(d, 1.0F));
#if HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_maskz_scalef_ps(normal, p.raw, hn::Sub(x, part).raw)};
#else
  const hn::RebindToSigned<FloatTag> di;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
#endif
}

// A query's reference need not be its largest logit: weights of at most 2^kReferenceSlack lose nothing, and while the
// reference stays, nothing is rescaled and no row waits for its maximum.
inline constexpr float kReferenceSlack = 16.0F;
inline constexpr float kNoReference = -3.0e38F;

/// Logits (base 2) of `width` tokens, of which the query sees the first `limit`, become weights 2^(logit - reference), 0
/// beyond the limit. Returns by what earlier sums have to be multiplied.
HWY_INLINE float softmax_row(float* HWY_RESTRICT row, int width, int limit, float& reference,
                             float* HWY_RESTRICT weight_sum) {
  const FloatTag d;
  for (int at = limit < 0 ? 0 : limit / kLanes * kLanes; at < width; at += kLanes) {
    const auto seen = hn::FirstN(d, static_cast<std::size_t>(HWY_MAX(limit - at, 0)));
    const FloatVec unseen = hn::Set(d, -std::numeric_limits<float>::infinity());
    hn::StoreU(hn::IfThenElse(seen, hn::LoadU(d, row + at), unseen), d, row + at);
  }
  FloatVec largest = hn::LoadU(d, row);
  for (int at = kLanes; at < width; at += kLanes) largest = hn::Max(largest, hn::LoadU(d, row + at));
  FloatVec sum = hn::LoadU(d, weight_sum);
  float rescale = 1.0F;
  if (!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, reference + kReferenceSlack)))) {
    const float next = hn::GetLane(hn::MaxOfLanes(d, largest));
    rescale = hn::GetLane(power_of_two(hn::Set(d, reference - next)));
    sum = hn::Mul(sum, hn::Set(d, rescale));
    reference = next;
  }
  const FloatVec minus_reference = hn::Set(d, -reference);
  for (int at = 0; at < width; at += kLanes) {
    const FloatVec weight = power_of_two(hn::Add(hn::LoadU(d, row + at), minus_reference));
    hn::StoreU(weight, d, row + at);
    sum = hn::Add(sum, weight);
  }
  hn::StoreU(sum, d, weight_sum);
  return rescale;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_ATTEND_PREFILL_INL_H_
