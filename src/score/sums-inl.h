// The integers of one record: codes and means times quantised queries. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_SUMS_INL_H_
#undef LOCKS_SCORE_SUMS_INL_H_
#else
#define LOCKS_SCORE_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U8 = hn::ScalableTag<std::uint8_t>;
using U16 = hn::ScalableTag<std::uint16_t>;
using I8 = hn::ScalableTag<std::int8_t>;
using I16 = hn::ScalableTag<std::int16_t>;
using I32 = hn::ScalableTag<std::int32_t>;
inline constexpr int kVectorBytes = static_cast<int>(hn::MaxLanes(U8()));

/// Neighbouring products added; saturates only beyond 32767.
HWY_INLINE hn::Vec<I16> multiply_pairs(hn::Vec<U8> codes, hn::Vec<I8> query) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<I16>{_mm512_maddubs_epi16(codes.raw, query.raw)};
#else
  return hn::Vec<I16>{_mm256_maddubs_epi16(codes.raw, query.raw)};
#endif
}

HWY_INLINE hn::Vec<I32> multiply_pairs(hn::Vec<I16> a, hn::Vec<I16> b) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<I32>{_mm512_madd_epi16(a.raw, b.raw)};
#else
  return hn::Vec<I32>{_mm256_madd_epi16(a.raw, b.raw)};
#endif
}

template <int kBits, int kPart>
HWY_INLINE hn::Vec<U8> unpack(hn::Vec<U8> bytes) {
  const auto shifted = hn::BitCast(U8(), hn::ShiftRight<kBits * kPart>(hn::BitCast(U16(), bytes)));
  return hn::And(shifted, hn::Set(U8(), (1 << kBits) - 1));
}

/// Basis quad x q8 of some heads, [heads] vectors: rank r of the quad in 32-bit lanes 2 r and 2 r + 1 of every 32 bytes.
/// Sixteen bits hold the sum of `kVectors`' products: 15 * 127 * 2 * 8 = 30480 and 3 * 127 * 2 * 32 = 24384.
template <int kHeads, int kBits>
HWY_INLINE void quad_sums(const std::byte* quad, int vectors, const std::byte* repeated, std::int64_t head_stride,
                          hn::Vec<I32> (&sums)[kHeads]) {
  constexpr int kParts = 8 / kBits;
  constexpr int kVectors = kBits == 4 ? 4 : 8;
  const auto query_part = [&](int head, int part) HWY_ATTR {
    return hn::Load(I8(), reinterpret_cast<const std::int8_t*>(repeated + head * head_stride + part * kVectorBytes));
  };
  for (int head = 0; head < kHeads; ++head) sums[head] = hn::Zero(I32());
  for (int first = 0; first < vectors; first += kVectors) {
    hn::Vec<I16> narrow[kHeads];
    for (int head = 0; head < kHeads; ++head) narrow[head] = hn::Zero(I16());
    for (int vector = first; vector < std::min(first + kVectors, vectors); ++vector) {
      const auto bytes = hn::LoadU(U8(), reinterpret_cast<const std::uint8_t*>(quad) + vector * kVectorBytes);
      const auto add_part = [&](auto codes, int part) HWY_ATTR {
        for (int head = 0; head < kHeads; ++head) {
          narrow[head] = hn::Add(narrow[head], multiply_pairs(codes, query_part(head, vector * kParts + part)));
        }
      };
      add_part(unpack<kBits, 0>(bytes), 0);
      add_part(unpack<kBits, 1>(bytes), 1);
      if constexpr (kBits == 2) {
        add_part(unpack<kBits, 2>(bytes), 2);
        add_part(unpack<kBits, 3>(bytes), 3);
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      sums[head] = hn::Add(sums[head], multiply_pairs(narrow[head], hn::Set(I16(), 1)));
    }
  }
}

/// Mean x q16, spread over the lanes: |sum| <= 127 * 32767 * 256 < 2^31.
template <int kHeads>
HWY_INLINE void mean_sums(const std::byte* mean, int vectors, const std::byte* q16, std::int64_t head_stride,
                          hn::Vec<I32> (&sums)[kHeads]) {
  const hn::Rebind<std::int8_t, I16> half;
  for (int head = 0; head < kHeads; ++head) sums[head] = hn::Zero(I32());
  for (int vector = 0; vector < vectors; ++vector) {
    const auto wide = hn::PromoteTo(I16(), hn::LoadU(half, reinterpret_cast<const std::int8_t*>(mean) + vector * kVectorBytes / 2));
    for (int head = 0; head < kHeads; ++head) {
      const auto* query = reinterpret_cast<const std::int16_t*>(q16 + head * head_stride + vector * kVectorBytes);
      sums[head] = hn::Add(sums[head], multiply_pairs(wide, hn::Load(I16(), query)));
    }
  }
}

/// Two quads' sums as one vector of whole ranks, rank r of quad q (0, 1) in lane rank_lane(4 q + r).
HWY_INLINE hn::Vec<I32> gather_ranks(hn::Vec<I32> first, hn::Vec<I32> second) {
#if HWY_TARGET == HWY_AVX3
  const __m512i low = _mm512_shuffle_i64x2(first.raw, second.raw, 0x44);
  const __m512i high = _mm512_shuffle_i64x2(first.raw, second.raw, 0xEE);
  const __m512i both = _mm512_add_epi32(low, high);
  return hn::Vec<I32>{_mm512_add_epi32(both, _mm512_shuffle_epi32(both, _MM_PERM_CDAB))};
#else
  const __m256 a = _mm256_castsi256_ps(first.raw);
  const __m256 b = _mm256_castsi256_ps(second.raw);
  const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
  return hn::Vec<I32>{_mm256_add_epi32(even, odd)};
#endif
}

inline constexpr int kRanksPerVector = 8;

constexpr int rank_lane(int rank) noexcept {
#if HWY_TARGET == HWY_AVX3
  return 2 * rank;
#else
  return rank % 4 / 2 * 4 + rank / 4 * 2 + rank % 2;
#endif
}

/// The lane's rank: the inverse of rank_lane, and whatever is convenient in lanes that no rank owns.
constexpr int lane_rank(int lane) noexcept {
#if HWY_TARGET == HWY_AVX3
  return lane / 2;
#else
  return lane / 4 * 2 + lane % 2 + lane % 4 / 2 * 4;
#endif
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LOCKS_SCORE_SUMS_INL_H_
