// From log-masses to shares: two launches, because a share needs the masses of all pages.
#pragma once

#include "select/fold.cuh"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kThreads = kBlockPages;
inline constexpr int kHalfWarps = kThreads / kLanes;
inline constexpr int kRows = kBlockPages / kLanes;  // of 16 pages: what a thread of a half-warp has of a block

/// The masses of the blocks of pages; clears what the next launches count in. Grid: blocks, sets of kHalfWarps heads,
/// requests.
__global__ void __launch_bounds__(kThreads) block_masses(const __grid_constant__ Lists lists) {
  const int request = static_cast<int>(blockIdx.z);
  const int block = static_cast<int>(blockIdx.x);
  const AlwaysAttended always = lists.always(request);
  const int pages = always.selectable_pages() - block * kBlockPages;
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    const std::int64_t first = lists.list_at(request, 0) * kBuckets;
    for (int i = static_cast<int>(threadIdx.x); i < lists.args.num_lists * kBuckets; i += kThreads) {
      lists.buffers.buckets[first + i] = 0;
    }
    for (int list = static_cast<int>(threadIdx.x); list < lists.args.num_lists; list += kThreads) {
      lists.buffers.num_members[lists.list_at(request, list)] = 0;
      lists.buffers.done[lists.list_at(request, list)] = 0;
    }
  }
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int head = static_cast<int>(blockIdx.y * kHalfWarps + threadIdx.x / kLanes);
  const bool works = head < lists.query_heads && pages > 0;
  const float* const log_mass = works ? lists.log_mass(request, head, always) + std::int64_t{block} * kBlockPages : nullptr;
  float own[kRows];
  float peak = -kInfinity;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int page = row * kLanes + lane;
    own[row] = works && page < pages ? select::mass_or_none(log_mass[page]) : -kInfinity;
    peak = fmaxf(peak, own[row]);
  }
  peak = largest_of_half_warp(peak);
  const float origin = peak > -kInfinity ? peak : 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int row = 0; row < kRows; ++row) sum += select::share_exp(own[row] - origin);
  sum = fold_half_warp(sum);
  if (works && lane == 0) {
    lists.buffers.masses[lists.head_at(request, head) * lists.buffers.max_blocks + block] = {origin, sum};
  }
}

inline constexpr int kShareBlocks = 2;  // of a thread block: with 8 heads, every half-warp has one block of one head

/// Thread blocks of page_shares that a multiprocessor holds: 512 of them are one wave on an H200. Code for earlier devices
/// would spill.
#if __CUDA_ARCH__ >= 900
#define LOCKS_SHARE_BLOCKS_RESIDENT 4
#else
#define LOCKS_SHARE_BLOCKS_RESIDENT 3
#endif

/// Shares of pages for all heads of a list, their combination, and the counts of its buckets. `of_heads`
/// [kShareBlocks, heads, kBlockPages]. Grid: sets of kShareBlocks blocks, lists, requests.
__global__ void __launch_bounds__(kThreads, LOCKS_SHARE_BLOCKS_RESIDENT) page_shares(const __grid_constant__ Lists lists) {
  extern __shared__ float of_heads[];
  __shared__ std::int32_t counts[kBuckets];
  const int request = static_cast<int>(blockIdx.z);
  const int list = static_cast<int>(blockIdx.y);
  const AlwaysAttended always = lists.always(request);
  const int first_page = static_cast<int>(blockIdx.x) * kShareBlocks * kBlockPages;
  const int pages = always.selectable_pages() - first_page;
  if (pages <= 0) return;
  const Buffers& buffers = lists.buffers;
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kThreads) counts[i] = 0;

  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int pairs = kShareBlocks * lists.heads;
  for (int first = 0; first < pairs; first += kHalfWarps) {
    const int pair = min(first + static_cast<int>(threadIdx.x / kLanes), pairs - 1);  // some work twice
    const int head = list * lists.heads + pair % lists.heads;
    const int offset = pair / lists.heads * kBlockPages;
    const std::int64_t at = lists.head_at(request, head);
    const float* const log_mass = lists.log_mass(request, head, always) + first_page + offset;
    float own[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int page = row * kLanes + lane;
      own[row] = offset + page < pages ? log_mass[page] : -kInfinity;
    }
    const float norm = half_warp_log_norm(buffers.masses + at * buffers.max_blocks, blocks_of(always),
                                          always_log_mass(lists, request, head));
    float sum = 0.0F;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float share = select::share_exp(select::mass_or_none(own[row]) - norm);
      of_heads[pair * kBlockPages + row * kLanes + lane] = own[row] == kInfinity ? kInfinity : share;
      sum += own[row] == kInfinity ? 0.0F : share;
    }
    sum = fold_half_warp(sum);
    if (lane == 0 && offset < pages) {
      buffers.block_shares[at * buffers.max_blocks + (first_page + offset) / kBlockPages] = sum;
      if (first_page + offset == 0) buffers.log_norm[at] = norm;
    }
  }
  __syncthreads();
  const std::int64_t at = lists.list_at(request, list);
  for (int page = static_cast<int>(threadIdx.x); page < min(pages, kShareBlocks * kBlockPages); page += kThreads) {
    const float* const of_page = of_heads + page / kBlockPages * lists.heads * kBlockPages + page % kBlockPages;
    float share = of_page[0];
    for (int head = 1; head < lists.heads; ++head) {
      const float other = of_page[head * kBlockPages];
      share = lists.args.config.combine == GroupCombine::kMax ? fmaxf(share, other) : share + other;
    }
    buffers.share[at * buffers.max_pages + first_page + page] = share;
    atomicAdd(&counts[__float_as_uint(share) >> kBucketShift], 1);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kThreads) {
    if (counts[i] > 0) atomicAdd(&buffers.buckets[at * kBuckets + i], counts[i]);
  }
}

}  // namespace locks::cuda::select_kernels
