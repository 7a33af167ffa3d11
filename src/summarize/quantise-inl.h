// Codes of a basis, of coefficients and of slopes, and what they mean. Included by the SIMD sources, once per target
// (dispatch.h).
#if defined(LOCKS_SUMMARIZE_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_QUANTISE_INL_H_
#undef LOCKS_SUMMARIZE_QUANTISE_INL_H_
#else
#define LOCKS_SUMMARIZE_QUANTISE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "summarize/page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using CodeTag = hn::Rebind<std::uint8_t, FloatTag>;

HWY_INLINE void store_codes(FloatVec code, std::uint8_t* to) {
  hn::StoreU(hn::DemoteTo(CodeTag(), hn::ConvertTo(hn::RebindToSigned<FloatTag>(), code)), CodeTag(), to);
}

HWY_INLINE std::uint64_t load_u64(const std::uint8_t* from) {
  std::uint64_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

HWY_INLINE float largest_size(const float* x, int n) {
  const FloatTag df;
  FloatVec largest = hn::Zero(df);
  for (int i = 0; i < n; i += kLanes) largest = hn::Max(largest, hn::Abs(hn::Load(df, x + i)));
  return hn::GetLane(hn::MaxOfLanes(df, largest));
}

/// Quantises one row of the basis in place: its codes, and what they mean. Uniform with value = (code - zero) * step.
/// Mid-rise codes are floor(v / step) + half, mid-tread round_half_even(v / step) + half, within lowest .. 2 half - 1.
HWY_INLINE void quantise_row(float* HWY_RESTRICT row, int head_dim, float step, float inverse, int half, bool mid_rise,
                             std::uint8_t* HWY_RESTRICT codes) {
  const FloatTag df;
  const FloatVec lowest = hn::Set(df, static_cast<float>(mid_rise ? -half : 1 - half));
  const FloatVec highest = hn::Set(df, static_cast<float>(half - 1));
  for (int dim = 0; dim < head_dim; dim += kLanes) {
    const FloatVec ratio = hn::Mul(hn::Load(df, row + dim), hn::Set(df, inverse));
    FloatVec code = mid_rise ? hn::Floor(ratio) : hn::Round(ratio);
    code = hn::Min(hn::Max(code, lowest), highest);
    store_codes(hn::Add(code, hn::Set(df, static_cast<float>(half))), codes + dim);
    const FloatVec middle = hn::Add(code, hn::Set(df, mid_rise ? 0.5F : 0.0F));
    hn::Store(hn::Mul(middle, hn::Set(df, step)), df, row + dim);
  }
}

/// Packs the codes of a quad's rank as page_summary.h says; `to` is byte 8 * (rank in the quad) of the quad. Codes past
/// head_dim must be 0.
HWY_INLINE void pack_basis_rank(const std::uint8_t* HWY_RESTRICT codes, int head_dim, int bits, std::byte* HWY_RESTRICT to) {
  const int dims_per_block = bits == 4 ? 16 : 32;
  for (int dim = 0; dim < head_dim; dim += dims_per_block, to += 32) {
    std::uint64_t packed = 0;  // eight bytes side by side: codes never cross into a neighbour
    for (int part = 0; part < 8 / bits; ++part) packed |= load_u64(codes + dim + 8 * part) << (bits * part);
    std::memcpy(to, &packed, sizeof packed);
  }
}

/// Quantises the basis [rank, head_dim] in place and stores its codes and scales.
HWY_INLINE void store_basis(const SummaryFormat& format, const RecordLayout& at, int head_dim, float* HWY_RESTRICT basis,
                            std::byte* HWY_RESTRICT record) {
  HWY_ALIGN std::uint8_t codes[kMaxHeadDim + 32];
  for (int r = 0; r < format.rank; ++r) {
    const int bits = format.quad_bits[r / 4];
    const int half = 1 << (bits - 1);
    float* row = basis + r * head_dim;
    float step = basis_step(bits, head_dim);
    float inverse = 1.0F / step;
    if (format.basis_has_scales) {
      const StoredStep scale = stored_step(largest_size(row, head_dim) / static_cast<float>(half - 1), PowerOfTwo());
      store_u16(record + at.basis_scales_at + 2 * r, scale.bits);
      step = scale.scaled;
      inverse = scale.inverse;
    }
    quantise_row(row, head_dim, step, inverse, half, !format.basis_has_scales, codes);
    std::memset(codes + head_dim, 0, 32);
    pack_basis_rank(codes, head_dim, bits, record + at.quad_at[r / 4] + r % 4 * 8);
  }
}

/// The step with the least squared error of mid-rise codes, in which |value| becomes (k + 1/2) step with k < half.
HWY_INLINE StoredStep best_step(const float* HWY_RESTRICT x, int n, int half, const PowerOfTwo& power) {
  constexpr int kTried = static_cast<int>(std::size(summarize_stage::kStepShares));
  const FloatTag df;
  const float full = largest_size(x, n) / (static_cast<float>(half) - 0.5F);
  StoredStep steps[kTried];
  FloatVec sums[kTried];
  for (int i = 0; i < kTried; ++i) {
    steps[i] = stored_step(summarize_stage::kStepShares[i] * full, power);
    sums[i] = hn::Zero(df);
  }
  const FloatVec highest = hn::Set(df, static_cast<float>(half) - 0.5F);
  for (int at = 0; at < n; at += kLanes) {
    const FloatVec value = hn::Abs(hn::Load(df, x + at));
    for (int i = 0; i < kTried; ++i) {
      const FloatVec below = hn::Floor(hn::Mul(value, hn::Set(df, steps[i].inverse)));
      const FloatVec middle = hn::Min(hn::Add(below, hn::Set(df, 0.5F)), highest);
      const FloatVec missed = hn::NegMulAdd(middle, hn::Set(df, steps[i].scaled), value);
      sums[i] = hn::MulAdd(missed, missed, sums[i]);
    }
  }
  int best = 0;
  float least = sum_lanes(sums[0]);
  for (int i = 1; i < kTried; ++i) {
    const float error = sum_lanes(sums[i]);
    best = error < least ? i : best;
    least = std::min(error, least);
  }
  return steps[best];
}

/// Quantises the coefficients [rank, 16] in place and stores their codes and scales.
HWY_INLINE void store_coefficients(const SummaryFormat& format, const RecordLayout& at, const PowerOfTwo& power,
                                   float* HWY_RESTRICT c, std::byte* HWY_RESTRICT record) {
  if (format.coefficient_bits == 8) {
    Tokens largest = zero_tokens();
    for (int r = 0; r < format.rank; ++r) {
      const Tokens row = load_tokens(c + r * kPageTokens);
      for (int i = 0; i < Tokens::kVecs; ++i) largest.part[i] = hn::Max(largest.part[i], hn::Abs(row.part[i]));
    }
    HWY_ALIGN float step[kPageTokens];
    HWY_ALIGN float inverse[kPageTokens];
    store_tokens(largest, step);
    for (int token = 0; token < kPageTokens; ++token) {
      const StoredStep stored = stored_step(step[token] / 127.0F, power);
      store_u16(record + at.coefficient_scales_at + 2 * token, stored.bits);
      step[token] = stored.scaled;
      inverse[token] = stored.inverse;
    }
    const FloatTag df;
    const hn::Rebind<std::int8_t, FloatTag> d8;
    for (int r = 0; r < format.rank; ++r) {
      for (int token = 0; token < kPageTokens; token += kLanes) {
        float* lanes = c + r * kPageTokens + token;
        FloatVec code = hn::Round(hn::Mul(hn::Load(df, lanes), hn::Load(df, inverse + token)));
        code = hn::Min(hn::Max(code, hn::Set(df, -127.0F)), hn::Set(df, 127.0F));
        hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(hn::RebindToSigned<FloatTag>(), code)), d8,
                   reinterpret_cast<std::int8_t*>(record) + at.coefficients_at + r * kPageTokens + token);
        hn::Store(hn::Mul(code, hn::Load(df, step + token)), df, lanes);
      }
    }
    return;
  }
  HWY_ALIGN std::uint8_t codes[kPageTokens];
  for (int r = 0; r < format.rank; ++r) {
    float* row = c + r * kPageTokens;
    const StoredStep step = best_step(row, kPageTokens, 8, power);
    store_u16(record + at.coefficient_scales_at + 2 * r, step.bits);
    quantise_row(row, kPageTokens, step.scaled, step.inverse, 8, true, codes);
    const std::uint64_t packed = load_u64(codes) | load_u64(codes + 8) << 4;
    std::memcpy(record + at.coefficients_at + 8 * r, &packed, sizeof packed);
  }
}

/// Quantises one rank's slopes [head_dim] and stores codes (head_dim / 4 bytes at `to`) and scale.
HWY_INLINE void store_slopes(float* HWY_RESTRICT slopes, int head_dim, const PowerOfTwo& power, std::byte* to,
                             std::byte* scale) {
  HWY_ALIGN std::uint8_t codes[kMaxHeadDim];
  const StoredStep step = best_step(slopes, head_dim, 2, power);
  store_u16(scale, step.bits);
  quantise_row(slopes, head_dim, step.scaled, step.inverse, 2, true, codes);
  const int row_bytes = head_dim / 4;
  for (int i = 0; i < row_bytes; i += 4) {
    std::uint32_t packed = 0;
    for (int part = 0; part < 4; ++part) {
      std::uint32_t four;
      std::memcpy(&four, codes + part * row_bytes + i, sizeof four);
      packed |= four << (2 * part);
    }
    std::memcpy(to + i, &packed, sizeof packed);
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_QUANTISE_INL_H_
