// Logits of the tokens of listed pages. A warp takes eight entries of a list, for up to eight of its query heads.
#pragma once

#include "cuda/chain.cuh"
#include "cuda/launch.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/pages.cuh"
#include "cuda/record.cuh"
#include "cuda/shared.cuh"
#include "score/score_launch.h"

namespace locks::cuda::score_kernels {

constexpr int kTokenWarps = 4;
constexpr int kTokenHeads = 8;
constexpr int kTokenBlocks = 4;  // of a multiprocessor

template <FormatId kId, int kUnits>
__global__ void __launch_bounds__(32 * kTokenWarps, kTokenBlocks) score_tokens(const __grid_constant__ TokenScores args) {
  using Lane = RecordLane<kId, kUnits>;
  constexpr int kSlot = Lane::kSlotBytes;
  LOCKS_DYNAMIC_SHARED(uint4, shared);
  auto& queries = *reinterpret_cast<SharedQueries<kUnits, kTokenHeads>*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;

  const int list_heads = args.queries.query_heads / args.lists;
  const int passes = (list_heads + kTokenHeads - 1) / kTokenHeads;
  const int pass = static_cast<int>(blockIdx.y) % passes;
  const int list = static_cast<int>(blockIdx.y) / passes;
  const int request = static_cast<int>(blockIdx.z);
  if (args.whole_tokens > 0 && args.context_tokens[request] <= args.whole_tokens) {
    let_next_start();
    return only_first_block_waits();
  }
  const int first_in_list = pass * kTokenHeads;
  const int head_count = min(kTokenHeads, list_heads - first_in_list);
  const int first_head = list * list_heads + first_in_list;
  const int kv_head = first_head / (args.queries.query_heads / args.queries.kv_heads);
  const HeadsOfCta<kUnits, kTokenHeads> query(args.queries, request, first_head, head_count, args.shape.head_dim);
  wait_for_previous();
  let_next_start();  // not before: what comes next reads the candidates too, and does not wait for them
  const int entries = min(args.num_pages[request * args.num_request_stride + list * args.num_list_stride], args.capacity);
  if (static_cast<int>(blockIdx.x) * warps * kPagesAtOnce >= entries) return;  // the whole CTA

  std::byte* const slots = reinterpret_cast<std::byte*>(shared) + sizeof(queries) + warp * kPagesAtOnce * kSlot;
  const std::int32_t* const pages = args.pages + request * args.pages_request_stride + list * args.pages_list_stride;
  const auto copy = [&](int first) {
    if (first < entries) {
      const PagePlace place = place_of(args.table, request, pages[min(first + lane % kPagesAtOnce, entries - 1)]);
      copy_records<kSlot>(args.records, args.records.data + kv_head * args.records.head_stride,
                          page_number(args.table, place), slots, lane);
    }
    ptx::commit_copies();
  };
  int first = (static_cast<int>(blockIdx.x) * warps + warp) * kPagesAtOnce;
  copy(first);
  query.quantise(Lane::kFormat.rotated, queries);
  __syncthreads();
  const Lane own(args.shape, lane);
  HeadLane<kId, kUnits, 1> heads;
  heads.read(own, queries, args.queries.softmax_scale, args.queries.softmax_scale);
  float* const out = args.logits + request * args.logits_request_stride + list * args.logits_list_stride;
#pragma unroll 1
  while (first < entries) {
    ptx::wait_copies<0>();
    __syncwarp();
    float means[1][2];
    mean_logits(own, heads, queries, args.shape, slots + own.g * kSlot, means);
#pragma unroll 1
    for (int pair = 0; pair < kPagesAtOnce; pair += 2) {
      const std::byte* const record = slots + pair * kSlot;
      float deviations[2][1][4];
      two_deviations(own, heads, record, record + kSlot, deviations);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 scales = Lane::kTokenScales ? own.token_scales(record + i * kSlot) : float2{1.0F, 1.0F};
        const float mean[2] = {__shfl_sync(kAllLanes, means[0][0], 4 * (pair + i) + own.j),
                               __shfl_sync(kAllLanes, means[0][1], 4 * (pair + i) + own.j)};
        if (first + pair + i >= entries) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int head = 2 * own.j + k % 2;
          const float logit = __fmaf_rn(deviations[i][0][k], k < 2 ? scales.x : scales.y, mean[k % 2]);
          if (head < head_count) {
            out[(first + pair + i) * args.logits_page_stride + (first_in_list + head) * kPageTokens +
                own.token_of_row(k < 2 ? own.g : own.g + 8)] = logit;
          }
        }
      }
    }
    first += static_cast<int>(gridDim.x) * warps * kPagesAtOnce;
    __syncwarp();  // every lane has read the records
    copy(first);
  }
}

template <FormatId kId, int kUnits>
void launch_tokens(const TokenScores& args, Stream stream) {
  const int fixed = static_cast<int>(sizeof(SharedQueries<kUnits, kTokenHeads>));
  const auto shape = launch_shape(score_tokens<kId, kUnits>, fixed, kPagesAtOnce * RecordLane<kId, kUnits>::kSlotBytes,
                                  kTokenWarps, kTokenBlocks);
  const int list_heads = args.queries.query_heads / args.lists;
  const int passes = (list_heads + kTokenHeads - 1) / kTokenHeads;
  const int at_once = kPagesAtOnce * shape.warps;
  // With many lists a CTA takes more pages, for whose sake it quantises the queries once.
  const int columns = args.lists * passes * args.requests;
  const int blocks = std::clamp(shape.resident / columns, 1, (args.capacity + at_once - 1) / at_once);
  const dim3 grid(blocks, args.lists * passes, args.requests);
  launch_kernel<score_tokens<kId, kUnits>>(
      {"score_tokens", args.start, grid, 32 * shape.warps, static_cast<std::size_t>(shape.shared_bytes), stream}, args);
}

template <FormatId kId>
void launch(const TokenScores& args, Stream stream) {
  with_units(args.shape.head_dim, [&](auto units) { launch_tokens<kId, units()>(args, stream); });
}

}  // namespace locks::cuda::score_kernels
