// From a record in shared memory and quantised queries to the deviations of its tokens, by tensor cores.
//
//   codes . q8      rows are ranks, columns query heads. A page fills 8 rows (a half of a tile) with two quads; with a third
//                   quad, the other half too. Rows of ranks that do not exist are zero.
//   z               scaled in fp32, split in two bf16, transposed in registers
//   coefficients z  rows are the 16 tokens, columns query heads; exact coefficients meet both parts of z
//   mean . q16      rows are 8 pages; q16 is two bytes
//
// Lane 4 g + j of a warp holds row g (and g + 8), or column g, of a fragment; ptx.cuh has the whole story. It takes 16
// dimensions of a unit of 64 for itself, always the same for records and queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/args.h"
#include "cuda/ptx.cuh"
#include "cuda/query.cuh"
#include "locks/page_summary.h"

namespace locks::cuda {

template <FormatId kId>
constexpr SummaryFormat format_of() noexcept {
  if constexpr (kId == FormatId::kPaper) return kPaper;
  if constexpr (kId == FormatId::kGraded8) return kGraded8;
  if constexpr (kId == FormatId::kGraded12) return kGraded12;
  if constexpr (kId == FormatId::kGraded4) return kGraded4;
}

__device__ __forceinline__ float bf16_at(const std::byte* at) {
  return __uint_as_float(static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(at)) << 16);
}
template <class T>
__device__ __forceinline__ T load(const std::byte* at) {
  return *reinterpret_cast<const T*>(at);
}

/// Two floats as sums of two bf16 each: 2^-17 of them is lost.
struct Split {
  std::uint32_t high;
  std::uint32_t low;
};
__device__ __forceinline__ Split split(float a, float b) {
  const std::uint32_t high = ptx::pack_bf16(a, b);
  return {high, ptx::pack_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xFFFF0000U))};
}

constexpr std::uint32_t kOne = 0x3F803F80U;       // bf16 1, twice
constexpr std::uint32_t kMinusOne = 0xBF80BF80U;  // bf16 -1, twice
constexpr std::uint32_t kBias = 0x43004300U;      // bf16 128, twice: its last bit is worth 1

/// 2 code - 15 in bf16 from codes that stand at bits 1 to 4 of each half. `bias` is kBias; in a register, which the compiler
/// makes no constant of, a mask and it are one instruction.
__device__ __forceinline__ std::uint32_t nibbles_to_bf16(std::uint32_t doubled, std::uint32_t bias) {
  constexpr std::uint32_t kMinus143 = 0xC30FC30FU;
  return ptx::fma_bf16x2((doubled & 0x001E001EU) | bias, kOne, kMinus143);
}
/// Signed bytes in the low bits of each half: 128 + (low seven bits), less 128 or, for a set sign, 256.
__device__ __forceinline__ std::uint32_t bytes_to_bf16(std::uint32_t bytes, std::uint32_t bias) {
  return ptx::fma_bf16x2((bytes & 0x00800080U) | bias, kMinusOne, (bytes & 0x007F007FU) | bias);
}

/// One lane's view of the records of a format. Loads take `kUnits` * 64 dimensions: what they find past head_dim, in the
/// record or in its slot, meets zeros of the query.
template <FormatId kId, int kUnits>
struct RecordLane {
  static constexpr SummaryFormat kFormat = format_of<kId>();
  static constexpr int kHalves = (kFormat.num_quads() + 1) / 2;
  static constexpr int kRank = kFormat.rank;
  static constexpr bool kTokenScales = kFormat.coefficient_bits == 8;
  // Codes of 2 bits have 32 dimensions in a block: a lane takes two units from it, or shifts in each. Without such codes the
  // lanes' blocks of a unit lie side by side, and no two of them meet in a bank.
  static constexpr bool kPaired = kUnits % 2 == 0 && kFormat.num_quads() > 1 && kFormat.quad_bits[1] == 2;
  static constexpr int kSlotBytes = (record_layout(kFormat, 64 * kUnits).record_bytes + 15) / 16 * 16;

  /// Bits of a quad's codes; 0 for a quad that does not exist.
  static constexpr unsigned kQuadBits = [] {
    unsigned packed = 0;
    for (int quad = 0; quad < kFormat.num_quads(); ++quad) packed |= kFormat.quad_bits[quad] << 4 * quad;
    return packed;
  }();
  static constexpr __device__ int bits_of(int quad) { return static_cast<int>(kQuadBits >> 4 * quad & 15U); }

  int g, j;
  int basis[kHalves];          // of unit 0
  int next_unit[kHalves];      // from a unit (if they are paired, an even one) to that behind it
  int next_pair[kHalves];      // from unit 0 to unit 2
  std::uint32_t low[kHalves];  // masks of the codes of this lane's first and last 8 dimensions
  std::uint32_t high[kHalves];
  int shift[kHalves];
  int ratio[kHalves];  // of their weights
  int zero[kHalves];   // the common zero in units of the high codes
  int scale_at[kHalves];
  float step[kHalves];  // what z is scaled with beside the record's scale and the query's
  int coefficients_at;
  int token_scales_at;

  __device__ __forceinline__ RecordLane(const RecordShape& shape, int lane) : g(lane >> 2), j(lane & 3) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bool second = g >= 4;
      const int bits = second ? bits_of(2 * half + 1) : bits_of(2 * half);
      const int quad_at =
          second && 2 * half + 1 < kFormat.num_quads() ? shape.at.quad_at[2 * half + 1] : shape.at.quad_at[2 * half];
      const int block = kPaired ? 2 * j : j;
      basis[half] = quad_at + 8 * (g & 3) + 32 * (bits == 2 ? block / 2 : block);
      next_unit[half] = kPaired ? (bits == 2 ? 0 : 32) : (bits == 2 ? 64 : 128);
      next_pair[half] = bits == 2 ? 128 : 256;
      low[half] = bits == 4 ? 0x0F0F0F0FU : bits == 2 ? 0x03030303U : 0U;
      high[half] = bits == 4 ? 0xF0F0F0F0U : bits == 2 ? 0x0C0C0C0CU : 0U;
      shift[half] = bits != 2 ? 0 : kPaired ? 4 : 4 * (j & 1);
      ratio[half] = bits == 2 ? 4 : 16;
      const float code_zero = bits == 0 ? 0.0F : static_cast<float>(1 << (bits - 1)) - kFormat.basis_zero_offset;
      zero[half] = static_cast<int>(code_zero * static_cast<float>(bits == 2 ? 4 : 16));
      const int rank = 8 * half + g;
      const int scales_at = kFormat.basis_has_scales ? shape.at.basis_scales_at : shape.at.coefficient_scales_at;
      scale_at[half] = scales_at + 2 * (rank < kRank ? rank : kRank - 1);
      const float own = kFormat.basis_has_scales ? 1.0F : bits == 2 ? shape.step2 : shape.step4;
      // Coefficients of 4 bits are used as 2 code - 15.
      step[half] = rank < kRank ? own * (kTokenScales ? 1.0F : 0.5F) / static_cast<float>(bits == 2 ? 4 : 16) : 0.0F;
    }
    coefficients_at = shape.at.coefficients_at;
    token_scales_at = shape.at.coefficient_scales_at;
  }

  /// The block of 16 dimensions that this lane takes of a unit.
  [[nodiscard]] __device__ __forceinline__ int block_of(int unit) const {
    return kPaired ? 8 * (unit / 2) + 2 * j + unit % 2 : 4 * unit + j;
  }
  /// Tokens stand in rows g and g + 8 as the loads give them.
  [[nodiscard]] __device__ __forceinline__ int token_of_row(int row) const {
    return kTokenScales ? (row < 8 ? 2 * row : 2 * row - 15) : row;
  }

  template <int kHalf>
  [[nodiscard]] __device__ __forceinline__ uint2 codes(const std::byte* record, int unit) const {
    const int offset = kPaired ? unit % 2 * next_unit[kHalf] + unit / 2 * next_pair[kHalf] : unit * next_unit[kHalf];
    uint2 words = load<uint2>(record + basis[kHalf] + offset);
    if (!kPaired || unit % 2 != 0) {
      words.x >>= shift[kHalf];
      words.y >>= shift[kHalf];
    }
    return words;
  }

  /// Coefficients of ranks 8 half + 2 j and the next, for rows g and g + 8. Ranks that do not exist have those of others,
  /// which their z of zero meets: behind them the record, and its slot, may end.
  struct Coefficients {
    std::uint32_t first;
    std::uint32_t second;
  };
  [[nodiscard]] __device__ __forceinline__ Coefficients coefficients(const std::byte* record, int half,
                                                                     std::uint32_t bias = kBias) const {
    const int rank = 8 * half + 2 * (8 * half + 8 <= kRank ? j : j % 2);
    if constexpr (kTokenScales) {
      const std::byte* const at = record + coefficients_at + 16 * rank + 2 * g;
      const std::uint32_t a = load<std::uint16_t>(at);
      const std::uint32_t b = load<std::uint16_t>(at + 16);
      return {bytes_to_bf16(__byte_perm(a, b, 0x0400), bias), bytes_to_bf16(__byte_perm(a, b, 0x0501), bias)};
    } else {
      const std::byte* const at = record + coefficients_at + 8 * rank + g;
      const std::uint32_t both = load<std::uint8_t>(at) | static_cast<std::uint32_t>(load<std::uint8_t>(at + 8)) << 16;
      return {nibbles_to_bf16(both << 1, bias), nibbles_to_bf16(both >> 3, bias)};
    }
  }
  /// Scales of the tokens of rows g and g + 8, if the format has such.
  [[nodiscard]] __device__ __forceinline__ float2 token_scales(const std::byte* record) const {
    const auto both = load<std::uint32_t>(record + token_scales_at + 4 * g);
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000U)};
  }
};

/// One lane's share of the query heads: column g of each tile for the products, columns 2 j and 2 j + 1 for their sums.
template <FormatId kId, int kUnits, int kTiles>
struct HeadLane {
  using Lane = RecordLane<kId, kUnits>;
  uint4 q8[kTiles][kUnits];
  int start[Lane::kHalves][kTiles][2];   // - zero * sum q8
  float unit[Lane::kHalves][kTiles][2];  // of z
  float softmax_scale;                   // of means

  /// `scale` multiplies deviations (with coefficients and token scales as stored), `mean_scale` means.
  __device__ __forceinline__ void read(const Lane& lane, const SharedQueries<kUnits, 8 * kTiles>& queries, float scale,
                                       float mean_scale) {
    softmax_scale = mean_scale;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        q8[tile][u] = *reinterpret_cast<const uint4*>(&queries.q8[8 * tile + lane.g][16 * lane.block_of(u)]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = 8 * tile + 2 * lane.j + i;
#pragma unroll
        for (int half = 0; half < Lane::kHalves; ++half) {
          start[half][tile][i] = -lane.zero[half] * queries.sum8[head];
          unit[half][tile][i] = lane.step[half] * (queries.scale8[head] * scale);
        }
      }
    }
  }
};

/// (code - zero) . q8 of a tile, exactly, in units of the high codes: rows g of `first`, rows g + 8 of `second`.
template <int kHalfA, int kHalfB, FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void basis_sums(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                           const std::byte* first, const std::byte* second, int (&sums)[kTiles][4]) {
  int low[kTiles][4];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const uint2 a = lane.template codes<kHalfA>(first, u);
    const uint2 b = lane.template codes<kHalfB>(second, u);
    const std::uint32_t a_low = lane.low[kHalfA], b_low = lane.low[kHalfB];
    const std::uint32_t a_high = lane.high[kHalfA], b_high = lane.high[kHalfB];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 q = heads.q8[tile][u];
      const int(&a_start)[2] = heads.start[kHalfA][tile];
      const int(&b_start)[2] = heads.start[kHalfB][tile];
      const int start[4] = {a_start[0], a_start[1], b_start[0], b_start[1]};
      const int zeros[4] = {};
      ptx::mma_u8_s8(low[tile], a.x & a_low, b.x & b_low, a.y & a_low, b.y & b_low, q.x, q.y, u == 0 ? zeros : low[tile]);
      ptx::mma_u8_s8(sums[tile], a.x & a_high, b.x & b_high, a.y & a_high, b.y & b_high, q.z, q.w,
                     u == 0 ? start : sums[tile]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile][i] += low[tile][i] * lane.ratio[i < 2 ? kHalfA : kHalfB];
  }
}

/// One half's part of the deviations of a record: adds to rows g and g + 8 of the tokens, for both heads of the lane. The
/// sums fit a float exactly.
template <int kHalf, FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void add_deviations(const RecordLane<kId, kUnits>& lane,
                                               const HeadLane<kId, kUnits, kTiles>& heads, const std::byte* record,
                                               const typename RecordLane<kId, kUnits>::Coefficients& coefficients,
                                               const int (&sums)[kTiles][2], float (&deviations)[kTiles][4]) {
  const float scale = bf16_at(record + lane.scale_at[kHalf]);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float z0 = static_cast<float>(sums[tile][0]) * (scale * heads.unit[kHalf][tile][0]);
    const float z1 = static_cast<float>(sums[tile][1]) * (scale * heads.unit[kHalf][tile][1]);
    const Split z = split(z0, z1);
    ptx::mma_bf16(deviations[tile], coefficients.first, coefficients.second, coefficients.first, coefficients.second,
                  ptx::transpose(z.high), ptx::transpose(z.low), deviations[tile]);
  }
}

/// The sums of two records. Apart from what follows, so that a caller can have the next two under way meanwhile.
template <FormatId kId, int kUnits, int kTiles>
struct PairSums {
  static constexpr int kHalves = RecordLane<kId, kUnits>::kHalves;
  int sums[kHalves][kTiles][4];

  __device__ __forceinline__ void make(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                       const std::byte* first, const std::byte* second) {
    if constexpr (kHalves == 1) {
      basis_sums<0, 0>(lane, heads, first, second, sums[0]);
    } else {
      basis_sums<0, 1>(lane, heads, first, first, sums[0]);
      basis_sums<0, 1>(lane, heads, second, second, sums[1]);
    }
  }
  template <int kPage, int kHalf>
  __device__ __forceinline__ void of_page(int (&own)[kTiles][2]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own[tile][i] = kHalves == 1 ? sums[0][tile][2 * kPage + i] : sums[kHalves == 1 ? 0 : kPage][tile][2 * kHalf + i];
      }
    }
  }
};

/// Deviations of the tokens of record `kPage` of two, less the scales of tokens.
template <int kPage, FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void deviations_of(
    const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
    const PairSums<kId, kUnits, kTiles>& sums, const std::byte* record,
    const typename RecordLane<kId, kUnits>::Coefficients (&coefficients)[PairSums<kId, kUnits, kTiles>::kHalves],
    float (&deviations)[kTiles][4]) {
  int own[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) deviations[tile][i] = 0.0F;
  }
  sums.template of_page<kPage, 0>(own);
  add_deviations<0>(lane, heads, record, coefficients[0], own, deviations);
  if constexpr (PairSums<kId, kUnits, kTiles>::kHalves == 2) {
    sums.template of_page<kPage, 1>(own);
    add_deviations<1>(lane, heads, record, coefficients[1], own, deviations);
  }
}
template <int kPage, FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void deviations_of(const RecordLane<kId, kUnits>& lane,
                                              const HeadLane<kId, kUnits, kTiles>& heads,
                                              const PairSums<kId, kUnits, kTiles>& sums, const std::byte* record,
                                              float (&deviations)[kTiles][4]) {
  typename RecordLane<kId, kUnits>::Coefficients coefficients[PairSums<kId, kUnits, kTiles>::kHalves];
#pragma unroll
  for (int half = 0; half < PairSums<kId, kUnits, kTiles>::kHalves; ++half) {
    coefficients[half] = lane.coefficients(record, half);
  }
  deviations_of<kPage>(lane, heads, sums, record, coefficients, deviations);
}

/// Of two records.
template <FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void two_deviations(const RecordLane<kId, kUnits>& lane,
                                               const HeadLane<kId, kUnits, kTiles>& heads, const std::byte* first,
                                               const std::byte* second, float (&deviations)[2][kTiles][4]) {
  PairSums<kId, kUnits, kTiles> sums;
  sums.make(lane, heads, first, second);
  deviations_of<0>(lane, heads, sums, first, deviations[0]);
  deviations_of<1>(lane, heads, sums, second, deviations[1]);
}

/// The means' logits of eight pages: page g, heads 2 j and 2 j + 1. `record` is that of page g.
template <FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void mean_logits(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                            const SharedQueries<kUnits, 8 * kTiles>& queries, const RecordShape& shape,
                                            const std::byte* record, float (&logits)[kTiles][2]) {
  int high[kTiles][4] = {};
  int low[kTiles][4] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = 16 * lane.block_of(u);
    const auto mean = load<uint4>(record + shape.at.mean_at + at);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 h = *reinterpret_cast<const uint4*>(&queries.high[8 * tile + lane.g][at]);
      const uint4 l = *reinterpret_cast<const uint4*>(&queries.low[8 * tile + lane.g][at]);
      ptx::mma_s8_s8(high[tile], mean.x, 0, mean.y, 0, h.x, h.y, high[tile]);
      ptx::mma_s8_u8(low[tile], mean.x, 0, mean.y, 0, l.x, l.y, low[tile]);
      ptx::mma_s8_s8(high[tile], mean.z, 0, mean.w, 0, h.z, h.w, high[tile]);
      ptx::mma_s8_u8(low[tile], mean.z, 0, mean.w, 0, l.z, l.w, low[tile]);
    }
  }
  const float scale = bf16_at(record + shape.at.mean_scale_at);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      logits[tile][i] = static_cast<float>(256 * high[tile][i] + low[tile][i]) *
                        (scale * (queries.scale16[8 * tile + 2 * lane.j + i] * heads.softmax_scale));
    }
  }
}

}  // namespace locks::cuda
