// The two kernels of a selection; whole pages need only the first. Grid of both: gangs, one a list; requests.
#pragma once

#include "cuda/chain.cuh"
#include "select/completion.cuh"
#include "select/memory.cuh"
#include "select/shares.cuh"
#include "select/whole_pages.cuh"

namespace locks::cuda::select_kernels {
namespace {  // the emulated kernels of a test are others than the library's

/// The candidates; with whole pages, the selection. They are few: a thread a word.
__device__ inline void write_candidates(const Lists& lists, const Gang& gang, const Marks& marks, int* scratch) {
  const SelectArgs& args = lists.args;
  const bool whole = lists.selects_pages();
  std::int32_t* const candidates = &args.candidates(gang.request, gang.list, 0);
  SelectedPage* const selected = &args.selected(gang.request, gang.list, 0);
  const int num_words = (gang.num_pages + 31) / 32;
  int before = 0;
#pragma unroll 1
  for (int base = 0; base < num_words; base += num_threads()) {
    const int i = base + thread_index();
    std::uint32_t word = i < num_words ? marks.taken()[i] : 0;
    int total = 0;
    int position = before + sum_before(__popc(word), scratch, total);
    before += total;
#pragma unroll 1
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

/// Step 1, and the pages of the completion; with whole pages, if the rest is wanted, steps 3 and 4 too. `kRanks`: scores are
/// compared as they are, a list has one row of them, and nothing is completed.
template <bool kRanks>
__global__ void __launch_bounds__(kMostThreads, 1)
    choose_pages(const __grid_constant__ Lists lists, const __grid_constant__ PagesMemory memory, bool wants_rest) {
  auto* const shared = dynamic_shared<std::byte>();
  __shared__ int scratch[kMostThreads / 32];
  const Gang gang(lists);
  let_next_start();
  prepare(lists, gang);
  [[maybe_unused]] auto* const norms = reinterpret_cast<float*>(shared + memory.norms);
  const Counts counts{reinterpret_cast<std::int32_t*>(shared + memory.counts),
                      reinterpret_cast<Search*>(shared + memory.found)};
  share_out(kBuckets, [&](int i) { counts.buckets[i] = 0; });
  if (gang.num_blocks() == 0) return only_first_block_waits();
  auto* const mail = reinterpret_cast<Mailbox::Word*>(shared + memory.mail);
  const Mailbox of_masses(mail, gang);
  const Mailbox of_searches(mail + 1, gang);
  [[maybe_unused]] auto* const gathered =
      memory.gathers ? reinterpret_cast<select::BlockMass*>(shared + memory.gathered) : nullptr;
  if (threadIdx.x == 0) {
    of_masses.open(
        kRanks || !memory.gathers ? 0 : gang.num_blocks() * lists.heads * static_cast<int>(sizeof(select::BlockMass)));
    of_searches.open(2 * static_cast<int>(sizeof(Search)));
  }
  gang.arrive();
  wait_for_previous();
  if constexpr (!kRanks) read_always(lists, gang, norms);
  gang.wait();

  const int first_block = gang.first_block();
  const int last_block = gang.last_block();
  Round round{first_block, last_block, reinterpret_cast<float*>(shared + memory.masses),
              reinterpret_cast<float*>(shared + memory.factors)};
  [[maybe_unused]] const auto next_round = [&](int first) {
    round.first = first;
    round.last = min(first + memory.round_blocks, last_block);
  };
  if constexpr (!kRanks) {
    for (int first = first_block; first < last_block; first += memory.round_blocks) {
      next_round(first);
      weigh_blocks(lists, gang, round, of_masses, gathered);
    }
    if (memory.gathers) {
      of_masses.wait();
    } else {
      gang.sync();
    }
  }
  __shared__ int wanted[2];
  if (thread_index() == num_threads() - 1) {  // few threads find norms, and this takes as long
    const SelectArgs& args = lists.args;
    const AlwaysAttended always = lists.always(gang.request);
    wanted[kCandidates] = min(select::candidate_pages(args.config, always), static_cast<int>(args.candidates.shape[2]));
    wanted[kCompletion] = min(select::completed_pages(args.config, always), static_cast<int>(args.completed.shape[2]));
  }
  if constexpr (!kRanks) find_norms(lists, gang, gathered, norms);
  const int first_page = first_block * kBlockPages;
  const int pages = min(last_block * kBlockPages, gang.num_pages) - first_page;
  float* const share =
      memory.keeps_shares
          ? reinterpret_cast<float*>(shared + memory.shares)
          : lists.buffers.share + lists.list_at(gang.request, gang.list) * lists.buffers.max_pages + first_page;
  if constexpr (kRanks) {
    rank_pages(lists, gang, first_page, pages, share, counts.buckets);
  } else {
    for (int first = first_block; first < last_block; first += memory.round_blocks) {
      if (last_block - first_block > memory.round_blocks) {
        __syncthreads();
        next_round(first);
        weigh_blocks(lists, gang, round, of_masses, nullptr);  // again, to the same bits: there was no place to keep them
        __syncthreads();
      }
      share_pages(lists, gang, round, norms, share + (first - first_block) * kBlockPages, counts.buckets);
    }
  }
  const Marks marks(shared + memory.marks, lists.buffers.max_pages);
  if (threadIdx.x == 0) marks.num_members() = 0;  // where the masses were
  gather_counts(gang, counts.buckets);
  gang.sync();

  const int warp = thread_index() / 32;
  if (gang.rank == 0 && warp <= kCompletion) {
    Search search;
    if (wanted[warp] > 0) {
      const Bucket found = find_bucket(counts.buckets, wanted[warp]);
      search = kRanks ? rank_search_of(found) : search_of(found);
    }
    const int lane = thread_index() % 32;
    if (lane < gang.size()) of_searches.send(counts.found + warp, search, lane);
  }
  of_searches.wait();
#pragma unroll 1
  for (int of = kCandidates; of <= kCompletion; ++of) narrow(gang, share, pages, counts, of);
  // The last block decides about the completion, if there is one besides the first.
  const int other = gang.size() - 1;
  const int num_words = (gang.num_pages + 31) / 32;
  if (other > 0) {
    mark<2>(counts.found, kCandidates, share, first_page, pages, {marks.of(gang, 0), marks.of(gang, other)});
    gang.sync();
    if (gang.rank > 0 && gang.rank < other) return;
  }
  int of = gang.rank > 0 ? kCompletion : kCandidates;
  const int last = other > 0 ? of : kCompletion;
#pragma unroll 1
  for (;; ++of) {
    if (other == 0) {
      mark<1>(counts.found, of, share, first_page, pages, {marks});
      __syncthreads();
    }
    take_members(counts.found[of], marks, num_words, scratch, counts.buckets);
    if (of == kCandidates) {
      write_candidates(lists, gang, marks, scratch);
    } else if (!lists.selects_pages()) {
      keep_completed(lists, gang, marks);
    }
    if (of == last) break;
    __syncthreads();
    if (threadIdx.x == 0) marks.num_members() = 0;
    __syncthreads();
  }
  if constexpr (!kRanks) {
    if (!wants_rest || !lists.selects_pages()) return;
    gang.sync();  // the selection can be read
    const int count = __ldcg(&lists.args.num_candidates(gang.request, gang.list));
    if (gang.rank == 0) {
      auto* const words = memory.keeps_selected ? reinterpret_cast<std::uint32_t*>(shared + memory.selected)
                                                : lists.buffers.candidate_words +
                                                      lists.list_at(gang.request, gang.list) * lists.words_of_candidates();
      sum_unselected(lists, gang, count, words);
    }
    if (gang.rank == other && lists.args.completed.shape[2] > 0) {
      // Marks made anew, or they cost a register that there is not.
      write_next_best(lists, gang, count, Marks(shared + memory.marks, lists.buffers.max_pages), scratch);
    }
  }
}

/// Steps 2 to 4, if parts are selected. `wants_rest`: more than the selection.
__global__ void __launch_bounds__(kMostThreads, 1)
    choose_tokens(const __grid_constant__ Lists lists, const __grid_constant__ TokensMemory memory, bool wants_rest) {
  auto* const shared = dynamic_shared<std::byte>();
  __shared__ int scratch[kMostThreads / 32];
  const Gang gang(lists);
  let_next_start();
  if (gang.num_blocks() == 0) return only_first_block_waits();
  // The kernel in front scores the candidates' tokens, and lets this one start when choose_pages has ended. What that one
  // has written can be read without waiting, past the first-level cache.
  const int log2_parts = __clz(lists.args.config.part_tokens) - __clz(kPageTokens);
  const int parts = 1 << log2_parts;
  const int heads = lists.heads;
  const int capacity = lists.buffers.capacity;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  auto* const words = memory.keeps_candidates ? reinterpret_cast<std::uint32_t*>(shared + memory.candidates)
                                              : lists.buffers.candidate_words + at * candidate_words(capacity, parts, heads);
  const Candidates candidates(words, capacity, parts, heads);
  const int count = __ldcg(&lists.args.num_candidates(gang.request, gang.list));
  const PartChoice choice{lists, gang, candidates, count, log2_parts};
  auto* const taken = reinterpret_cast<std::uint32_t*>(shared + memory.taken);
  auto* const counts = reinterpret_cast<std::int32_t*>(shared + memory.counts);
  const bool completes = wants_rest && lists.args.completed.shape[2] > 0;
  if (completes) {
    const std::uint32_t* const completed = lists.buffers.completed + at * (lists.buffers.max_pages / 32);
    share_out((gang.num_pages + 31) / 32, [&](int i) { taken[i] = __ldcg(completed + i); });
  }
  share_out(kBuckets, [&](int i) { counts[i] = 0; });
  gang.sync();  // every block runs: its memory can be written
  const Candidates first(gang.size() > 1 ? gang.at(words, 0) : words, capacity, parts, heads);
  choice.weigh_pages(first);
  wait_for_previous();
  choice.weigh_parts(first);
  gang.sync();
  if (gang.rank == 0) {
    choice.combine();
    choice.choose(scratch, counts);
  }
  gang.sync();
  // The first block sums, the next one writes the selection, the others the completion: as far as there are others.
  const int last = gang.size() - 1;
  if (gang.rank == 0 && wants_rest) choice.sum_skipped();
  if (gang.rank == min(1, last)) choice.write(scratch);
  const int completing = min(2, last);
  if (completes && gang.rank >= completing) {
    write_completion(lists, gang, choice, completing, taken, reinterpret_cast<std::int32_t*>(shared + memory.before),
                     scratch);
  }
}

}  // namespace
}  // namespace locks::cuda::select_kernels
