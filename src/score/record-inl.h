// One record against some query heads: the deviations of its 16 tokens. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_RECORD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_RECORD_INL_H_
#undef LOCKS_SCORE_RECORD_INL_H_
#else
#define LOCKS_SCORE_RECORD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/half.h"
#include "locks/page_summary.h"
#include "score/mass-inl.h"
#include "score/query.h"
#include "score/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kTokenVectors = kPageTokens / kLanes;

#if HWY_TARGET == HWY_SCALAR
inline constexpr int kRanksPerVector = 1;
constexpr int rank_lane(int) noexcept { return 0; }
constexpr int lane_rank(int) noexcept { return 0; }
#endif
inline constexpr int kRankVectors = kMaxRank / kRanksPerVector;
inline constexpr int kRankLanes = kRankVectors * kLanes;

constexpr int rank_position(int rank) noexcept {
  return rank / kRanksPerVector * kLanes + rank_lane(rank % kRanksPerVector);
}

/// What does not depend on the page: where things lie, and how many vectors they are.
struct RecordShape {
  RecordShape(const SummaryFormat& summary_format, int dims, const QueryLayout& query_layout) noexcept
      : format(summary_format), at(record_layout(summary_format, dims)), query(query_layout), head_dim(dims) {
    for (int rank = 0; rank < format.rank; ++rank) {
      step[rank] = format.basis_has_scales ? 1.0F : basis_step(format.quad_bits[rank / 4], dims);
    }
  }
  const SummaryFormat& format;
  RecordLayout at;
  QueryLayout query;
  int head_dim;
  float step[kMaxRank] = {};  // without the basis scales
};

/// Some query heads of one group, whose blocks lie one after the other.
template <int kHeads>
struct Heads {
  Heads(const RecordShape& shape, const std::byte* first_block, float factor) noexcept : blocks(first_block) {
    for (int head = 0; head < kHeads; ++head) {
      QueryScales scales;
      std::memcpy(&scales, blocks + head * shape.query.bytes, sizeof scales);
      for (int position = 0; position < kRankLanes; ++position) {
        const int rank = position / kLanes * kRanksPerVector + lane_rank(position % kLanes);
        const bool used = rank < shape.format.rank;
        zero[head][position] = used ? shape.format.basis_zero(rank / 4) * static_cast<float>(scales.sum8) : 0.0F;
        step[head][position] = used ? factor * scales.scale8 * shape.step[rank] : 0.0F;
      }
      mean_factor[head] = scales.scale16;
    }
  }
  const std::byte* blocks;
  alignas(64) float zero[kHeads][kRankLanes];  // zero_r sum_i q8_i, exactly
  alignas(64) float step[kHeads][kRankLanes];  // all factors of z_r that the page does not know
  float mean_factor[kHeads];
};

/// The coefficients of one record, unpacked for all heads of its group.
struct Coefficients {
  alignas(64) float codes[kMaxRank][kPageTokens];  // tokens in the order of token_of_lane
  alignas(64) float token_scales[kPageTokens];     // of 8-bit coefficients
  alignas(64) float rank_scales[kRankLanes];       // basis scales, or scales of 4-bit coefficients
};

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void unpack_coefficients(const RecordShape& shape, const std::byte* record, Coefficients& out) {
  const RecordLayout& at = shape.at;
  const bool bytes = shape.format.coefficient_bits == 8;
  for (int rank = 0; rank < shape.format.rank; ++rank) {
    for (int token = 0; token < kPageTokens; ++token) {
      const int byte = std::to_integer<int>(record[at.coefficients_at + rank * (bytes ? 16 : 8) + (bytes ? token : token % 8)]);
      out.codes[rank][token] = bytes ? static_cast<float>(static_cast<std::int8_t>(byte))
                                     : static_cast<float>(byte >> (token < 8 ? 0 : 4) & 15) - 7.5F;
    }
    const int scale_at = (bytes ? at.basis_scales_at : at.coefficient_scales_at) + 2 * rank;
    out.rank_scales[rank] = bf16_to_float(load_u16(record + scale_at));
  }
  for (int token = 0; bytes && token < kPageTokens; ++token) {
    out.token_scales[token] = bf16_to_float(load_u16(record + at.coefficient_scales_at + 2 * token));
  }
}
constexpr int token_of_lane(const RecordShape&, int lane) noexcept { return lane; }

template <int kHeads>
HWY_INLINE void rank_sums(const RecordShape& shape, const std::byte* record, const std::byte* blocks, int rank, VI (&sums)[kHeads]) {
  const int bits = shape.format.quad_bits[rank / 4];
  const int parts = 8 / bits;
  for (int head = 0; head < kHeads; ++head) {
    const auto* q8 = reinterpret_cast<const std::int8_t*>(blocks + head * shape.query.bytes + shape.query.q8_at);
    std::int32_t sum = 0;
    for (int dim = 0; dim < shape.head_dim; ++dim) {
      const int at = shape.at.quad_at[rank / 4] + dim / (8 * parts) * 32 + rank % 4 * 8 + dim % 8;
      sum += (std::to_integer<int>(record[at]) >> (dim / 8 % parts * bits) & ((1 << bits) - 1)) * q8[dim];
    }
    sums[head] = hn::Set(hn::RebindToSigned<F32>(), sum);
  }
}

template <int kHeads>
HWY_INLINE void mean_sums(const RecordShape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  for (int head = 0; head < kHeads; ++head) {
    const auto* q16 = reinterpret_cast<const std::int16_t*>(blocks + head * shape.query.bytes + shape.query.q16_at);
    std::int32_t sum = 0;
    for (int dim = 0; dim < shape.head_dim; ++dim) sum += static_cast<std::int8_t>(record[shape.at.mean_at + dim]) * q16[dim];
    sums[head] = hn::Set(hn::RebindToSigned<F32>(), sum);
  }
}

#else

/// Four bf16 scales of a quad as floats, or eight of two: never a byte more, for a record may end there.
HWY_INLINE __m256 load_scales(const std::byte* first, const std::byte* second) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(first));
  const __m128i high = second == nullptr ? _mm_setzero_si128() : _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi64(low, high)), 16));
}

/// Ranks in order -> lanes by rank_lane.
HWY_INLINE VF spread_ranks(__m256 ranks) {
#if HWY_TARGET == HWY_AVX3
  const __m512i lanes = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return VF{_mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(ranks))};
#else
  return VF{_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(ranks), 0xD8))};
#endif
}

/// 16 codes of 4 bits, minus 7.5.
HWY_INLINE void unpack_nibbles(const std::byte* from, float* to) {
#if HWY_TARGET == HWY_AVX3
  // The even lanes hold the first four bytes, the odd ones the last, each shifted to a nibble of its own; the table look-up
  // ignores the higher bits.
  std::int64_t eight;
  std::memcpy(&eight, from, sizeof eight);
  const __m512i shifts = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
  const __m512 values = _mm512_set_ps(7.5F, 6.5F, 5.5F, 4.5F, 3.5F, 2.5F, 1.5F, 0.5F, -0.5F, -1.5F, -2.5F, -3.5F, -4.5F, -5.5F,
                                      -6.5F, -7.5F);
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

/// The token whose deviation a lane holds (lanes of all token vectors counted through).
constexpr int token_of_lane(const RecordShape& shape, int lane) noexcept {
#if HWY_TARGET == HWY_AVX3
  if (shape.format.coefficient_bits == 4) return lane % 2 * 4 + lane / 4 + lane / 2 % 2 * 8;
#endif
  return lane + 0 * shape.head_dim;
}

HWY_INLINE void unpack_coefficients(const RecordShape& shape, const std::byte* record, Coefficients& out) {
  const F32 d;
  const RecordLayout& at = shape.at;
  const bool nibbles = shape.format.coefficient_bits == 4;
  const std::byte* codes = record + at.coefficients_at;
  for (int rank = 0; rank < shape.format.rank; ++rank) {
    if (nibbles) {
      unpack_nibbles(codes + 8 * rank, out.codes[rank]);
      continue;
    }
    const hn::Rebind<std::int8_t, F32> bytes;
    for (int token = 0; token < kPageTokens; token += kLanes) {
      const auto* from = reinterpret_cast<const std::int8_t*>(codes + 16 * rank + token);
      hn::Store(hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<F32>(), hn::LoadU(bytes, from))), d, out.codes[rank] + token);
    }
  }
  const std::byte* rank_scales = record + (nibbles ? at.coefficient_scales_at : at.basis_scales_at);
  for (int quad = 0; quad < shape.format.num_quads(); quad += 2) {
    const std::byte* second = quad + 1 < shape.format.num_quads() ? rank_scales + 8 * quad + 8 : nullptr;
    hn::Store(spread_ranks(load_scales(rank_scales + 8 * quad, second)), d, out.rank_scales + quad / 2 * kLanes);
  }
  if (nibbles) return;
  const hn::Rebind<std::uint16_t, F32> words;
  const hn::RebindToUnsigned<F32> du;
  for (int token = 0; token < kPageTokens; token += kLanes) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(record + at.coefficient_scales_at) + token;
    hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(words, from)))), d, out.token_scales + token);
  }
}

template <int kHeads>
HWY_INLINE void quad_sums(const RecordShape& shape, const std::byte* record, const std::byte* blocks, int quad, VI (&sums)[kHeads]) {
  const std::byte* codes = record + shape.at.quad_at[quad];
  if (shape.format.quad_bits[quad] == 4) {
    const int vectors = (quad_bytes(4, shape.head_dim) + kVectorBytes - 1) / kVectorBytes;
    quad_sums<kHeads, 4>(codes, vectors, blocks + shape.query.repeated4_at, shape.query.bytes, sums);
  } else {
    const int vectors = (quad_bytes(2, shape.head_dim) + kVectorBytes - 1) / kVectorBytes;
    quad_sums<kHeads, 2>(codes, vectors, blocks + shape.query.repeated2_at, shape.query.bytes, sums);
  }
}

/// Ranks 8 i to 8 i + 7.
template <int kHeads>
HWY_INLINE void rank_sums(const RecordShape& shape, const std::byte* record, const std::byte* blocks, int i, VI (&sums)[kHeads]) {
  VI second[kHeads];
  quad_sums(shape, record, blocks, 2 * i, sums);
  if (2 * i + 1 < shape.format.num_quads()) {
    quad_sums(shape, record, blocks, 2 * i + 1, second);
  } else {
    for (int head = 0; head < kHeads; ++head) second[head] = hn::Zero(I32());
  }
  for (int head = 0; head < kHeads; ++head) sums[head] = gather_ranks(sums[head], second[head]);
}

template <int kHeads>
HWY_INLINE void mean_sums(const RecordShape& shape, const std::byte* record, const std::byte* blocks, VI (&sums)[kHeads]) {
  const int vectors = (2 * shape.head_dim + kVectorBytes - 1) / kVectorBytes;
  mean_sums<kHeads>(record + shape.at.mean_at, vectors, blocks + shape.query.q16_at, shape.query.bytes, sums);
}

#endif  // HWY_TARGET == HWY_SCALAR

/// dev_t times `factor` of the heads; lane order by token_of_lane.
template <int kHeads>
HWY_INLINE void deviations(const RecordShape& shape, const std::byte* record, const Heads<kHeads>& heads,
                           VF (&out)[kHeads][kTokenVectors]) {
  const F32 d;
  Coefficients coefficients;
  unpack_coefficients(shape, record, coefficients);
  alignas(64) float z[kHeads][kRankLanes];
  for (int i = 0; i * kRanksPerVector < shape.format.rank; ++i) {
    VI sums[kHeads];
    rank_sums(shape, record, heads.blocks, i, sums);
    const VF scale = hn::Load(d, coefficients.rank_scales + i * kLanes);
    for (int head = 0; head < kHeads; ++head) {
      const VF centred = hn::Sub(hn::ConvertTo(d, sums[head]), hn::Load(d, heads.zero[head] + i * kLanes));
      hn::Store(hn::Mul(hn::Mul(centred, hn::Load(d, heads.step[head] + i * kLanes)), scale), d, z[head] + i * kLanes);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int v = 0; v < kTokenVectors; ++v) out[head][v] = hn::Zero(d);
  }
  for (int rank = 0; rank < shape.format.rank; ++rank) {
    const int position = rank_position(rank);
    for (int v = 0; v < kTokenVectors; ++v) {
      const VF codes = hn::Load(d, coefficients.codes[rank] + v * kLanes);
      for (int head = 0; head < kHeads; ++head) out[head][v] = hn::MulAdd(hn::Set(d, z[head][position]), codes, out[head][v]);
    }
  }
  if (shape.format.coefficient_bits == 4) return;
  for (int head = 0; head < kHeads; ++head) {
    for (int v = 0; v < kTokenVectors; ++v) out[head][v] = hn::Mul(out[head][v], hn::Load(d, coefficients.token_scales + v * kLanes));
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_RECORD_INL_H_
