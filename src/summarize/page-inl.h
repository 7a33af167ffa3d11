// From the cache to rotated, scaled deviations from a stored mean. Included by the SIMD sources, once per target
// (dispatch.h).
#if defined(LOCKS_SUMMARIZE_PAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_PAGE_INL_H_
#undef LOCKS_SUMMARIZE_PAGE_INL_H_
#else
#define LOCKS_SUMMARIZE_PAGE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "cpu/rows-inl.h"
#include "locks/paged_cache.h"
#include "locks/rotation.h"
#include "summarize/records.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// a + b and a - b of components `kHalf` apart, kHalf below kLanes: the butterflies of rotate(), which have the same operands.
template <int kHalf>
HWY_INLINE FloatVec butterfly(FloatVec x) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  FloatVec partner;
  if constexpr (kHalf == 1) {
    partner = hn::Shuffle2301(x);
  } else if constexpr (kHalf == 2) {
    partner = hn::Shuffle1032(x);
  } else if constexpr (kHalf == 4) {
    partner = hn::SwapAdjacentBlocks(x);
  } else {
    partner = hn::ConcatLowerUpper(df, x, x);
  }
  const auto upper = hn::And(hn::Iota(du, 0), hn::Set(du, kHalf));
  const auto flip = hn::ShiftLeft<31 - std::countr_zero(static_cast<unsigned>(kHalf))>(upper);
  return hn::Add(partner, hn::Xor(x, hn::BitCast(df, flip)));
}

/// Hadamard transform of `size` (a power of two, at least 16) components with the arithmetic of rotate().
HWY_INLINE void hadamard(float* HWY_RESTRICT x, int size) {
  const FloatTag df;
  for (int i = 0; i < size; i += kLanes) {
    FloatVec v = hn::Load(df, x + i);
    v = butterfly<1>(v);
    v = butterfly<2>(v);
    v = butterfly<4>(v);
    if constexpr (kLanes == 16) v = butterfly<8>(v);
    hn::Store(v, df, x + i);
  }
  const FloatVec scale = hn::Set(df, 1.0F / std::sqrt(static_cast<float>(size)));
  for (int half = kLanes; half < size; half *= 2) {
    const bool last = 2 * half == size;
    for (int block = 0; block < size; block += 2 * half) {
      for (int i = block; i < block + half; i += kLanes) {
        const FloatVec a = hn::Load(df, x + i);
        const FloatVec b = hn::Load(df, x + i + half);
        const FloatVec sum = hn::Add(a, b);
        const FloatVec difference = hn::Sub(a, b);
        hn::Store(last ? hn::Mul(sum, scale) : sum, df, x + i);
        hn::Store(last ? hn::Mul(difference, scale) : difference, df, x + i + half);
      }
    }
  }
  if (size == kLanes) hn::Store(hn::Mul(hn::Load(df, x), scale), df, x);
}
#endif

/// rotate(), bit for bit.
HWY_INLINE void rotate_row(const float* HWY_RESTRICT signs, int head_dim, float* HWY_RESTRICT x) {
#if HWY_TARGET == HWY_SCALAR
  static_cast<void>(signs);
  rotate(std::span(x, static_cast<std::size_t>(head_dim)));
#else
  const FloatTag df;
  for (int dim = 0; dim < head_dim; dim += kLanes) hn::Store(hn::Mul(hn::Load(df, x + dim), hn::Load(df, signs + dim)), df, x + dim);
  for (int first = 0; first < head_dim;) {
    const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(head_dim - first)));
    hadamard(x + first, size);
    first += size;
  }
#endif
}

/// What scaled numbers must be multiplied by to mean what they stand for, and the inverse.
struct PowerOfTwo {
  double up = 1.0;
  double down = 1.0;
};

/// The bf16 nearest to a scaled step, for storage, and what it means to scaled numbers. A step whose inverse could overflow
/// stands for nothing next to components near 1: its inverse is 0, which makes every code the middle one.
struct StoredStep {
  std::uint16_t bits;
  float scaled;
  float inverse;
};
HWY_INLINE StoredStep stored_step(float step, const PowerOfTwo& power) {
  const std::uint16_t bits = summarize_stage::finite_bf16(static_cast<double>(step) * power.up);
  const auto scaled = static_cast<float>(static_cast<double>(bf16_to_float(bits)) * power.down);
  return {bits, scaled, scaled > 1e-30F ? 1.0F / scaled : 0.0F};
}

/// Loads one page of one head, rotates it (`signs` not null) and scales it to components of at most 2 by a power of two, so
/// that no square overflows or vanishes. False if a component is not finite or too large.
HWY_INLINE bool load_page(const PagedCache& cache, std::int64_t page, int kv_head, int head_dim, const float* signs,
                          float* HWY_RESTRICT rows, PowerOfTwo& power) {
  const FloatTag df;
  with_dtype(cache.dtype, [&]<DType kType>() {
    for (int token = 0; token < kPageTokens; ++token) {
      load_row<kType>(cache.token(page, token, kv_head), head_dim, rows + token * head_dim);
    }
  });
  FloatVec largest = hn::Zero(df);
  const FloatVec limit = hn::Set(df, summarize_stage::kLargestComponent);
  auto usable = hn::Eq(limit, limit);
  for (int token = 0; token < kPageTokens; ++token) {
    float* row = rows + token * head_dim;
    if (signs != nullptr) rotate_row(signs, head_dim, row);
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      const FloatVec size = hn::Abs(hn::Load(df, row + dim));
      usable = hn::And(usable, hn::Le(size, limit));
      largest = hn::Max(largest, size);
    }
  }
  if (!hn::AllTrue(df, usable)) return false;
  const float most = hn::GetLane(hn::MaxOfLanes(df, largest));
  const int exponent = most > 0.0F ? std::max(std::ilogb(most), -126) : 0;
  power.up = std::ldexp(1.0, exponent);
  power.down = std::ldexp(1.0, -exponent);
  const FloatVec down = hn::Set(df, static_cast<float>(power.down));
  for (int i = 0; i < kPageTokens * head_dim; i += kLanes) hn::Store(hn::Mul(hn::Load(df, rows + i), down), df, rows + i);
  return true;
}

/// Stores the mean of the rows at `codes` and `scale`, and takes the stored mean off the rows.
HWY_INLINE void store_and_remove_mean(int head_dim, const PowerOfTwo& power, float* HWY_RESTRICT rows, std::byte* codes,
                                      std::byte* scale) {
  const FloatTag df;
  HWY_ALIGN float mean[kMaxHeadDim];
  FloatVec largest = hn::Zero(df);
  for (int dim = 0; dim < head_dim; dim += kLanes) {
    FloatVec sum = hn::Load(df, rows + dim);
    for (int token = 1; token < kPageTokens; ++token) sum = hn::Add(sum, hn::Load(df, rows + token * head_dim + dim));
    sum = hn::Mul(sum, hn::Set(df, 1.0F / kPageTokens));
    hn::Store(sum, df, mean + dim);
    largest = hn::Max(largest, hn::Abs(sum));
  }
  const StoredStep step = stored_step(hn::GetLane(hn::MaxOfLanes(df, largest)) / 127.0F, power);
  store_u16(scale, step.bits);
  const FloatVec inverse = hn::Set(df, step.inverse);
  const hn::Rebind<std::int8_t, FloatTag> d8;
  for (int dim = 0; dim < head_dim; dim += kLanes) {
    FloatVec code = hn::Round(hn::Mul(hn::Load(df, mean + dim), inverse));
    code = hn::Min(hn::Max(code, hn::Set(df, -127.0F)), hn::Set(df, 127.0F));
    const auto bytes = hn::DemoteTo(d8, hn::ConvertTo(hn::RebindToSigned<FloatTag>(), code));
    hn::StoreU(bytes, d8, reinterpret_cast<std::int8_t*>(codes) + dim);
    for (int token = 0; token < kPageTokens; ++token) {
      float* at = rows + token * head_dim + dim;
      hn::Store(hn::NegMulAdd(code, hn::Set(df, step.scaled), hn::Load(df, at)), df, at);
    }
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_PAGE_INL_H_
