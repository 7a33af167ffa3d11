// One record in plain loops: the one-lane target. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_RECORD_SCALAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_RECORD_SCALAR_INL_H_
#undef LOCKS_SCORE_RECORD_SCALAR_INL_H_
#else
#define LOCKS_SCORE_RECORD_SCALAR_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/half.h"
#include "score/shape-inl.h"

#if HWY_TARGET == HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Shape>
constexpr int token_of_lane(int lane) noexcept {
  return lane;
}

template <class Shape>
HWY_INLINE void unpack_coefficients(const Shape& shape, const std::byte* record, Coefficients& out) {
  const RecordLayout at = shape.layout();
  for (int token = 0; token < kPageTokens; ++token) {
    for (int rank = 0; rank < Shape::kFormat.rank; ++rank) {
      const std::byte* codes = record + at.coefficients_at + rank * (Shape::kNibbles ? 8 : 16);
      const int nibble = std::to_integer<int>(codes[token % 8]) >> (token < 8 ? 0 : 4) & 15;
      out.codes[rank][token] = Shape::kNibbles
                                   ? static_cast<float>(nibble) - 7.5F
                                   : static_cast<float>(static_cast<std::int8_t>(codes[Shape::kNibbles ? 0 : token]));
    }
    if (!Shape::kNibbles) out.token_scales[token] = bf16_to_float(load_u16(record + at.coefficient_scales_at + 2 * token));
  }
}

template <int kRank, class Shape>
HWY_INLINE VF rank_scales(const Shape& shape, const std::byte* record) {
  const int at = Shape::kNibbles ? shape.layout().coefficient_scales_at : shape.layout().basis_scales_at;
  return hn::Set(F32(), bf16_to_float(load_u16(record + at + 2 * kRank)));
}

template <int kRank, class Shape, int kHeads>
HWY_INLINE void rank_sums(const Shape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  constexpr int kBits = Shape::kFormat.quad_bits[kRank / 4];
  constexpr int kParts = 8 / kBits;
  const std::byte* codes = record + shape.layout().quad_at[kRank / 4] + kRank % 4 * 8;
  for (int head = 0; head < kHeads; ++head) {
    const auto* q8 = reinterpret_cast<const std::int8_t*>(blocks + head * QueryLayout::kBytes + QueryLayout::kQ8At);
    std::int32_t sum = 0;
    for (int dim = 0; dim < shape.dims(); ++dim) {
      const int byte = std::to_integer<int>(codes[dim / (8 * kParts) * 32 + dim % 8]);
      sum += (byte >> (dim / 8 % kParts * kBits) & ((1 << kBits) - 1)) * q8[dim];
    }
    sums[head] = hn::Set(hn::RebindToSigned<F32>(), sum);
  }
}

template <class Shape, int kHeads>
HWY_INLINE void mean_sums(const Shape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  for (int head = 0; head < kHeads; ++head) {
    const auto* q16 = reinterpret_cast<const std::int16_t*>(blocks + head * QueryLayout::kBytes + QueryLayout::kQ16At);
    std::int32_t sum = 0;
    for (int dim = 0; dim < shape.dims(); ++dim)
      sum += static_cast<std::int8_t>(record[shape.layout().mean_at + dim]) * q16[dim];
    sums[head] = hn::Set(hn::RebindToSigned<F32>(), sum);
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_SCALAR
#endif  // LOCKS_SCORE_RECORD_SCALAR_INL_H_
