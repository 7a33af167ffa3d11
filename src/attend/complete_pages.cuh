// Adds completed pages to a warp's state.
//
//   weights          p[token][head] = 2^(logit - reference), from the record as the scorer has them
//   C = p coefficients   rows are heads (0-7: the high bf16 parts of p, 8-15: the low), columns ranks, sums over tokens
//   values           rows are dimensions, columns heads: mean P + slopes C, each weight as two bf16 parts
#pragma once

#include <bit>

#include "attend/complete_state.cuh"
#include "cuda/ptx.cuh"
#include "cuda/record.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kUnitPages = 4;  // that a warp copies and adds together
/// Weights may exceed 1 by this power of two before the reference moves: sums stay far from fp32's end.
constexpr float kSlack = 8.0F;

/// The codes of a quarter in four bytes of a row; the last bit of each is 0.
__device__ __forceinline__ std::uint32_t quarter(std::uint32_t bytes, int k) {
  return (k < 3 ? bytes : bytes >> 2) & (0x03030303U << shift_of_quarter(k));
}
/// Bytes i of two rows as the halves of a word, whose upper bytes are 0 because those bytes have no last bit.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t first, std::uint32_t second, int i) {
  return ptx::permute(first, second, 0xC480 + 0x1111 * i);
}

/// Byte i of two rows in the low bytes of the halves; the others are anything.
__device__ __forceinline__ std::uint32_t bytes_of(std::uint32_t first, std::uint32_t second, int i) {
  return __byte_perm(first, second, static_cast<unsigned>(i | (4 + i) << 8));
}
/// Signed bytes in the low bits of each half, times the power of two that the last bit of `bias` is worth: bf16 2^7 of them,
/// twice, with an even exponent. A register and not a constant, or each mask and it would be two instructions.
__device__ __forceinline__ std::uint32_t scaled_bytes(std::uint32_t bytes, std::uint32_t bias) {
  return ptx::fma_bf16x2((bytes & 0x00800080U) | bias, kMinusOne, (bytes & 0x007F007FU) | bias);
}

/// kBytes bytes of a row, as words.
template <int kBytes>
struct RowBytes {
  static constexpr int kWords = (kBytes + 3) / 4;
  std::uint32_t words[kWords];
  __device__ __forceinline__ explicit RowBytes(const std::byte* at) {
    if constexpr (kBytes == 2) words[0] = load<std::uint16_t>(at);
    if constexpr (kBytes == 4) words[0] = load<std::uint32_t>(at);
    if constexpr (kBytes == 8) {
      const auto both = load<uint2>(at);
      words[0] = both.x;
      words[1] = both.y;
    }
  }
};

/// Weights of a page's tokens as rows of heads: high parts in rows 0-7, low parts in rows 8-15.
struct WeightRows {
  std::uint32_t a[4];
  __device__ __forceinline__ WeightRows(float p0, float p1, float p2, float p3) {
    const Split first = split(p0, p1);
    const Split second = split(p2, p3);
    a[0] = ptx::transpose(first.high);
    a[1] = ptx::transpose(first.low);
    a[2] = ptx::transpose(second.high);
    a[3] = ptx::transpose(second.low);
  }
  /// Sums over the tokens, of columns 2 j and 2 j + 1, for head g.
  [[nodiscard]] __device__ __forceinline__ float2 times(std::uint32_t b0, std::uint32_t b1) const {
    float sums[4] = {};
    ptx::mma_bf16(sums, a[0], a[1], a[2], a[3], b0, b1, sums);
    return {sums[0] + sums[2], sums[1] + sums[3]};
  }
};

template <FormatId kId, int kUnits>
struct Slots {
  static constexpr int kKey = RecordLane<kId, kUnits>::kSlotBytes;
  static constexpr int kValue = (value_layout(format_of<kId>(), 64 * kUnits).record_bytes + 15) / 16 * 16;
  static constexpr int kUnit = kUnitPages * (kKey + kValue);
};

/// What a warp notes of the pages that it adds: whoever needs it finds it in shared memory, where registers are scarce.
struct Notes {
  struct alignas(16) Page {
    const std::byte* key;
    const std::byte* value;
  };
  Page pages[32];                         // that are added next
  unsigned masks[32];                     // zeros behind the last
  float2 means[kUnitPages][4];            // logits of the means, of heads 2 j and 2 j + 1
  float2 slope_scales[2][kUnitPages][4];  // of each half's ranks 2 j and 2 j + 1
  float masses[kUnitPages][kHeads];       // sums of a page's weights
};

/// Scales of the slopes of a page, of ranks 2 j and 2 j + 1 of a half; zeros if nothing of the page is wanted: its record
/// may be anything then.
template <FormatId kId, int kUnits>
__device__ __forceinline__ float2 slope_scales(int j, int half, const RecordShape& shape, const ValueLayout& values_at,
                                               const std::byte* record, const std::byte* value, bool wanted) {
  using Lane = RecordLane<kId, kUnits>;
  const int rank = 8 * half + 2 * j;
  if (!wanted || rank >= Lane::kRank) return {0.0F, 0.0F};
  // Slopes are used as code - 1.5, coefficients of 4 bits as 2 code - 15.
  constexpr float kUnit = (Lane::kTokenScales ? 1.0F : 0.5F) * power_of_two(kUp);
  const auto scales = load<std::uint32_t>(value + values_at.slope_scales_at + 2 * rank);
  float2 own = {kUnit * __uint_as_float(scales << 16), kUnit * __uint_as_float(scales & 0xFFFF0000U)};
  if constexpr (!Lane::kTokenScales) {
    const auto others = load<std::uint32_t>(record + shape.at.coefficient_scales_at + 2 * rank);
    own.x *= __uint_as_float(others << 16);
    own.y *= __uint_as_float(others & 0xFFFF0000U);
  }
  return own;
}

/// What a page gives to a head: the sum of its tokens' weights, and the weights of its slopes of ranks 2 j and 2 j + 1 of
/// each half, all for head g.
template <FormatId kId, int kUnits>
struct PageWeights {
  using Lane = RecordLane<kId, kUnits>;
  float mass;
  float slope_weights = 0.0F;  // the sum of this lane's
  Split slopes[Lane::kHalves];

  __device__ __forceinline__ PageWeights(const Lane& lane, const typename Lane::Coefficients (&coefficients)[Lane::kHalves],
                                         const Notes& notes, int page, const float (&weights)[4],
                                         const float2& token_scales) {
    const WeightRows plain(weights[0], weights[1], weights[2], weights[3]);
    mass = plain.times(kOne, kOne).x;
    WeightRows scaled = plain;
    if constexpr (Lane::kTokenScales) {
      scaled = WeightRows(weights[0] * token_scales.x, weights[1] * token_scales.x, weights[2] * token_scales.y,
                          weights[3] * token_scales.y);
    }
#pragma unroll
    for (int half = 0; half < Lane::kHalves; ++half) {
      // As rows of tokens they made the logits; here their tokens are the depth.
      const float2 sums = scaled.times(ptx::transpose(coefficients[half].first), ptx::transpose(coefficients[half].second));
      const float2 scale = notes.slope_scales[half][page][lane.j];
      const float2 weight = {sums.x * scale.x, sums.y * scale.y};
      slopes[half] = split(weight.x, weight.y);
      slope_weights = half == 0 ? weight.x + weight.y : slope_weights + (weight.x + weight.y);
    }
  }
};

/// Adds the weighted slopes of two pages: their ranks are the two halves of a product's depth.
template <FormatId kId, int kUnits>
__device__ __forceinline__ void add_slopes(const RecordLane<kId, kUnits>& lane, const RecordShape& shape,
                                           const ValueLayout& values_at, const std::byte* first_value,
                                           const std::byte* second_value, const PageWeights<kId, kUnits>& first,
                                           const PageWeights<kId, kUnits>& second, State<kUnits>& state) {
  constexpr int kBytes = State<kUnits>::kBytes;
  const int row_bytes = shape.head_dim / 4;
#pragma unroll
  for (int half = 0; half < RecordLane<kId, kUnits>::kHalves; ++half) {
    const int at = values_at.slopes_at + (8 * half + 2 * lane.j) * row_bytes + kBytes * lane.g;
    const RowBytes<kBytes> rows[2][2] = {
        {RowBytes<kBytes>(first_value + at), RowBytes<kBytes>(first_value + at + row_bytes)},
        {RowBytes<kBytes>(second_value + at), RowBytes<kBytes>(second_value + at + row_bytes)}};
    const Split& p = first.slopes[half];
    const Split& q = second.slopes[half];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (int word = 0; word < RowBytes<kBytes>::kWords; ++word) {
        std::uint32_t codes[2][2][2];  // of a quarter of this pair, of a page, of a rank
#pragma unroll
        for (int page = 0; page < 2; ++page) {
#pragma unroll
          for (int rank = 0; rank < 2; ++rank) {
            codes[0][page][rank] = quarter(rows[page][rank].words[word], 2 * pair);
            codes[1][page][rank] = quarter(rows[page][rank].words[word], 2 * pair + 1);
          }
        }
#pragma unroll
        for (int byte = 0; byte < kBytes && byte < 4; ++byte) {
          auto& values = state.values[2 * (4 * word + byte) + pair];
          std::uint32_t a[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = low_bytes(codes[i % 2][i / 2][0], codes[i % 2][i / 2][1], byte);
          ptx::mma_bf16(values, a[0], a[1], a[2], a[3], p.high, q.high, values);
          ptx::mma_bf16(values, a[0], a[1], a[2], a[3], p.low, q.low, values);
        }
      }
    }
  }
}

/// Adds the means of four pages. `masses`: of pages 2 (j % 2) and the next, for head g. The depth is the high parts of the
/// pages' weights, then the low ones.
template <int kUnits>
__device__ __forceinline__ void add_means(int g, int j, const RecordShape& shape, const ValueLayout& values_at,
                                          const std::byte* values, int slot_bytes, const float (&masses)[2],
                                          std::uint32_t bias, State<kUnits>& state) {
  constexpr int kBytes = State<kUnits>::kBytes;
  const std::byte* const first = values + 2 * (j % 2) * slot_bytes;
  const std::byte* const second = first + slot_bytes;
  // Where no token weighs anything the record may be anything.
  const auto weight_of = [&](float mass, const std::byte* value) {
    return mass == 0.0F ? 0.0F : mass * power_of_two(-kDown) * bf16_at(value + values_at.mean_scale_at);
  };
  const Split weight = split(weight_of(masses[0], first), weight_of(masses[1], second));
  const std::uint32_t b = j < 2 ? weight.high : weight.low;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const int at = values_at.mean_at + 2 * pair * (shape.head_dim / 4) + kBytes * g;
    const RowBytes<kBytes> upper_first(first + at), upper_second(second + at);
    const RowBytes<kBytes> lower_first(first + at + shape.head_dim / 4), lower_second(second + at + shape.head_dim / 4);
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      // An exponent of bf16 is worth 0x80.
      const std::uint32_t upper = scaled_bytes(bytes_of(upper_first.words[i / 4], upper_second.words[i / 4], i % 4),
                                               bias + 0x00800080U * shift_of_quarter(2 * pair));
      const std::uint32_t lower = scaled_bytes(bytes_of(lower_first.words[i / 4], lower_second.words[i / 4], i % 4),
                                               bias + 0x00800080U * shift_of_quarter(2 * pair + 1));
      ptx::mma_bf16_k8(state.values[2 * i + pair], upper, lower, b);
    }
  }
}

/// The means' logits, as mean_logits() of src/cuda/record.cuh has them, bit for bit. There rows 8 to 15 are zeros, which
/// have to be put beside every two words; here they are a mean's other words, and each product has half of its rows for
/// nothing.
template <FormatId kId, int kUnits>
__device__ __forceinline__ float2 logits_of_means(const RecordLane<kId, kUnits>& lane, float softmax_scale,
                                                  const SharedQueries<kUnits, kHeads>& queries, const RecordShape& shape,
                                                  const std::byte* record) {
  int high[2][4] = {};
  int low[2][4] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int at = 16 * lane.block_of(u);
    const auto mean = load<uint4>(record + shape.at.mean_at + at);
    const uint4 h = *reinterpret_cast<const uint4*>(&queries.high[lane.g][at]);
    const uint4 l = *reinterpret_cast<const uint4*>(&queries.low[lane.g][at]);
    ptx::mma_s8_s8(high[0], mean.x, mean.y, mean.z, mean.w, h.x, h.z, high[0]);
    ptx::mma_s8_u8(low[0], mean.x, mean.y, mean.z, mean.w, l.x, l.z, low[0]);
    ptx::mma_s8_s8(high[1], mean.x, mean.y, mean.z, mean.w, h.y, h.w, high[1]);
    ptx::mma_s8_u8(low[1], mean.x, mean.y, mean.z, mean.w, l.y, l.w, low[1]);
  }
  const float scale = bf16_at(record + shape.at.mean_scale_at);
  const auto logit = [&](int i) {
    return static_cast<float>(256 * (high[0][i] + high[1][2 + i]) + (low[0][i] + low[1][2 + i])) *
           (scale * (queries.scale16[2 * lane.j + i] * softmax_scale));
  };
  return {logit(0), logit(1)};
}

/// The largest of a column's logits, in all its lanes.
__device__ __forceinline__ float largest_of_column(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// Adds `count` pages, up to four, the first of which is `notes`' `first`-th.
template <FormatId kId, int kUnits>
__device__ __forceinline__ void add_unit(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, 1>& heads,
                                         const SharedQueries<kUnits, kHeads>& queries, const RecordShape& shape,
                                         const ValueLayout& values_at, const std::byte* unit, int count, int first,
                                         std::uint32_t bias, Notes& notes, State<kUnits>& state) {
  using Slot = Slots<kId, kUnits>;
  using Lane = RecordLane<kId, kUnits>;
  constexpr bool kTokenScales = Lane::kTokenScales;
  const std::byte* const values = unit + kUnitPages * Slot::kKey;
  const unsigned* const masks = notes.masks + first;
  bool whole;
  {
    const int own_page = lane.g % kUnitPages;
    const std::byte* const record = unit + own_page * Slot::kKey;
    notes.means[own_page][lane.j] = logits_of_means(lane, heads.softmax_scale, queries, shape, record);
#pragma unroll
    for (int half = 0; half < Lane::kHalves; ++half) {
      notes.slope_scales[half][own_page][lane.j] = slope_scales<kId, kUnits>(
          lane.j, half, shape, values_at, record, values + own_page * Slot::kValue, masks[own_page] != 0);
    }
    notes.masses[lane.j][lane.g] = 0.0F;
    whole = __all_sync(kAllLanes, masks[own_page] == kWholePage) != 0;
    __syncwarp();
  }
#pragma unroll 1
  for (int pair = 0; 2 * pair < count; ++pair) {
    const std::byte* const record = unit + 2 * pair * Slot::kKey;
    float logits[2][1][4];
    float2 scales[2];
    typename Lane::Coefficients coefficients[2][Lane::kHalves];
#pragma unroll
    for (int page = 0; page < 2; ++page) {
#pragma unroll
      for (int half = 0; half < Lane::kHalves; ++half) {
        coefficients[page][half] = lane.coefficients(record + page * Slot::kKey, half, bias);
      }
    }
    PairSums<kId, kUnits, 1> sums;
    sums.make(lane, heads, record, record + Slot::kKey);
    deviations_of<0>(lane, heads, sums, record, coefficients[0], logits[0]);
    deviations_of<1>(lane, heads, sums, record + Slot::kKey, coefficients[1], logits[1]);
    float largest[2];  // of this lane's
#pragma unroll
    for (int page = 0; page < 2; ++page) {
      const int entry = 2 * pair + page;
      scales[page] = {0.0F, 0.0F};
      if (kTokenScales && entry < count) scales[page] = lane.token_scales(record + page * Slot::kKey);
      const float2 mean = notes.means[entry][lane.j];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& logit = logits[page][0][k];
        const float own = k % 2 == 0 ? mean.x : mean.y;
        logit = kTokenScales ? __fmaf_rn(logit, k < 2 ? scales[page].x : scales[page].y, own) : __fadd_rn(logit, own);
      }
      if (!whole) {
        const unsigned listed = masks[entry];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if ((listed >> lane.token_of_row(k < 2 ? lane.g : lane.g + 8) & 1U) == 0) logits[page][0][k] = kNoLogit;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float own = fmaxf(logits[page][0][i], logits[page][0][i + 2]);
        largest[i] = page == 0 ? own : fmaxf(largest[i], own);
      }
    }
    if (__any_sync(kAllLanes, largest[0] > state.reference[0] + kSlack || largest[1] > state.reference[1] + kSlack)) {
      // From here on weights are relative to what is the largest logit now.
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float reference = fmaxf(state.reference[i], largest_of_column(largest[i]));
        factor[i] = exp2_difference(state.reference[i], reference);
        state.reference[i] = reference;
      }
      const float even = __shfl_sync(kAllLanes, factor[0], lane.g / 2);
      const float odd = __shfl_sync(kAllLanes, factor[1], lane.g / 2);
      const float factor_of_g = lane.g % 2 == 0 ? even : odd;
      state.scale(factor, factor_of_g);
      notes.masses[lane.j][lane.g] *= factor_of_g;
      __syncwarp();
    }
    const auto weigh = [&](int page) {
      float weights[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) weights[k] = exp2_difference(logits[page][0][k], state.reference[k % 2]);
      return PageWeights<kId, kUnits>(lane, coefficients[page], notes, 2 * pair + page, weights, scales[page]);
    };
    const auto one = weigh(0);
    const auto other = weigh(1);
    const std::byte* const value = values + 2 * pair * Slot::kValue;
    add_slopes(lane, shape, values_at, value, value + Slot::kValue, one, other, state);
    state.sum += one.mass + other.mass;
    state.slope_weights += one.slope_weights + other.slope_weights;
    if (lane.j < 2) notes.masses[2 * pair + lane.j][lane.g] = lane.j == 0 ? one.mass : other.mass;
  }
  __syncwarp();
  const int own_page = 2 * (lane.j % 2);
  const float masses[2] = {notes.masses[own_page][lane.g], notes.masses[own_page + 1][lane.g]};
  add_means(lane.g, lane.j, shape, values_at, values, Slot::kValue, masses, bias, state);
}

}  // namespace locks::cuda::complete_kernels
