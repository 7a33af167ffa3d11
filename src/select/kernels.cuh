// The two kernels of a selection. Grid of both: gangs, one a list; requests.
#pragma once

#include "cuda/chain.cuh"
#include "select/completion.cuh"
#include "select/memory.cuh"
#include "select/shares.cuh"

namespace locks::cuda::select_kernels {
namespace {  // the emulated kernels of a test are others than the library's

/// The candidates; with whole pages, the selection. They are few: a thread a word.
__device__ inline void write_candidates(const Lists& lists, const Gang& gang, const Marks& marks, int* scratch) {
  const SelectArgs& args = lists.args;
  const bool whole = args.config.part_tokens == kPageTokens;
  std::int32_t* const candidates = &args.candidates(gang.request, gang.list, 0);
  SelectedPage* const selected = &args.selected(gang.request, gang.list, 0);
  const int num_words = (gang.num_pages + 31) / 32;
  int before = 0;
  for (int base = 0; base < num_words; base += num_threads()) {
    const int i = base + thread_index();
    std::uint32_t word = i < num_words ? marks.taken()[i] : 0;
    int total = 0;
    int position = before + sum_before(__popc(word), scratch, total);
    before += total;
    for (; word != 0; word &= word - 1, ++position) {
      const int page = gang.sink_pages + i * 32 + __ffs(static_cast<int>(word)) - 1;
      candidates[position] = page;
      if (whole) selected[position] = {page, kWholePage};
    }
  }
  if (threadIdx.x != 0) return;
  args.num_candidates(gang.request, gang.list) = before;
  if (!whole) return;
  args.num_selected(gang.request, gang.list) = before;
  if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries + before;
}

/// Step 1, and the pages of the completion.
__global__ void __launch_bounds__(kMostThreads, 1)
    choose_pages(const __grid_constant__ Lists lists, const __grid_constant__ PagesMemory memory) {
  auto* const shared = dynamic_shared<std::byte>();
  __shared__ int scratch[kMostThreads / 32];
  const Gang gang(lists);
  let_next_start();
  prepare(lists, gang);
  auto* const norms = reinterpret_cast<float*>(shared + memory.norms);
  const Counts counts{reinterpret_cast<std::int32_t*>(shared + memory.counts),
                      reinterpret_cast<Search*>(shared + memory.found)};
  for (int i = thread_index(); i < kBuckets; i += num_threads()) counts.buckets[i] = 0;
  __shared__ int wanted[2];
  if (threadIdx.x == 0) {
    const SelectArgs& args = lists.args;
    const AlwaysAttended always = lists.always(gang.request);
    wanted[kCandidates] = min(select::candidate_pages(args.config, always), static_cast<int>(args.candidates.shape[2]));
    wanted[kCompletion] = min(select::completed_pages(args.config, always), static_cast<int>(args.completed.shape[2]));
  }
  wait_for_previous();
  if (gang.num_blocks() == 0) return;
  read_always(lists, gang, norms);

  const int first_block = gang.first_block();
  const int last_block = gang.last_block();
  Round round{first_block, last_block, reinterpret_cast<float*>(shared + memory.masses),
              reinterpret_cast<float*>(shared + memory.factors)};
  const auto next_round = [&](int first) {
    round.first = first;
    round.last = min(first + memory.round_blocks, last_block);
  };
  for (int first = first_block; first < last_block; first += memory.round_blocks) {
    next_round(first);
    weigh_blocks(lists, gang, round);
  }
  gang.sync();
  find_norms(lists, gang, norms);
  const int first_page = first_block * kBlockPages;
  const int pages = min(last_block * kBlockPages, gang.num_pages) - first_page;
  float* const share =
      memory.keeps_shares
          ? reinterpret_cast<float*>(shared + memory.shares)
          : lists.buffers.share + lists.list_at(gang.request, gang.list) * lists.buffers.max_pages + first_page;
  for (int first = first_block; first < last_block; first += memory.round_blocks) {
    if (last_block - first_block > memory.round_blocks) {
      __syncthreads();
      next_round(first);
      weigh_blocks(lists, gang, round);  // again, to the same bits: there was no place to keep them
      __syncthreads();
    }
    share_pages(lists, gang, round, norms, share + (first - first_block) * kBlockPages, counts.buckets);
  }
  const Marks marks(shared + memory.marks, lists.buffers.max_pages);
  if (threadIdx.x == 0) marks.num_members() = 0;  // where the masses were
  gather_counts(gang, counts.buckets);
  gang.sync();

  if (gang.rank == 0) {
    const auto [found] = find_buckets(counts.buckets, {wanted[kCandidates], wanted[kCompletion]}, scratch);
    for (int of = kCandidates; of <= kCompletion; ++of) {
      tell(gang, counts.found + of, wanted[of] > 0 ? search_of(found[of]) : Search{});
    }
  }
  gang.sync();
#pragma unroll 1
  for (int of = kCandidates; of <= kCompletion; ++of) narrow(gang, share, pages, counts, of, scratch);
  // The last block decides about the completion, if there is one besides the first.
  const int other = gang.size() - 1;
#pragma unroll 1
  for (int of = kCandidates; of <= kCompletion; ++of) {
    mark(counts.found[of], share, first_page, pages, of == kCompletion, marks.of(gang, of == kCandidates ? 0 : other));
    if (of == kCandidates && other > 0) continue;
    gang.sync();
    const int own = other == 0 ? of : (gang.rank == 0 ? kCandidates : kCompletion);
    if (gang.rank != 0 && gang.rank != other) return;
    take_members(counts.found[own], marks, (gang.num_pages + 31) / 32, scratch, counts.buckets);
    if (own == kCandidates) {
      write_candidates(lists, gang, marks, scratch);
    } else {
      keep_completed(lists, gang, marks);
    }
    if (other > 0) return;
    __syncthreads();
    if (threadIdx.x == 0) marks.num_members() = 0;
    __syncthreads();
  }
}

/// Steps 2 to 4. `wants_rest`: more than the selection.
__global__ void __launch_bounds__(kMostThreads, 1)
    choose_tokens(const __grid_constant__ Lists lists, const __grid_constant__ TokensMemory memory, bool wants_rest) {
  auto* const shared = dynamic_shared<std::byte>();
  __shared__ int scratch[kMostThreads / 32];
  const Gang gang(lists);
  let_next_start();
  // With parts the kernel in front scores the candidates' tokens, and lets this one start when choose_pages has ended. So
  // much of it as choose_pages has written, past the first-level cache, can be read without waiting.
  const int parts = kPageTokens / lists.args.config.part_tokens;
  if (parts == 1) wait_for_previous();
  const int heads = lists.heads;
  const int capacity = lists.buffers.capacity;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  auto* const words = memory.keeps_candidates ? reinterpret_cast<std::uint32_t*>(shared + memory.candidates)
                                              : lists.buffers.candidate_words + at * candidate_words(capacity, parts, heads);
  const Candidates candidates(words, capacity, parts, heads);
  const int count = gang.num_blocks() == 0 ? 0 : __ldcg(&lists.args.num_candidates(gang.request, gang.list));
  const PartChoice choice{lists, gang, candidates, count, parts};
  auto* const taken = reinterpret_cast<std::uint32_t*>(shared + memory.taken);
  auto* const counts = reinterpret_cast<std::int32_t*>(shared + memory.counts);
  const bool completes = wants_rest && lists.args.completed.shape[2] > 0;
  const int num_words = (gang.num_pages + 31) / 32;
  if (completes) {
    const std::uint32_t* const completed = lists.buffers.completed + at * (lists.buffers.max_pages / 32);
    for (int i = thread_index(); i < num_words; i += num_threads()) taken[i] = __ldcg(completed + i);
  }
  gang.sync();  // every block runs: its memory can be written
  const Candidates there = gang.size() > 1 ? Candidates(gang.at(words, 0), capacity, parts, heads) : candidates;
  choice.weigh_pages(there);
  if (parts > 1) {
    wait_for_previous();
    choice.weigh_parts(there);
  }
  if (gang.num_blocks() == 0) return;
  gang.sync();
  if (gang.rank == 0) {
    choice.combine();
    if (parts > 1) choice.choose(scratch, counts);
    for (int rank = 1; completes && rank < gang.size(); ++rank) {
      const Candidates there(gang.at(words, rank), capacity, parts, heads);
      for (int i = thread_index(); i < choice.count; i += num_threads()) {
        there.page[i] = candidates.page[i];
        there.mask[i] = candidates.mask[i];
      }
    }
  }
  gang.sync();
  if (gang.rank == 0) {
    const int num_selected = parts > 1 ? choice.write(scratch) : choice.count;
    if (wants_rest) choice.sum_skipped(num_selected);
    __syncthreads();
  }
  if (completes && (gang.rank > 0 || gang.size() == 1)) {
    write_completion(lists, gang, choice, taken, reinterpret_cast<std::int32_t*>(shared + memory.before), scratch);
  }
}

}  // namespace
}  // namespace locks::cuda::select_kernels
