// log_mass of every filled page. A CTA belongs to one KV head (and to 8 or 16 of its query heads) and takes an even share of
// the pages of all requests; its warps take eight pages at a time.
#pragma once

#include "cuda/chain.cuh"
#include "cuda/launch.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/pages.cuh"
#include "cuda/record.cuh"
#include "cuda/shared.cuh"
#include "score/score_launch.h"

namespace locks::cuda::score_kernels {

constexpr int kStages = 2;

/// Of a CTA at most, so that two of them have the registers that a lane needs.
template <FormatId kId, int kTiles>
constexpr int kWarps = (kTiles == 1 ? 8 : 6) - (RecordLane<kId, 1>::kHalves == 1 ? 0 : 2);

/// A step of a sum over g: lanes whose g has the bit go on with `second`, the others with `first`. The tree of additions is
/// the same for every page.
template <int kBit>
__device__ __forceinline__ float fold(int g, float first, float second) {
  const bool upper = (g & kBit) != 0;
  return (upper ? second : first) + __shfl_xor_sync(kAllLanes, upper ? first : second, 4 * kBit);
}

/// Sums of exp(deviation) of eight pages in shared memory: lane 4 g + j gets page g, heads 2 j and 2 j + 1 of each tile.
template <FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void sum_eight(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                          const std::byte* slots, float (&sums)[kTiles][2]) {
  constexpr int kSlot = RecordLane<kId, kUnits>::kSlotBytes;
  constexpr bool kTokenScales = RecordLane<kId, kUnits>::kTokenScales;
  // The integers of two pages are made while the two before them become masses, if there are registers for it.
  constexpr bool kAhead = kTiles == 1 && RecordLane<kId, kUnits>::kHalves == 1;
  float of_two[kTiles][2], of_four[kTiles][2];
  PairSums<kId, kUnits, kTiles> next;
  if (kAhead) next.make(lane, heads, slots, slots + kSlot);
#pragma unroll
  for (int pair = 0; pair < kPagesAtOnce / 2; ++pair) {
    const std::byte* const record = slots + 2 * pair * kSlot;
    if (!kAhead) next.make(lane, heads, record, record + kSlot);
    const PairSums<kId, kUnits, kTiles> own = next;
    if (kAhead && pair + 1 < kPagesAtOnce / 2) next.make(lane, heads, record + 2 * kSlot, record + 3 * kSlot);
    float exponents[2][kTiles][4];
    float masses[2][kTiles][2];
    deviations_of<0>(lane, heads, own, record, exponents[0]);
    deviations_of<1>(lane, heads, own, record + kSlot, exponents[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 scales{1.0F, 1.0F};
      if (kTokenScales) scales = lane.token_scales(record + i * kSlot);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float weights[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float scale = k < 2 ? scales.x : scales.y;
          weights[k] = ptx::exp2(kTokenScales ? exponents[i][tile][k] * scale : exponents[i][tile][k]);
        }
        masses[i][tile][0] = weights[0] + weights[2];
        masses[i][tile][1] = weights[1] + weights[3];
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float mass = fold<1>(lane.g, masses[0][tile][i], masses[1][tile][i]);
        if (pair % 2 == 1) mass = fold<2>(lane.g, of_two[tile][i], mass);
        if (pair == 3) mass = fold<4>(lane.g, of_four[tile][i], mass);
        (pair % 2 == 0 ? of_two : pair == 1 ? of_four : sums)[tile][i] = mass;
      }
    }
  }
}

/// The same with limited deviations, for the pages and heads that `wanted` says: seldom needed, so it is small rather than
/// fast.
template <FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void sum_limited(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                            const std::byte* slots, const bool (&wanted)[kTiles][2],
                                            float (&sums)[kTiles][2]) {
  constexpr float kLimit = kMaxDeviation * 1.44269504F;  // as an exponent of 2
  constexpr int kSlot = RecordLane<kId, kUnits>::kSlotBytes;
#pragma unroll 1
  for (int pair = 0; pair < kPagesAtOnce / 2; ++pair) {
    const std::byte* const record = slots + 2 * pair * kSlot;
    float exponents[2][kTiles][4];
    two_deviations(lane, heads, record, record + kSlot, exponents);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 scales{1.0F, 1.0F};
      if (RecordLane<kId, kUnits>::kTokenScales) scales = lane.token_scales(record + i * kSlot);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float masses[2] = {0.0F, 0.0F};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          // x / (2 kLimit) + 1/2, which the hardware limits to 0..1 in passing (NaN gives 0), and back.
          const float exponent = exponents[i][tile][k] * (k < 2 ? scales.x : scales.y);
          const float limited = __saturatef(__fmaf_rn(exponent, 0.5F / kLimit, 0.5F));
          masses[k % 2] += ptx::exp2(__fmaf_rn(limited, 2 * kLimit, -kLimit));
        }
#pragma unroll
        for (int head = 0; head < 2; ++head) {
#pragma unroll
          for (int step = 4; step < 32; step *= 2) masses[head] += __shfl_xor_sync(kAllLanes, masses[head], step);
          if (lane.g == 2 * pair + i && wanted[tile][head]) sums[tile][head] = masses[head];
        }
      }
    }
  }
}

/// log_mass of eight pages, lanes as above. Limits cost a tenth of the instructions and are hardly ever met, so sums are
/// made without them first. A deviation beyond the upper limit makes a sum of 2^115 or more; those below the lower one are
/// nothing beside a sum above 2^-80. The pages whose sums are not between are summed again, and they alone.
template <FormatId kId, int kUnits, int kTiles>
__device__ __forceinline__ void score_eight(const RecordLane<kId, kUnits>& lane, const HeadLane<kId, kUnits, kTiles>& heads,
                                            const SharedQueries<kUnits, 8 * kTiles>& queries, const RecordShape& shape,
                                            const std::byte* slots, float (&log_mass)[kTiles][2]) {
  float sums[kTiles][2];
  sum_eight(lane, heads, slots, sums);
  bool beyond[kTiles][2];
  bool any = false;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      beyond[tile][i] = !(sums[tile][i] > 0x1p-80F && sums[tile][i] < 0x1p115F);
      any = any || beyond[tile][i];
    }
  }
  if (__any_sync(kAllLanes, any) != 0) {
    // As if all this were new: or the compiler keeps what it has loaded and computed, for here, in registers.
    int index = 4 * lane.g + lane.j;
    asm volatile("" : "+l"(slots), "+r"(index) : : "memory");
    sum_limited(RecordLane<kId, kUnits>(shape, index), heads, slots, beyond, sums);
  }
  const std::byte* const page = slots + lane.g * RecordLane<kId, kUnits>::kSlotBytes;
  mean_logits(lane, heads, queries, shape, page, log_mass);
  const bool always = (load<std::uint8_t>(page + shape.at.flags_at) & kFlagAlwaysAttend) != 0;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float mass = __fmaf_rn(ptx::log2(sums[tile][i]), 0.693147181F, log_mass[tile][i]);
      log_mass[tile][i] = always ? __int_as_float(0x7F800000) : mass;
    }
  }
}

template <FormatId kId, int kUnits, int kTiles>
__global__ void __launch_bounds__(32 * kWarps<kId, kTiles>, kUnits < 4 ? 2 : 1)
    score_pages(const __grid_constant__ PageScores args) {
  using Lane = RecordLane<kId, kUnits>;
  constexpr int kHeads = 8 * kTiles;
  constexpr int kStage = kPagesAtOnce * Lane::kSlotBytes;
  LOCKS_DYNAMIC_SHARED(uint4, shared);
  auto& queries = *reinterpret_cast<SharedQueries<kUnits, kHeads>*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;

  const int group = args.queries.query_heads / args.queries.kv_heads;
  const int passes = (group + kHeads - 1) / kHeads;
  const int columns = args.queries.kv_heads * passes;
  const int column = static_cast<int>(blockIdx.x) % columns;
  const int kv_head = column / passes;
  const int first_in_group = column % passes * kHeads;
  const int first_head = kv_head * group + first_in_group;
  const int head_count = min(kHeads, group - first_in_group);

  const std::byte* const records = args.records.data + kv_head * args.records.head_stride;
  std::byte* const stages = reinterpret_cast<std::byte*>(shared) + sizeof(queries) + warp * kStages * kStage;
  const Lane own(args.shape, lane);

  // In a step it may start early, but nothing behind it: that would not have waited for what comes before the step.
  wait_for_previous();
  let_next_start();
  const auto filled_pages = [&](int request) {
    if (request >= args.requests) return 0;
    const int tokens = max(args.context_tokens[request], 0);
    int pages = tokens / kPageTokens;
    if (args.in_step) {
      const AlwaysAttended always = always_attended(args.pages.config, tokens, args.pages.min_context_tokens);
      pages = always.everything ? 0 : always.first_recent_page;
    }
    return min(pages, args.max_pages);
  };
  const auto score_request = [&](int request, int filled, int first, int last) {
    const auto place_of_chunk = [&](int chunk) {
      const int index = chunk * kPagesAtOnce + lane % kPagesAtOnce;
      return chunk < last ? place_of(args.table, request, min(index, filled - 1)) : PagePlace{};
    };
    int ahead = first + warp;
    const auto copy_next = [&](int stage, const PagePlace& place) {
      const int page = page_number(args.table, place);
      if (ahead < last) copy_records<Lane::kSlotBytes>(args.records, records, page, stages + stage * kStage, lane);
      ptx::commit_copies();
      ahead += warps;
    };
    PagePlace places[kStages];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) places[stage] = place_of_chunk(ahead + stage * warps);
    const HeadsOfCta<kUnits, kHeads> query(args.queries, request, first_head, head_count, args.shape.head_dim);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) copy_next(stage, places[stage]);
    PagePlace place = places[kStages - 1];
    __syncthreads();  // no warp reads the previous request's queries any more
    query.quantise(Lane::kFormat.rotated, queries);
    __syncthreads();
    HeadLane<kId, kUnits, kTiles> heads;
    heads.read(own, queries, args.queries.softmax_scale * 1.44269504F, args.queries.softmax_scale);
    int stage = 0;
    for (int chunk = first + warp; chunk < last; chunk += warps) {
      ptx::wait_copies<kStages - 2>();
      __syncwarp();
      copy_next((stage + kStages - 1) % kStages, place);
      place = place_of_chunk(ahead);
      float log_mass[kTiles][2];
      score_eight(own, heads, queries, args.shape, stages + stage * kStage, log_mass);
      const int index = chunk * kPagesAtOnce + own.g;
      float* const out = args.log_mass + request * args.request_stride + first_head * args.head_stride + index;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int head = 8 * tile + 2 * own.j + i;
          if (index < filled && head < head_count) out[head * args.head_stride] = log_mass[tile][i];
        }
      }
      __syncwarp();  // every lane has read the stage
      stage = (stage + 1) % kStages;
    }
  };

  // Chunks of eight pages of all requests, one behind the other, in even shares.
  const auto chunks_of = [](int filled) { return (filled + kPagesAtOnce - 1) / kPagesAtOnce; };
  int total = 0;
  for (int base = 0; base < args.requests; base += 32) {
    total += __reduce_add_sync(kAllLanes, chunks_of(filled_pages(base + lane)));
  }
  const std::int64_t share = static_cast<int>(blockIdx.x) / columns;
  const int shares = static_cast<int>(gridDim.x) / columns;
  const int begin = static_cast<int>(share * total / shares);
  const int end = static_cast<int>((share + 1) * total / shares);
  int before = 0;
  for (int base = 0; base < args.requests && before < end; base += 32) {
    const int filled = filled_pages(base + lane);
    const int chunks = chunks_of(filled);
    int behind = chunks;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, behind, step);
      if (lane >= step) behind += other;
    }
    behind += before;
    unsigned mine = __ballot_sync(kAllLanes, chunks > 0 && behind > begin && behind - chunks < end);
    for (; mine != 0; mine &= mine - 1) {
      const int i = __ffs(static_cast<int>(mine)) - 1;
      const int count = __shfl_sync(kAllLanes, chunks, i);
      const int from = __shfl_sync(kAllLanes, behind, i) - count;
      score_request(base + i, __shfl_sync(kAllLanes, filled, i), max(begin - from, 0), min(end - from, count));
    }
    before = __shfl_sync(kAllLanes, behind, 31);
  }
}

template <FormatId kId, int kUnits, int kTiles>
void launch_pages(const PageScores& args, Stream stream) {
  constexpr int kHeads = 8 * kTiles;
  using Lane = RecordLane<kId, kUnits>;
  const int fixed = static_cast<int>(sizeof(SharedQueries<kUnits, kHeads>));
  const auto shape = launch_shape(score_pages<kId, kUnits, kTiles>, fixed, kStages * kPagesAtOnce * Lane::kSlotBytes,
                                  kWarps<kId, kTiles>, 2);
  const int group = args.queries.query_heads / args.queries.kv_heads;
  const int columns = args.queries.kv_heads * ((group + kHeads - 1) / kHeads);
  const std::int64_t shares = page_shares(shape.resident, columns, args.requests, args.max_pages, shape.warps);
  launch_kernel<score_pages<kId, kUnits, kTiles>>(
      {"score_pages", args.in_step ? Start::kEarly : Start::kAfterPrevious, dim3(static_cast<unsigned>(shares * columns)),
       32 * shape.warps, static_cast<std::size_t>(shape.shared_bytes), stream},
      args);
}

template <FormatId kId>
void launch(const PageScores& args, Stream stream) {
  with_units(args.shape.head_dim, [&](auto units) {
    if (args.queries.query_heads / args.queries.kv_heads <= 8) return launch_pages<kId, units(), 1>(args, stream);
    launch_pages<kId, units(), 2>(args, stream);
  });
}

}  // namespace locks::cuda::score_kernels
