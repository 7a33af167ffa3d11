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

#include "cpu/rows-inl.h"
#include "locks/paged_cache.h"
#include "summarize/records.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// a + b and a - b of components `kHalf` apart, kHalf below kLanes: the butterflies of rotate(), which have the same
/// operands.
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
#endif

/// What a page turns out to hold while it is loaded.
struct Seen {
  FloatVec largest;
  hn::Mask<FloatTag> usable;

  HWY_INLINE void add(FloatVec x) {
    const FloatVec size = hn::Abs(x);
    usable = hn::And(usable, hn::Le(size, hn::Set(FloatTag(), summarize_stage::kLargestComponent)));
    largest = hn::Max(largest, size);
  }
};

/// The butterflies of whole vectors; a level a call, so that the compiler unrolls it.
template <int kHalf, int kVecs>
HWY_INLINE void butterflies_between(FloatVec (&x)[kVecs]) {
  if constexpr (kHalf < kVecs) {
    for (int i = 0; i < kVecs; ++i) {
      if ((i & kHalf) != 0) continue;
      const FloatVec a = x[i];
      x[i] = hn::Add(a, x[i + kHalf]);
      x[i + kHalf] = hn::Sub(a, x[i + kHalf]);
    }
    butterflies_between<2 * kHalf>(x);
  }
}

/// Loads dimensions [first, first + kSize) of a row and rotates them: the arithmetic of rotate(), so the same bits.
template <DType kType, int kSize>
HWY_INLINE void load_rotated_block(const std::byte* row, int first, const float* HWY_RESTRICT signs, float* HWY_RESTRICT out,
                                   Seen& seen) {
  constexpr int kVecs = kSize / kLanes;
  const FloatTag df;
  FloatVec x[kVecs];
  for (int i = 0; i < kVecs; ++i) {
    x[i] = hn::Mul(load_values<kType>(row, first + i * kLanes), hn::Load(df, signs + first + i * kLanes));
#if HWY_TARGET != HWY_SCALAR
    x[i] = butterfly<4>(butterfly<2>(butterfly<1>(x[i])));
    if constexpr (kLanes == 16) x[i] = butterfly<8>(x[i]);
#endif
  }
  butterflies_between<1, kVecs>(x);
  const FloatVec scale = hn::Set(df, 1.0F / std::sqrt(static_cast<float>(kSize)));
  for (int i = 0; i < kVecs; ++i) {
    x[i] = hn::Mul(x[i], scale);
    seen.add(x[i]);
    hn::Store(x[i], df, out + first + i * kLanes);
  }
}

template <DType kType>
HWY_INLINE void load_rotated_row(const std::byte* row, int head_dim, const float* signs, float* HWY_RESTRICT out,
                                 Seen& seen) {
  for (int first = 0; first < head_dim;) {
    const int left = head_dim - first;
    if (left >= 256) {
      load_rotated_block<kType, 256>(row, first, signs, out, seen);
      first += 256;
    } else if (left >= 128) {
      load_rotated_block<kType, 128>(row, first, signs, out, seen);
      first += 128;
    } else if (left >= 64) {
      load_rotated_block<kType, 64>(row, first, signs, out, seen);
      first += 64;
    } else if (left >= 32) {
      load_rotated_block<kType, 32>(row, first, signs, out, seen);
      first += 32;
    } else {
      load_rotated_block<kType, 16>(row, first, signs, out, seen);
      first += 16;
    }
  }
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

/// Loads one page of one head, rotates it (`signs` not null), and scales it by a power of two if its components are far from
/// 1, so that no square overflows or vanishes. False if a component is not finite or too large.
inline HWY_NOINLINE bool load_summarized_page(const PagedCache& cache, std::int64_t page, int kv_head, int head_dim,
                                              const float* signs, float* HWY_RESTRICT rows, PowerOfTwo& power) {
  const FloatTag df;
  Seen seen{hn::Zero(df), hn::Eq(hn::Zero(df), hn::Zero(df))};
  with_dtype(cache.dtype, [&]<DType kType>() {
    Seen here = seen;  // stays in registers, which a captured one does not
    for (int token = 0; token < kPageTokens; ++token) {
      const std::byte* from = cache.token(page, token, kv_head);
      float* row = rows + token * head_dim;
      if (signs != nullptr) {
        load_rotated_row<kType>(from, head_dim, signs, row, here);
        continue;
      }
      load_row<kType>(from, head_dim, row);
      for (int dim = 0; dim < head_dim; dim += kLanes) here.add(hn::Load(df, row + dim));
    }
    seen = here;
  });
  if (!hn::AllTrue(df, seen.usable)) return false;
  const float most = hn::GetLane(hn::MaxOfLanes(df, seen.largest));
  constexpr float kNearOne = 0x1p16F;
  if ((most > 1.0F / kNearOne && most < kNearOne) || most == 0.0F) return true;
  const int exponent = std::max(std::ilogb(most), -126);
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
