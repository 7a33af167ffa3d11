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
#include "score/query.h"

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

/// Vectors that so many bytes of a record or query fill. The last may run over what follows in the record.
constexpr int vectors_of(int bytes) noexcept { return (bytes + kVectorBytes - 1) / kVectorBytes; }

/// Products of neighbours added; saturates only beyond 32767.
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

#if HWY_TARGET == HWY_AVX3
/// sum += four neighbouring products. Written out, because these instructions are not part of the target: the caller
/// has asked the processor.
HWY_INLINE hn::Vec<I32> vnni_add(hn::Vec<I32> sum, hn::Vec<U8> codes, const std::byte* query) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "m"(*reinterpret_cast<const __m512i*>(query)));
  return sum;
}
HWY_INLINE hn::Vec<I32> vnni_add(hn::Vec<I32> sum, hn::Vec<I16> mean, const std::byte* query) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(mean.raw), "m"(*reinterpret_cast<const __m512i*>(query)));
  return sum;
}
#endif

template <int kBits, int kPart>
HWY_INLINE hn::Vec<U8> unpack(hn::Vec<U8> bytes) {
  const auto shifted = hn::BitCast(U8(), hn::ShiftRight<kBits * kPart>(hn::BitCast(U16(), bytes)));
  return hn::And(shifted, hn::Set(U8(), (1 << kBits) - 1));
}

/// Calls add(codes, part) for what each bit pair or half byte of a vector holds.
template <int kBits, class F>
HWY_INLINE void for_each_part(const std::byte* quad, int vector, F add) {
  const auto bytes = hn::LoadU(U8(), reinterpret_cast<const std::uint8_t*>(quad) + vector * kVectorBytes);
  add(unpack<kBits, 0>(bytes), vector * 8 / kBits);
  add(unpack<kBits, 1>(bytes), vector * 8 / kBits + 1);
  if constexpr (kBits == 2) {
    add(unpack<kBits, 2>(bytes), vector * 8 / kBits + 2);
    add(unpack<kBits, 3>(bytes), vector * 8 / kBits + 3);
  }
}

/// Basis quad x q8 of some heads: rank r of the quad in 32-bit lanes 2 r and 2 r + 1 of every 32 bytes. `repeated` is
/// the first head's (query.h), the next head's lies a block of the workspace on.
template <int kHeads, int kBits, bool kVnni>
HWY_INLINE void quad_sums(const std::byte* quad, int vectors, const std::byte* repeated, hn::Vec<I32> (&sums)[kHeads]) {
  for (int head = 0; head < kHeads; ++head) sums[head] = hn::Zero(I32());
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    for (int vector = 0; vector < vectors; ++vector) {
      for_each_part<kBits>(quad, vector, [&](auto codes, int part) HWY_ATTR {
        for (int head = 0; head < kHeads; ++head) {
          sums[head] = vnni_add(sums[head], codes, repeated + head * QueryLayout::kBytes + part * kVectorBytes);
        }
      });
    }
    return;
  }
#endif
  // Sixteen bits hold the products of so many vectors: 15 * 127 * 2 * 8 = 30480, and 3 * 127 * 2 * 32 = 24384.
  constexpr int kVectors = kBits == 4 ? 4 : 8;
  for (int first = 0; first < vectors; first += kVectors) {
    hn::Vec<I16> narrow[kHeads];
    for (int head = 0; head < kHeads; ++head) narrow[head] = hn::Zero(I16());
    for (int vector = first; vector < std::min(first + kVectors, vectors); ++vector) {
      for_each_part<kBits>(quad, vector, [&](auto codes, int part) HWY_ATTR {
        for (int head = 0; head < kHeads; ++head) {
          const auto* query =
              reinterpret_cast<const std::int8_t*>(repeated + head * QueryLayout::kBytes + part * kVectorBytes);
          narrow[head] = hn::Add(narrow[head], multiply_pairs(codes, hn::Load(I8(), query)));
        }
      });
    }
    for (int head = 0; head < kHeads; ++head) {
      sums[head] = hn::Add(sums[head], multiply_pairs(narrow[head], hn::Set(I16(), 1)));
    }
  }
}

/// Mean x q16, spread over the lanes: |sum| <= 127 * 32767 * 256 < 2^31.
template <int kHeads, bool kVnni>
HWY_INLINE void mean_sums(const std::byte* mean, int vectors, const std::byte* q16, hn::Vec<I32> (&sums)[kHeads]) {
  const hn::Rebind<std::int8_t, I16> half;
  for (int head = 0; head < kHeads; ++head) sums[head] = hn::Zero(I32());
  for (int vector = 0; vector < vectors; ++vector) {
    const auto* bytes = reinterpret_cast<const std::int8_t*>(mean) + vector * kVectorBytes / 2;
    const auto wide = hn::PromoteTo(I16(), hn::LoadU(half, bytes));
    for (int head = 0; head < kHeads; ++head) {
      const std::byte* query = q16 + head * QueryLayout::kBytes + vector * kVectorBytes;
#if HWY_TARGET == HWY_AVX3
      if constexpr (kVnni) {
        sums[head] = vnni_add(sums[head], wide, query);
        continue;
      }
#endif
      sums[head] = hn::Add(sums[head], multiply_pairs(wide, hn::Load(I16(), reinterpret_cast<const std::int16_t*>(query))));
    }
  }
}

// Sums of whole ranks: a vector has the eight ranks of two quads, of as many heads as fit.
inline constexpr int kRanksPerVector = 8;
inline constexpr int kHeadsPerVector = kVectorBytes / 32;

/// The rank (0..7) whose sum a lane of gather_ranks holds.
constexpr int rank_of_lane(int lane) noexcept {
#if HWY_TARGET == HWY_AVX3
  return lane / 4 * 2 + lane % 2;
#else
  return lane / 4 * 2 + lane % 2 + lane % 4 / 2 * 4;
#endif
}
/// The lane of a rank (0..7) and head (below kHeadsPerVector).
constexpr int lane_of_rank(int rank, int head) noexcept {
#if HWY_TARGET == HWY_AVX3
  return rank / 2 * 4 + head * 2 + rank % 2;
#else
  return rank % 4 / 2 * 4 + rank / 4 * 2 + rank % 2 + 0 * head;
#endif
}

/// first, second [heads]: the sums of the two quads.
HWY_INLINE hn::Vec<I32> gather_ranks(const hn::Vec<I32> (&first)[kHeadsPerVector],
                                     const hn::Vec<I32> (&second)[kHeadsPerVector]) {
#if HWY_TARGET == HWY_AVX3
  const auto add_halves = [&](int head) HWY_ATTR {
    const __m512i low = _mm512_shuffle_i64x2(first[head].raw, second[head].raw, 0x44);
    const __m512i high = _mm512_shuffle_i64x2(first[head].raw, second[head].raw, 0xEE);
    return _mm512_castsi512_ps(_mm512_add_epi32(low, high));
  };
  const __m512 a = add_halves(0);
  const __m512 b = add_halves(1);
  const __m512i even = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
  const __m512i odd = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD));
  return hn::Vec<I32>{_mm512_add_epi32(even, odd)};
#else
  const __m256 a = _mm256_castsi256_ps(first[0].raw);
  const __m256 b = _mm256_castsi256_ps(second[0].raw);
  const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
  return hn::Vec<I32>{_mm256_add_epi32(even, odd)};
#endif
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LOCKS_SCORE_SUMS_INL_H_
