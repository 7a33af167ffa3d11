// What is left of the shares when the selection is taken out: of its pages, and so of the sums of their blocks.
#pragma once

#include "select/parts.cuh"
#include "select/shares.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kRestBlocks = 8;  // of pages, at a time

/// The skipped mass of each head of a list, and the coverage, once the gang has taken the selection out.
__device__ inline void sum_skipped(const Lists& lists, const Gang& gang) {
  const int lane = thread_index() % kLanes;
  const int half_warp = thread_index() / kLanes;
  for (int first = 0; first + half_warp / 2 * 2 < lists.heads; first += kHalfWarps) {  // whole warps
    const int head = gang.list * lists.heads + min(first + half_warp, lists.heads - 1);
    const std::int64_t at = lists.head_at(gang.request, head);
    float sum = 0.0F;
#pragma unroll 8
    for (int block = lane; block < gang.num_blocks(); block += kLanes) {
      sum += lists.buffers.block_shares[at * lists.buffers.max_blocks + block];
    }
    sum = fold_half_warp(sum);
    if (first + half_warp >= lists.heads || lane != 0) continue;
    lists.args.skipped_log_mass(gang.request, head) =
        sum > 0.0F ? lists.buffers.log_norm[at] + select::share_log(sum) : -kInfinity;
    lists.args.coverage(gang.request, head) = 1.0F - sum;
  }
}

/// Takes the selection out of the gang's pages.
__device__ inline void remove_selected(const Lists& lists, const Gang& gang, const PartChoice& choice) {
  __shared__ std::int32_t candidate_of[kRestBlocks * kBlockPages];  // of a page of which something is selected; else -1
  __shared__ bool touched[kRestBlocks];
  const Buffers& buffers = lists.buffers;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  const int lane = thread_index() % kLanes;
  for (int first = gang.first_block(); first < gang.last_block(); first += kRestBlocks) {
    const int last = min(first + kRestBlocks, gang.last_block());
    const int pages = min((last - first) * kBlockPages, gang.num_pages - first * kBlockPages);
    for (int page = thread_index(); page < kRestBlocks * kBlockPages; page += kThreads) candidate_of[page] = -1;
    if (thread_index() < kRestBlocks) touched[thread_index()] = false;
    __syncthreads();
    for (int i = thread_index(); i < choice.count; i += kThreads) {
      const int page = choice.candidates.page[i] - gang.sink_pages - first * kBlockPages;
      if (page < 0 || page >= pages || choice.candidates.mask[i] == 0) continue;
      candidate_of[page] = i;
      touched[page / kBlockPages] = true;
    }
    __syncthreads();
    for (int base = 0; HeadBlock::any_in_warp(base, (last - first) * lists.heads); base += kHalfWarps) {
      const HeadBlock own(lists, gang, base + thread_index() / kLanes, first, last);
      const bool works = own.is_own && touched[own.block - first];
      if (__any_sync(kWarp, works) == 0) continue;
      const float norm = buffers.log_norm[own.head_at];
      const std::int32_t* const candidates = candidate_of + (own.block - first) * kBlockPages;
      float sum = 0.0F;
#pragma unroll 8
      for (int row = 0; row < kRows; ++row) {
        const int page = row * kLanes + lane;
        const float mass = own.mass(page);
        float left = mass == kInfinity ? 0.0F : select::share_exp(select::mass_or_none(mass) - norm);
        if (candidates[page] >= 0) left = choice.rest(candidates[page], own.in_list);
        sum += left;
      }
      sum = fold_half_warp(sum);
      if (works && lane == 0) buffers.block_shares[own.head_at * buffers.max_blocks + own.block] = sum;
    }
    // Marked pages are never completed, selected or not.
    for (int page = thread_index(); page < pages; page += kThreads) {
      float& share = buffers.share[at * buffers.max_pages + first * kBlockPages + page];
      const int candidate = candidate_of[page];
      const float before = share;
      if (candidate < 0 && before != kInfinity) continue;
      float combined = 0.0F;
      for (int head = 0; candidate >= 0 && before != kInfinity && head < lists.heads; ++head) {
        const float left = choice.rest(candidate, head);
        combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, left) : combined + left;
      }
      atomicSub(&buffers.buckets[at * kBuckets + bucket_of(before)], 1);
      atomicAdd(&buffers.buckets[at * kBuckets + bucket_of(combined)], 1);
      share = combined;
    }
    __syncthreads();
  }
}

}  // namespace locks::cuda::select_kernels
