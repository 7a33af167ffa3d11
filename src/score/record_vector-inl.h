// One record in vectors of bytes. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_RECORD_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_RECORD_VECTOR_INL_H_
#undef LOCKS_SCORE_RECORD_VECTOR_INL_H_
#else
#define LOCKS_SCORE_RECORD_VECTOR_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "score/shape-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The token whose deviation a lane holds (lanes of all token vectors counted through).
template <class Shape>
constexpr int token_of_lane(int lane) noexcept {
#if HWY_TARGET == HWY_AVX3
  if (Shape::kNibbles) return lane % 2 * 4 + lane / 4 + lane / 2 % 2 * 8;
#endif
  return lane;
}

/// 16 codes of 4 bits, minus 7.5.
HWY_INLINE void unpack_nibbles(const std::byte* from, float* to) {
#if HWY_TARGET == HWY_AVX3
  // The even lanes hold the first four bytes, the odd ones the last, each shifted to a nibble of its own; the table look-up
  // ignores the higher bits.
  std::int64_t eight;
  std::memcpy(&eight, from, sizeof eight);
  const __m512i shifts = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
  const __m512 values =
      _mm512_set_ps(7.5F, 6.5F, 5.5F, 4.5F, 3.5F, 2.5F, 1.5F, 0.5F, -0.5F, -1.5F, -2.5F, -3.5F, -4.5F, -5.5F, -6.5F, -7.5F);
  _mm512_store_ps(to, _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(eight), shifts), values));
#else
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m256 middle = _mm256_set1_ps(7.5F);
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
  _mm256_store_ps(to, _mm256_sub_ps(low, middle));
  _mm256_store_ps(to + 8, _mm256_sub_ps(high, middle));
#endif
}

template <class Shape>
HWY_INLINE void unpack_coefficients(const Shape& shape, const std::byte* record, Coefficients& out) {
  const F32 d;
  const RecordLayout at = shape.layout();
  const std::byte* codes = record + at.coefficients_at;
  for (int rank = 0; rank < Shape::kFormat.rank; ++rank) {
    if constexpr (Shape::kNibbles) {
      unpack_nibbles(codes + 8 * rank, out.codes[rank]);
    } else {
      const hn::Rebind<std::int8_t, F32> bytes;
      for (int token = 0; token < kPageTokens; token += kLanes) {
        const auto* from = reinterpret_cast<const std::int8_t*>(codes + 16 * rank + token);
        hn::Store(hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<F32>(), hn::LoadU(bytes, from))), d,
                  out.codes[rank] + token);
      }
    }
  }
  if constexpr (!Shape::kNibbles) {
    const hn::Rebind<std::uint16_t, F32> words;
    const hn::RebindToUnsigned<F32> du;
    for (int token = 0; token < kPageTokens; token += kLanes) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(record + at.coefficient_scales_at) + token;
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(words, from)))), d, out.token_scales + token);
    }
  }
}

/// The basis scales of ranks 8 kIndex and on, or the scales of their 4-bit coefficients, in the lanes of the ranks. Reads
/// the scales of one or two quads and never a byte more, for a record may end there.
template <int kIndex, class Shape>
HWY_INLINE VF rank_scales(const Shape& shape, const std::byte* record) {
  const int at = Shape::kNibbles ? shape.layout().coefficient_scales_at : shape.layout().basis_scales_at;
  const auto* scales = reinterpret_cast<const __m128i*>(record + at + 16 * kIndex);
  constexpr bool kTwoQuads = 2 * kIndex + 1 < Shape::kFormat.num_quads();
  const __m128i words = kTwoQuads ? _mm_loadu_si128(scales) : _mm_loadl_epi64(scales);
  const __m256 ranks = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
#if HWY_TARGET == HWY_AVX3
  const __m512i lanes = _mm512_set_epi32(7, 6, 7, 6, 5, 4, 5, 4, 3, 2, 3, 2, 1, 0, 1, 0);
  return VF{_mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(ranks))};
#else
  return VF{_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(ranks), 0xD8))};
#endif
}

template <int kQuad, class Shape, int kHeads>
HWY_INLINE void quad_sums(const Shape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  if constexpr (kQuad < Shape::kFormat.num_quads()) {
    constexpr int kBits = Shape::kFormat.quad_bits[kQuad];
    const int vectors = vectors_of(quad_bytes(kBits, shape.dims()));
    const std::byte* repeated = blocks + QueryLayout::repeated_at(kBits, kVectorBytes / 32);
    quad_sums<kHeads, kBits, Shape::kVnni>(record + shape.layout().quad_at[kQuad], vectors, repeated, sums);
  } else {
    for (int head = 0; head < kHeads; ++head) sums[head] = hn::Zero(I32());
  }
}

/// Ranks 8 kIndex to 8 kIndex + 7, by the lanes of gather_ranks.
template <int kIndex, class Shape, int kHeads>
HWY_INLINE void rank_sums(const Shape& shape, const std::byte* record, const std::byte* blocks,
                          VI (&sums)[Ranks<Shape, kHeads>::kVectors]) {
  VI first[kHeads];
  VI second[kHeads];
  quad_sums<2 * kIndex>(shape, record, blocks, first);
  quad_sums<2 * kIndex + 1>(shape, record, blocks, second);
  for (int v = 0; v < Ranks<Shape, kHeads>::kVectors; ++v) {
    VI a[kHeadsPerVector];
    VI b[kHeadsPerVector];
    for (int i = 0; i < kHeadsPerVector; ++i) {
      const int head = std::min(v * kHeadsPerVector + i, kHeads - 1);
      a[i] = first[head];
      b[i] = second[head];
    }
    sums[v] = gather_ranks(a, b);
  }
}

template <class Shape, int kHeads>
HWY_INLINE void mean_sums(const Shape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  const int vectors = vectors_of(2 * shape.dims());
  mean_sums<kHeads, Shape::kVnni>(record + shape.layout().mean_at, vectors, blocks + QueryLayout::kQ16At, sums);
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif  // LOCKS_SCORE_RECORD_VECTOR_INL_H_
