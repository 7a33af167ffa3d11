// Sums of weights, and of weights * values, over a part of a list's completed pages, for up to eight of its query heads.
//
//   weights          p[token][head] = exp(logit - largest so far), from the record as the scorer has them
//   C = p coefficients   rows are heads (0-7: the high bf16 parts of p, 8-15: the low), columns ranks, sums over tokens
//   values           rows are dimensions, columns heads: mean P + slopes C, each weight as two bf16 parts
//
// A lane holds dimensions k head_dim / 4 + kBytes g + i (k 0..3, i below kBytes): what kBytes bytes of a slope's row hold.
#pragma once

#include "attend/complete_launch.h"
#include "cuda/launch.cuh"
#include "cuda/pages.cuh"
#include "cuda/record.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kStages = 2;
constexpr int kHeads = 8;
constexpr int kMaxWarps = 8;

/// 2 code - 3 in bf16 from codes of 2 bits that stand at bits 1 and 2 of each half.
__device__ __forceinline__ std::uint32_t slopes_to_bf16(std::uint32_t doubled) {
  constexpr std::uint32_t kMinus131 = 0xC303C303U;
  return ptx::fma_bf16x2((doubled & 0x00060006U) | kBias, kOne, kMinus131);
}

/// Byte i of two rows in the low bytes of the halves; the others are anything.
__device__ __forceinline__ std::uint32_t bytes_of(std::uint32_t first, std::uint32_t second, int i) {
  return __byte_perm(first, second, static_cast<unsigned>(i | (4 + i) << 8));
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

/// What a warp has seen: of heads 2 j and 2 j + 1. Tile 2 i + k / 2 of `values` holds byte i of quarters k (row g) and k + 1
/// (row g + 8).
template <int kUnits>
struct State {
  static constexpr int kBytes = 2 * kUnits;
  float largest[2] = {kNoLogit, kNoLogit};
  float sum[2] = {0.0F, 0.0F};  // of this lane's tokens
  float values[2 * kBytes][4] = {};

  __device__ __forceinline__ void scale(const float (&factor)[2]) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      sum[head] *= factor[head];
#pragma unroll
      for (int tile = 0; tile < 2 * kBytes; ++tile) {
        values[tile][head] *= factor[head];
        values[tile][2 + head] *= factor[head];
      }
    }
  }
};

/// Coefficients as columns (ranks 8 half + g), for the tokens of rows 2 j, 2 j + 1 and 2 j + 8, 2 j + 9.
template <FormatId kId, int kUnits>
__device__ __forceinline__ uint2 coefficient_columns(const RecordLane<kId, kUnits>& lane, const std::byte* record,
                                                     int half) {
  const int rank = 8 * half + lane.g;
  if constexpr (RecordLane<kId, kUnits>::kTokenScales) {  // tokens 4 j, 4 j + 2 and 4 j + 1, 4 j + 3
    const auto four = load<std::uint32_t>(record + lane.coefficients_at + 16 * rank + 4 * lane.j);
    return {bytes_to_bf16(four), bytes_to_bf16(four >> 8)};
  } else {
    const std::uint32_t both = load<std::uint16_t>(record + lane.coefficients_at + 8 * rank + 2 * lane.j);
    const std::uint32_t apart = __byte_perm(both, 0, 0x4140);
    return {nibbles_to_bf16(apart << 1), nibbles_to_bf16(apart >> 3)};
  }
}

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
  [[nodiscard]] __device__ __forceinline__ float2 times(uint2 b) const {
    float sums[4] = {};
    ptx::mma_bf16(sums, a[0], a[1], a[2], a[3], b.x, b.y, sums);
    return {sums[0] + sums[2], sums[1] + sums[3]};
  }
};

/// What a page gives to a head: the sum of its tokens' weights, and the weights of its slopes of ranks 2 j and 2 j + 1 of
/// each half, all for head g.
template <FormatId kId, int kUnits>
struct PageWeights {
  using Lane = RecordLane<kId, kUnits>;
  float mass;
  Split slopes[Lane::kHalves];

  __device__ __forceinline__ PageWeights(const Lane& lane, const RecordShape& shape, const ValueLayout& values_at,
                                         const std::byte* record, const std::byte* value, const float (&weights)[4],
                                         const float2& token_scales) {
    const WeightRows plain(weights[0], weights[1], weights[2], weights[3]);
    mass = plain.times({kOne, kOne}).x;
    WeightRows scaled = plain;
    if constexpr (Lane::kTokenScales) {
      scaled = WeightRows(weights[0] * token_scales.x, weights[1] * token_scales.x, weights[2] * token_scales.y,
                          weights[3] * token_scales.y);
    }
#pragma unroll
    for (int half = 0; half < Lane::kHalves; ++half) {
      const int rank = 8 * half + 2 * lane.j;
      const float2 sums = scaled.times(coefficient_columns(lane, record, half));
      // Slopes are used as 2 code - 3, coefficients of 4 bits as 2 code - 15.
      const int scale_rank = min(rank, Lane::kRank - 2);
      const float unit = rank < Lane::kRank ? (Lane::kTokenScales ? 0.5F : 0.25F) : 0.0F;
      const auto slope_scales = load<std::uint32_t>(value + values_at.slope_scales_at + 2 * scale_rank);
      float2 scales{unit * __uint_as_float(slope_scales << 16), unit * __uint_as_float(slope_scales & 0xFFFF0000U)};
      if constexpr (!Lane::kTokenScales) {
        const auto own = load<std::uint32_t>(record + shape.at.coefficient_scales_at + 2 * scale_rank);
        scales.x *= __uint_as_float(own << 16);
        scales.y *= __uint_as_float(own & 0xFFFF0000U);
      }
      slopes[half] = split(sums.x * scales.x, sums.y * scales.y);
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
    for (int i = 0; i < kBytes; ++i) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int page = 0; page < 2; ++page) {
        const std::uint32_t codes = bytes_of(rows[page][0].words[i / 4], rows[page][1].words[i / 4], i % 4);
        a[page][0] = slopes_to_bf16(codes << 1);
        a[page][1] = slopes_to_bf16(codes >> 1);
        a[page][2] = slopes_to_bf16(codes >> 3);
        a[page][3] = slopes_to_bf16(codes >> 5);
      }
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        auto& values = state.values[2 * i + pair];
        const int k = 2 * pair;
        ptx::mma_bf16(values, a[0][k], a[0][k + 1], a[1][k], a[1][k + 1], p.high, q.high, values);
        ptx::mma_bf16(values, a[0][k], a[0][k + 1], a[1][k], a[1][k + 1], p.low, q.low, values);
      }
    }
  }
}

/// Adds the means of eight pages. `masses`: of pages 2 j and 2 j + 1, for head g.
template <int kUnits>
__device__ __forceinline__ void add_means(int g, int j, const RecordShape& shape, const ValueLayout& values_at,
                                          const std::byte* values, int slot_bytes, const float (&masses)[2],
                                          State<kUnits>& state) {
  constexpr int kBytes = State<kUnits>::kBytes;
  const std::byte* const first = values + 2 * j * slot_bytes;
  const std::byte* const second = first + slot_bytes;
  const Split weight =
      split(masses[0] * bf16_at(first + values_at.mean_scale_at), masses[1] * bf16_at(second + values_at.mean_scale_at));
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const int at = values_at.mean_at + 2 * pair * (shape.head_dim / 4) + kBytes * g;
    const RowBytes<kBytes> a_first(first + at), a_second(second + at);
    const RowBytes<kBytes> b_first(first + at + shape.head_dim / 4), b_second(second + at + shape.head_dim / 4);
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      const std::uint32_t a = bytes_to_bf16(bytes_of(a_first.words[i / 4], a_second.words[i / 4], i % 4));
      const std::uint32_t b = bytes_to_bf16(bytes_of(b_first.words[i / 4], b_second.words[i / 4], i % 4));
      ptx::mma_bf16(state.values[2 * i + pair], a, b, a, b, weight.high, weight.low, state.values[2 * i + pair]);
    }
  }
}

/// The largest of a column's logits, in all its lanes.
__device__ __forceinline__ float largest_of_column(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

template <FormatId kId, int kUnits>
struct Slots {
  static constexpr int kKey = RecordLane<kId, kUnits>::kSlotBytes;
  static constexpr int kValue = (value_layout(format_of<kId>(), 64 * kUnits).record_bytes + 15) / 16 * 16;
  static constexpr int kStage = kPagesAtOnce * (kKey + kValue);
};

/// Adds eight entries; lane i holds the mask of entry i % 8.
template <FormatId kId, int kUnits>
__device__ __forceinline__ void add_eight(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, 1>& heads,
                                          const SharedQueries<kUnits, kHeads>& queries, const RecordShape& shape,
                                          const ValueLayout& values_at, const std::byte* stage, unsigned mask,
                                          State<kUnits>& state) {
  using Slot = Slots<kId, kUnits>;
  constexpr bool kTokenScales = RecordLane<kId, kUnits>::kTokenScales;
  const std::byte* const values = stage + kPagesAtOnce * Slot::kKey;
  float means[1][2];
  mean_logits(lane, heads, queries, shape, stage + lane.g * Slot::kKey, means);
  float masses[2] = {0.0F, 0.0F};
#pragma unroll 1
  for (int pair = 0; pair < kPagesAtOnce / 2; ++pair) {
    const std::byte* const record = stage + 2 * pair * Slot::kKey;
    float logits[2][1][4];
    float2 scales[2];
    two_deviations(lane, heads, record, record + Slot::kKey, logits);
    float largest[2] = {state.largest[0], state.largest[1]};
#pragma unroll
    for (int page = 0; page < 2; ++page) {
      const int entry = 2 * pair + page;
      const unsigned own_mask = __shfl_sync(kAllLanes, mask, entry);
      const float mean[2] = {__shfl_sync(kAllLanes, means[0][0], 4 * entry + lane.j),
                             __shfl_sync(kAllLanes, means[0][1], 4 * entry + lane.j)};
      scales[page] = kTokenScales ? lane.token_scales(record + page * Slot::kKey) : float2{1.0F, 1.0F};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& logit = logits[page][0][k];
        logit = __fmaf_rn(logit, k < 2 ? scales[page].x : scales[page].y, mean[k % 2]);
        if ((own_mask >> lane.token_of_row(k < 2 ? lane.g : lane.g + 8) & 1U) == 0) logit = kNoLogit;
        largest[k % 2] = fmaxf(largest[k % 2], logit);
      }
    }
    largest[0] = largest_of_column(largest[0]);
    largest[1] = largest_of_column(largest[1]);
    if (__any_sync(kAllLanes, largest[0] > state.largest[0] || largest[1] > state.largest[1])) {
      const float factor[2] = {fold_scales(state.largest[0], largest[0]).into,
                               fold_scales(state.largest[1], largest[1]).into};
      state.scale(factor);
      state.largest[0] = largest[0];
      state.largest[1] = largest[1];
      const float even = __shfl_sync(kAllLanes, factor[0], lane.g / 2);
      const float odd = __shfl_sync(kAllLanes, factor[1], lane.g / 2);
      masses[0] *= lane.g % 2 == 0 ? even : odd;
      masses[1] *= lane.g % 2 == 0 ? even : odd;
    }
    const float reference[2] = {largest[0] == kNoLogit ? 0.0F : largest[0], largest[1] == kNoLogit ? 0.0F : largest[1]};
    const auto weigh = [&](int page) {
      float weights[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) weights[k] = exp_difference(logits[page][0][k], reference[k % 2]);
      state.sum[0] += weights[0] + weights[2];
      state.sum[1] += weights[1] + weights[3];
      return PageWeights<kId, kUnits>(lane, shape, values_at, record + page * Slot::kKey,
                                      values + (2 * pair + page) * Slot::kValue, weights, scales[page]);
    };
    const auto first = weigh(0);
    const auto second = weigh(1);
    const std::byte* const value = values + 2 * pair * Slot::kValue;
    add_slopes(lane, shape, values_at, value, value + Slot::kValue, first, second, state);
    if (lane.j == pair) {
      masses[0] = first.mass;
      masses[1] = second.mass;
    }
  }
  add_means(lane.g, lane.j, shape, values_at, values, Slot::kValue, masses, state);
}

/// Merges the states of a CTA's warps in their order and writes the part's. `shared` holds warps * kHeads states.
template <int kUnits>
__device__ __forceinline__ void write_part(const State<kUnits>& state, const RecordShape& shape, int head_count, int warps,
                                           float* shared, float* partials, std::int64_t head_stride) {
  constexpr int kBytes = State<kUnits>::kBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int j = lane % 4;
  const int floats = partial_floats(shape.head_dim);
  const int quarter = shape.head_dim / 4;
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    float* const own = shared + (static_cast<int>(threadIdx.x) / 32 * kHeads + 2 * j + head) * floats;
    float sum = state.sum[head];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (g == 0) {
      own[shape.head_dim] = state.largest[head];
      own[shape.head_dim + 1] = sum;
    }
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (kBytes * g + i < quarter) own[k * quarter + kBytes * g + i] = state.values[2 * i + k / 2][k % 2 * 2 + head];
      }
    }
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < head_count * (shape.head_dim + 1); at += static_cast<int>(blockDim.x)) {
    const int head = at / (shape.head_dim + 1);
    const int dim = at % (shape.head_dim + 1);  // head_dim: the sum of weights
    const int place = dim < shape.head_dim ? dim : dim + 1;
    float largest = kNoLogit;
    float sum = 0.0F;
    for (int warp = 0; warp < warps; ++warp) {
      const float* const from = shared + (warp * kHeads + head) * floats;
      const FoldScales scales = fold_scales(largest, from[shape.head_dim]);
      sum = fold(sum, from[place], scales);
      largest = scales.max;
    }
    partials[head * head_stride + place] = sum;
    if (dim == shape.head_dim) partials[head * head_stride + shape.head_dim] = largest;
  }
}

template <FormatId kId, int kUnits>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) sum_completion(const __grid_constant__ Sums args) {
  using Lane = RecordLane<kId, kUnits>;
  using Slot = Slots<kId, kUnits>;
  extern __shared__ uint4 shared[];
  auto& queries = *reinterpret_cast<SharedQueries<kUnits, kHeads>*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;

  const int part = static_cast<int>(blockIdx.x);
  const int list_heads = args.queries.query_heads / args.lists;
  const int passes = (list_heads + kHeads - 1) / kHeads;
  const int list = static_cast<int>(blockIdx.y) / passes;
  const int request = static_cast<int>(blockIdx.z);
  const int first_in_list = static_cast<int>(blockIdx.y) % passes * kHeads;
  const int head_count = min(kHeads, list_heads - first_in_list);
  const int first_head = list * list_heads + first_in_list;
  const int kv_head = first_head / (args.queries.query_heads / args.queries.kv_heads);
  const int floats = partial_floats(args.shape.head_dim);
  float* const partials =
      args.partials + (static_cast<std::int64_t>(request * args.queries.query_heads + first_head) * kParts + part) * floats;

  const int entries =
      min(max(args.num_completed[request * args.num_request_stride + list * args.num_list_stride], 0), args.capacity);
  const int chunks = (entries + kPagesAtOnce - 1) / kPagesAtOnce;
  const int begin = static_cast<int>(std::int64_t{part} * chunks / kParts);
  const int end = static_cast<int>(std::int64_t{part + 1} * chunks / kParts);
  if (begin == end) {  // the whole CTA
    if (static_cast<int>(threadIdx.x) < head_count) {
      partials[threadIdx.x * kParts * floats + args.shape.head_dim] = kNoLogit;
      partials[threadIdx.x * kParts * floats + args.shape.head_dim + 1] = 0.0F;
    }
    return;
  }

  std::byte* const stages = reinterpret_cast<std::byte*>(shared) + sizeof(queries) + warp * kStages * Slot::kStage;
  const std::byte* const keys = args.keys.data + kv_head * args.keys.head_stride;
  const std::byte* const values = args.values.data + kv_head * args.values.head_stride;
  const SelectedPage* const completed =
      args.completed + request * args.completed_request_stride + list * args.completed_list_stride;
  // A page is looked up in two steps, its entry and then its block, each a round ahead of the next: nothing waits.
  const auto entry_of = [&](int chunk) {
    const int entry = chunk * kPagesAtOnce + lane % kPagesAtOnce;
    SelectedPage found = chunk < end ? completed[min(entry, entries - 1)] : SelectedPage{};
    if (entry >= entries) found.mask = 0;
    return found;
  };
  const auto place_of_entry = [&](int chunk, const SelectedPage& entry) {
    return chunk < end ? place_of(args.table, request, entry.page) : PagePlace{};
  };
  int ahead = begin + warp;
  const auto copy_next = [&](int stage, const PagePlace& place) {
    if (ahead < end) {
      const int page = page_number(args.table, place);
      copy_records<Slot::kKey>(args.keys, keys, page, stages + stage * Slot::kStage, lane);
      copy_records<Slot::kValue>(args.values, values, page, stages + stage * Slot::kStage + kPagesAtOnce * Slot::kKey, lane);
    }
    ptx::commit_copies();
    ahead += warps;
  };
  SelectedPage listed[kStages + 2];
  PagePlace places[kStages + 1];
#pragma unroll
  for (int i = 0; i < kStages + 2; ++i) listed[i] = entry_of(ahead + i * warps);
  const HeadsOfCta<kUnits, kHeads> query(args.queries, request, first_head, head_count, args.shape.head_dim);
#pragma unroll
  for (int i = 0; i < kStages + 1; ++i) places[i] = place_of_entry(ahead + i * warps, listed[i]);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) copy_next(stage, places[stage]);
  query.quantise(Lane::kFormat.rotated, queries);
  __syncthreads();
  const Lane own(args.shape, lane);
  HeadLane<kId, kUnits, 1> heads;
  heads.read(own, queries, args.queries.softmax_scale, args.queries.softmax_scale);
  State<kUnits> state;
  int stage = 0;
  for (int chunk = begin + warp; chunk < end; chunk += warps) {
    ptx::wait_copies<kStages - 1>();
    __syncwarp();
    add_eight(own, heads, queries, args.shape, args.values_at, stages + stage * Slot::kStage, listed[0].mask, state);
    __syncwarp();  // every lane has read the stage
    copy_next(stage, places[kStages]);
    places[kStages] = place_of_entry(ahead, listed[kStages + 1]);
#pragma unroll
    for (int i = 0; i < kStages + 1; ++i) listed[i] = listed[i + 1];
    listed[kStages + 1] = entry_of(ahead + warps);
    stage = 1 - stage;
  }
  __syncthreads();  // the stages are free
  write_part(state, args.shape, head_count, warps,
             reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + sizeof(queries)), partials,
             std::int64_t{kParts} * floats);
}

template <FormatId kId, int kUnits>
void launch_sums(const Sums& args, Stream stream) {
  using Slot = Slots<kId, kUnits>;
  static_assert(kStages == 2 && kStages * Slot::kStage >= kHeads * partial_floats(64 * kUnits) * 4, "states fit the stages");
  const auto shape = launch_shape(sum_completion<kId, kUnits>, static_cast<int>(sizeof(SharedQueries<kUnits, kHeads>)),
                                  kStages * Slot::kStage, kMaxWarps, 1);
  const int list_heads = args.queries.query_heads / args.lists;
  const dim3 grid(kParts, args.lists * ((list_heads + kHeads - 1) / kHeads), args.requests);
  sum_completion<kId, kUnits><<<grid, 32 * shape.warps, shape.shared_bytes, stream>>>(args);
  check_launch("sum_completion");
}

template <FormatId kId>
void launch(const Sums& args, Stream stream) {
  with_units(args.shape.head_dim, [&](auto units) { launch_sums<kId, units()>(args, stream); });
}

}  // namespace locks::cuda::complete_kernels
