// The pages that stand in for what is skipped: choose_pages finds them, choose_tokens takes out what is selected (of whole
// pages: whole_pages.cuh).
#pragma once

#include "select/largest.cuh"
#include "select/parts.cuh"

namespace locks::cuda::select_kernels {

/// The pages of the completion, for choose_tokens.
__device__ inline void keep_completed(const Lists& lists, const Gang& gang, const Marks& marks) {
  const int words = lists.buffers.max_pages / 32;
  std::uint32_t* const completed = lists.buffers.completed + lists.list_at(gang.request, gang.list) * words;
  share_out((gang.num_pages + 31) / 32, [&](int i) { completed[i] = marks.taken()[i]; });
}

/// The pages of the completion, less what is selected: this block's share of the words, if the gang's blocks from
/// `first_rank` on do it. `taken` has all of them.
__device__ inline void write_completion(const Lists& lists, const Gang& gang, const PartChoice& choice, int first_rank,
                                        std::uint32_t* taken, std::int32_t* before, int* scratch) {
  const SelectArgs& args = lists.args;
  const int num_words = (gang.num_pages + 31) / 32;
  const Candidates& candidates = choice.candidates;
  const auto page_of = [&](int i) { return candidates.page[i] - gang.sink_pages; };
  share_out(choice.count, [&](int i) {
    if (candidates.mask[i] == kWholePage) atomicAnd(&taken[page_of(i) / 32], ~(1U << page_of(i) % 32));
  });
  __syncthreads();
  const int total = count_before(taken, before, num_words, scratch);
  const int blocks = gang.size() - first_rank;
  const int block = gang.rank - first_rank;
  if (block == 0 && threadIdx.x == 0) args.num_completed(gang.request, gang.list) = total;
  SelectedPage* const completed = &args.completed(gang.request, gang.list, 0);
  const int first = block * num_words / blocks;
  const int last = (block + 1) * num_words / blocks;
  const unsigned lane = threadIdx.x % 32;
  const auto position_of = [&](int word, unsigned bit) { return before[word] + __popc(taken[word] & ((1U << bit) - 1U)); };
#pragma unroll 1
  for (int i = first + thread_index() / 32; i < last; i += num_warps()) {  // a warp a word: neighbours lie side by side
    const int page = gang.sink_pages + i * 32 + static_cast<int>(lane);
    if ((taken[i] >> lane & 1) != 0) completed[position_of(i, lane)] = {page, kWholePage};
  }
  __syncthreads();
  share_out(choice.count, [&](int i) {
    const int word = page_of(i) / 32;
    const auto bit = static_cast<unsigned>(page_of(i) % 32);
    if (candidates.mask[i] == 0 || word < first || word >= last || (taken[word] >> bit & 1) == 0) return;
    completed[position_of(word, bit)].mask = static_cast<std::uint16_t>(~candidates.mask[i]);
  });
}

}  // namespace locks::cuda::select_kernels
