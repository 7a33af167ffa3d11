// From log-masses to shares. A share needs the masses of all pages, so the gang meets between the two steps.
#pragma once

#include "select/cut.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kRows = kBlockPages / kLanes;  // of 16 pages: what a thread of a half-warp has of a block

/// The gang does it together.
__device__ inline void clear_buckets(const Gang& gang, std::int32_t* buckets) {
  for (int i = gang.rank * kThreads + thread_index(); i < kBuckets; i += gang.size() * kThreads) buckets[i] = 0;
}

/// Clears what a selection counts in, and says what holds for a list that selects nothing.
__device__ inline void prepare(const Lists& lists, const Gang& gang) {
  const SelectArgs& args = lists.args;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  if (gang.rank == 0 && threadIdx.x == 0) {
    lists.buffers.num_members[at] = 0;
    args.num_candidates(gang.request, gang.list) = 0;
    args.num_selected(gang.request, gang.list) = 0;
    args.num_completed(gang.request, gang.list) = 0;
    if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries;
  }
  for (int head = thread_index(); gang.rank == 0 && head < lists.heads; head += kThreads) {
    args.skipped_log_mass(gang.request, gang.list * lists.heads + head) = -kInfinity;
    args.coverage(gang.request, gang.list * lists.heads + head) = 1.0F;
  }
  if (gang.num_blocks() == 0) return;
  clear_buckets(gang, lists.buffers.buckets + at * kBuckets);
  clear_buckets(gang, lists.buffers.fine_buckets + at * kBuckets);
}

/// A block of pages and a query head: what a half-warp takes. One that has none beside one that does repeats the last one's.
struct HeadBlock {
  bool is_own;
  int in_list;  // the head
  int block;
  int head;
  std::int64_t head_at;
  const float* log_mass;
  int pages;  // from the block's first on

  __device__ HeadBlock(const Lists& lists, const Gang& gang, int index, int first_block, int last_block) {
    const int count = (last_block - first_block) * lists.heads;
    is_own = index < count;
    index = min(index, count - 1);
    block = first_block + index / lists.heads;
    in_list = index % lists.heads;
    head = gang.list * lists.heads + in_list;
    head_at = lists.head_at(gang.request, head);
    log_mass = lists.args.log_mass.at(gang.request, head, gang.sink_pages) + std::int64_t{block} * kBlockPages;
    pages = gang.num_pages - block * kBlockPages;
  }
  /// Whether this warp has one, of `count`.
  [[nodiscard]] static __device__ bool any_in_warp(int base, int count) { return base + thread_index() / 32 * 2 < count; }
  [[nodiscard]] __device__ float mass(int page) const { return page < pages ? log_mass[page] : -kInfinity; }
};

/// The masses of the gang's blocks.
__device__ inline void weigh_blocks(const Lists& lists, const Gang& gang) {
  const int lane = thread_index() % kLanes;
  const int count = (gang.last_block() - gang.first_block()) * lists.heads;
  for (int base = 0; HeadBlock::any_in_warp(base, count); base += kHalfWarps) {
    const HeadBlock own(lists, gang, base + thread_index() / kLanes, gang.first_block(), gang.last_block());
    float mass[kRows];
    float peak = -kInfinity;
#pragma unroll
    for (int row = 0; row < kRows; ++row) mass[row] = own.mass(row * kLanes + lane);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      mass[row] = select::mass_or_none(mass[row]);
      peak = fmaxf(peak, mass[row]);
    }
    peak = largest_of_half_warp(peak);
    const float origin = peak > -kInfinity ? peak : 0.0F;
    float sum = 0.0F;
#pragma unroll
    for (int row = 0; row < kRows; ++row) sum += select::share_exp(mass[row] - origin);
    sum = fold_half_warp(sum);
    if (own.is_own && lane == 0) lists.buffers.masses[own.head_at * lists.buffers.max_blocks + own.block] = {origin, sum};
  }
}

/// The logarithms of the heads' whole masses; every thread block of the gang needs them.
__device__ inline void find_norms(const Lists& lists, const Gang& gang, float* norms) {
  const int half_warp = thread_index() / kLanes;
  for (int first = 0; first + half_warp / 2 * 2 < lists.heads; first += kHalfWarps) {  // whole warps
    const int in_list = min(first + half_warp, lists.heads - 1);
    const int head = gang.list * lists.heads + in_list;
    const std::int64_t at = lists.head_at(gang.request, head);
    const float log_norm = half_warp_log_norm(lists.buffers.masses + at * lists.buffers.max_blocks, gang.num_blocks(),
                                              always_log_mass(lists, gang.request, head));
    if (thread_index() % kLanes != 0) continue;
    norms[in_list] = log_norm;
    if (gang.rank == 0) lists.buffers.log_norm[at] = log_norm;
  }
  __syncthreads();
}

/// Blocks of one list that share_pages does at a time: so many that every half-warp has one, of one head.
[[nodiscard]] constexpr int round_blocks(int heads) noexcept { return heads < kHalfWarps ? kHalfWarps / heads : 1; }
[[nodiscard]] constexpr int share_floats(int heads) noexcept {  // of dynamic shared memory
  return heads + round_blocks(heads) * heads * kBlockPages;
}

/// Shares of the gang's pages for all heads of the list, their combination, and the counts of its buckets. `norms` [heads];
/// `of_heads` [blocks of a round, heads, kBlockPages].
__device__ inline void share_pages(const Lists& lists, const Gang& gang, const float* norms, float* of_heads) {
  __shared__ std::int32_t counts[kBuckets];
  const Buffers& buffers = lists.buffers;
  const int heads = lists.heads;
  const int lane = thread_index() % kLanes;
  for (int i = thread_index(); i < kBuckets; i += kThreads) counts[i] = 0;
  float* const list_share = buffers.share + lists.list_at(gang.request, gang.list) * buffers.max_pages;
  for (int first = gang.first_block(); first < gang.last_block(); first += round_blocks(heads)) {
    const int last = min(first + round_blocks(heads), gang.last_block());
    for (int base = 0; HeadBlock::any_in_warp(base, (last - first) * heads); base += kHalfWarps) {
      const int index = base + thread_index() / kLanes;
      const HeadBlock own(lists, gang, index, first, last);
      const float norm = norms[own.in_list];
      float sum = 0.0F;
#pragma unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float mass = own.mass(row * kLanes + lane);
        const float share = select::share_exp(select::mass_or_none(mass) - norm);
        if (own.is_own) of_heads[index * kBlockPages + row * kLanes + lane] = mass == kInfinity ? kInfinity : share;
        sum += mass == kInfinity ? 0.0F : share;
      }
      sum = fold_half_warp(sum);
      if (own.is_own && lane == 0) buffers.block_shares[own.head_at * buffers.max_blocks + own.block] = sum;
    }
    __syncthreads();
    const int pages = min(gang.num_pages - first * kBlockPages, (last - first) * kBlockPages);
    for (int page = thread_index(); page < pages; page += kThreads) {
      const float* const of_page = of_heads + page / kBlockPages * heads * kBlockPages + page % kBlockPages;
      float share = of_page[0];
#pragma unroll 4
      for (int head = 1; head < heads; ++head) {
        const float other = of_page[head * kBlockPages];
        share = lists.args.config.combine == GroupCombine::kMax ? fmaxf(share, other) : share + other;
      }
      list_share[first * kBlockPages + page] = share;
      atomicAdd(&counts[bucket_of(share)], 1);
    }
    __syncthreads();
  }
  add_counts(counts, buffers.buckets + lists.list_at(gang.request, gang.list) * kBuckets);
}

}  // namespace locks::cuda::select_kernels
