// What choose_pages leaves to no other kernel if whole pages are selected: what is skipped, and the completion.
#pragma once

#include "select/largest.cuh"
#include "select/shares.cuh"

namespace locks::cuda::select_kernels {

/// The skipped mass of each head, and the coverage: the mass of all pages, less that of the `count` selected ones. Marked
/// pages have no mass. For one block; `words`: candidate_words().
__device__ inline void sum_unselected(const Lists& lists, const Gang& gang, int count, std::uint32_t* words) {
  const SelectArgs& args = lists.args;
  const int heads = lists.heads;
  std::uint32_t* const marked = words + std::int64_t{count} * heads;
  auto* const shares = reinterpret_cast<float*>(words);
  share_out((count + 31) / 32, [&](int i) { marked[i] = 0; });
  __syncthreads();
  share_out(count * heads, [&](int i) {
    const auto [selected, in_list] = lists.divided(i);
    const float share = share_of_page(lists, gang, in_list, args.candidates(gang.request, gang.list, selected));
    shares[in_list * count + selected] = share;
    if (share == kInfinity) atomicOr(&marked[selected / 32], 1U << selected % 32);
  });
  __syncthreads();
  const int lane = thread_index() % kLanes;
  const int half_warp = thread_index() / kLanes;
#pragma unroll 1
  for (int first = 0; first + half_warp / 2 * 2 < heads; first += num_half_warps()) {  // whole warps
    const int in_list = min(first + half_warp, heads - 1);
    float of_selected = 0.0F;
#pragma unroll 4
    for (int i = lane; i < count; i += kLanes) {
      of_selected += (marked[i / 32] >> i % 32 & 1) != 0 ? 0.0F : shares[in_list * count + i];
    }
    of_selected = fold_half_warp(of_selected);
    if (first + half_warp < heads && lane == 0) say_skipped(lists, gang, in_list, count, of_selected, 0.0F);
  }
}

/// The pages of the completion, but for the selected ones: one block. `marks`: the completion's.
__device__ inline void write_next_best(const Lists& lists, const Gang& gang, int count, const Marks& marks, int* scratch) {
  const SelectArgs& args = lists.args;
  const int num_words = (gang.num_pages + 31) / 32;
  std::uint32_t* const taken = marks.taken();
  auto* const before = reinterpret_cast<std::int32_t*>(marks.equal());
  share_out(count, [&](int i) {
    const int page = args.candidates(gang.request, gang.list, i) - gang.sink_pages;
    atomicAnd(&taken[page / 32], ~(1U << page % 32));
  });
  __syncthreads();
  const int total = count_before(taken, before, num_words, scratch);
  if (threadIdx.x == 0) args.num_completed(gang.request, gang.list) = total;
  SelectedPage* const completed = &args.completed(gang.request, gang.list, 0);
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = thread_index() / 32; i < num_words; i += num_warps()) {  // a warp a word: neighbours lie side by side
    if ((taken[i] >> lane & 1) == 0) continue;
    completed[before[i] + __popc(taken[i] & ((1U << lane) - 1U))] = {gang.sink_pages + i * 32 + static_cast<int>(lane),
                                                                     kWholePage};
  }
}

}  // namespace locks::cuda::select_kernels
