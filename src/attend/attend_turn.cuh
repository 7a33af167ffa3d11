// When a block of attention runs, between the kernels around it, and which leaves it takes.
#pragma once

#include "attend/attend_tokens.cuh"
#include "cuda/chain.cuh"

namespace locks::cuda::attend_stage {

/// `body` is told how many leaves a block takes. That the kernels in front have ended when this one has is for the first
/// block of each row to see to: others leave room as soon as they can, and at once if no row is long enough for them.
/// `kOneLeaf`: of the kernel whose blocks take no more, where each leaf has a partial state.
template <bool kOneLeaf, class Body>
__device__ __forceinline__ void in_turn(const AttendParams& params, const Body& body) {
  const auto request = static_cast<int>(blockIdx.z);
  const auto block = static_cast<int>(blockIdx.y);
  const Cut& cut = params.partials.cut;
  // Lengths are read at once only in a step, the first kernel of which has waited for who wrote them.
  if (params.selected == nullptr) wait_for_previous();
  const bool whole = is_whole(params, request);
  const bool has_list = params.selected != nullptr && !whole;
  const int tokens = has_list ? params.listed_tokens : min(params.context_tokens[request], params.most_tokens);
  const int row_leaves = has_list ? most_leaves(tokens, cut) : leaves_of(tokens, cut);
  int leaves = params.partials.leaves_per_part;
  if (!kOneLeaf && leaves == 1 && row_leaves > 0) {
    leaves = leaves_per_block(leaf_tokens(tokens, cut), row_leaves, static_cast<int>(gridDim.x * gridDim.z),
                              params.blocks_at_once);
  }
  if (block > 0 && block * leaves >= row_leaves) return;
  if (has_list) wait_for_previous();
  let_next_start();  // not before: completion's sums, if they are next, do not wait for what comes before this kernel
  body(leaves);
  if (block == 0 && is_whole(params, request)) wait_for_previous();
}

}  // namespace locks::cuda::attend_stage
