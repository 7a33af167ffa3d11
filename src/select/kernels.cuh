// The two kernels of a selection. Grid of both: gangs, one a list; requests.
#pragma once

#include "cuda/chain.cuh"
#include "select/largest.cuh"
#include "select/parts.cuh"
#include "select/rest.cuh"
#include "select/shares.cuh"

namespace locks::cuda::select_kernels {
namespace {  // the emulated kernels of a test are others than the library's

/// Step 1. With whole pages, the selection.
__global__ void __launch_bounds__(kThreads, 1) choose_pages(const __grid_constant__ Lists lists) {
  auto* const shared = dynamic_shared<float>();
  __shared__ int scratch[kWarps];
  const Gang gang(lists);
  let_next_start();
  prepare(lists, gang);
  wait_for_previous();
  if (gang.num_blocks() == 0) return;
  weigh_blocks(lists, gang);
  gang.sync();
  find_norms(lists, gang, shared);
  share_pages(lists, gang, shared, shared + lists.heads);
  gang.sync();
  take_largest<Take::kCandidates>(lists, gang, scratch, shared);
}

/// Steps 2 to 4. `wants_rest`: more than the selection.
__global__ void __launch_bounds__(kThreads, 1)
    choose_tokens(const __grid_constant__ Lists lists, bool wants_rest, bool in_shared) {
  auto* const shared_words = dynamic_shared<std::uint32_t>();
  __shared__ int scratch[kWarps];
  const Gang gang(lists);
  let_next_start();
  wait_for_previous();
  if (gang.num_blocks() == 0) return;
  const int parts = kPageTokens / lists.args.config.part_tokens;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  const int capacity = lists.buffers.capacity;
  const Candidates candidates(
      in_shared ? shared_words : lists.buffers.candidate_words + at * Candidates::words(capacity, parts, lists.heads),
      capacity, parts);
  const PartChoice choice{lists, gang, candidates, lists.args.num_candidates(gang.request, gang.list), parts};
  clear_buckets(gang, lists.buffers.fine_buckets + at * kBuckets);
  choice.read();
  if (parts > 1 && choice.count > 0) {
    choice.weigh();
    choice.choose(scratch);
    if (gang.rank == 0) choice.write(scratch);
  }
  if (!wants_rest) return;
  if (parts > 1) {
    choice.weigh_rest();
    gang.sync();  // nobody looks for marked pages any more: they lose their mark
  }
  remove_selected(lists, gang, choice);
  gang.sync();
  if (gang.rank == gang.size() - 1) sum_skipped(lists, gang);
  if (lists.args.config.completion_fraction > 0.0F) {
    take_largest<Take::kCompletion>(lists, gang, scratch, shared_words);
  }
}

}  // namespace
}  // namespace locks::cuda::select_kernels
