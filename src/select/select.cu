// Selection on the GPU, compiled without fused multiply-adds: its bits are those of the CPU.
#include <stdexcept>

#include "cuda/check.h"
#include "select/largest.cuh"
#include "select/masses.cuh"
#include "select/parts.cuh"
#include "select/select_launch.h"

namespace locks::cuda::select_kernels {
namespace {

__global__ void list_always_of(const SelectConfig config, int min_context_tokens,
                               std::span<const std::int32_t> context_tokens, View<SelectedPage, 2> lists,
                               std::int32_t* num_entries, std::int32_t* scored_tokens) {
  const int request = static_cast<int>(blockIdx.x);
  const AlwaysAttended always = always_attended(config, context_tokens[request], min_context_tokens);
  const int filled = always.filled_pages - always.selectable_pages();
  for (int i = static_cast<int>(threadIdx.x); i < filled; i += static_cast<int>(blockDim.x)) {
    lists(request, i) = {i < always.sink_pages ? i : i + always.selectable_pages(), kWholePage};
  }
  if (threadIdx.x != 0) return;
  if (always.tail_tokens > 0) {
    lists(request, filled) = {always.filled_pages, static_cast<std::uint16_t>((1U << always.tail_tokens) - 1U)};
  }
  num_entries[request] = filled + (always.tail_tokens > 0 ? 1 : 0);
  scored_tokens[request] = always.everything ? 0 : always.first_recent_page * kPageTokens;
}

unsigned sets(int items, int per_set) { return static_cast<unsigned>((items + per_set - 1) / per_set); }

template <Take kTake>
void launch_take(const Lists& lists, cudaStream_t stream) {
  const auto requests = static_cast<unsigned>(lists.args.context_tokens.size());
  const std::size_t bytes =
      kStaged * sizeof(Member) + static_cast<std::size_t>(lists.buffers.max_pages) / 32 * 3 * sizeof(std::uint32_t);
  const dim3 grid(sets(lists.buffers.max_pages, kTakePages), static_cast<unsigned>(lists.args.num_lists), requests);
  // More than 48 KB must be asked for.
  check(cudaFuncSetAttribute(take_largest<kTake>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  take_largest<kTake><<<grid, kTakeThreads, bytes, stream>>>(lists);
  check_launch("take_largest");
}

}  // namespace

void launch_list_always(const SelectConfig& config, int min_context_tokens, std::span<const std::int32_t> context_tokens,
                        View<SelectedPage, 2> lists, std::int32_t* num_entries, std::int32_t* scored_tokens, Stream stream) {
  list_always_of<<<static_cast<unsigned>(context_tokens.size()), 64, 0, stream>>>(config, min_context_tokens, context_tokens,
                                                                                  lists, num_entries, scored_tokens);
  check_launch("list_always_of");
}

void launch_pages(const Lists& lists, Stream stream) {
  const auto requests = static_cast<unsigned>(lists.args.context_tokens.size());
  const auto blocks = static_cast<unsigned>(lists.buffers.max_blocks);
  block_masses<<<dim3(blocks, sets(lists.query_heads, kHalfWarps), requests), kThreads, 0, stream>>>(lists);
  check_launch("block_masses");
  const std::size_t bytes = static_cast<std::size_t>(lists.heads) * kShareBlocks * kBlockPages * sizeof(float);
  check(cudaFuncSetAttribute(page_shares, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  page_shares<<<dim3(sets(lists.buffers.max_blocks, kShareBlocks), static_cast<unsigned>(lists.args.num_lists), requests),
                kThreads, bytes, stream>>>(lists);
  check_launch("page_shares");
  launch_take<Take::kCandidates>(lists, stream);
}

void launch_tokens(const Lists& lists, Stream stream) {
  const auto requests = static_cast<unsigned>(lists.args.context_tokens.size());
  const auto num_lists = static_cast<unsigned>(lists.args.num_lists);
  choose_parts<<<dim3(num_lists, requests), kTakeThreads, 0, stream>>>(lists);
  check_launch("choose_parts");
  remove_selected<<<dim3(static_cast<unsigned>(lists.buffers.max_blocks), num_lists, requests), kThreads, 0, stream>>>(
      lists);
  check_launch("remove_selected");
  launch_take<Take::kCompletion>(lists, stream);
}

}  // namespace locks::cuda::select_kernels
