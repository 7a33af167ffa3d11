// Selection on the GPU, compiled without fused multiply-adds: its bits are those of the CPU.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/launch.cuh"
#include "cuda/launch_kernel.cuh"
#include "select/kernels.cuh"
#include "select/select_launch.h"

namespace locks::cuda::select_kernels {
namespace {

constexpr int kPortable = 8;  // thread blocks of a cluster that every device with clusters holds

/// Thread blocks for each list, of which each could be given `blocks_of_list` to work on.
template <auto kKernel>
int gang_size_of(const Lists& lists, std::int64_t blocks_of_list) {
  constexpr int kFirstWithClusters = 9;
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < kFirstWithClusters || !waits<kKernel>()) return 1;
  return gang_size(std::int64_t{lists.requests()} * lists.args.num_lists, blocks_of_list,
                   device_attribute(cudaDevAttrMultiProcessorCount));
}

template <auto kKernel>
Launch launch_of(const char* name, const Lists& lists, int gang, std::int64_t threads_with_work, std::size_t bytes,
                 Start start, Stream stream) {
  const std::size_t most = most_shared_bytes<kKernel>();
  if (bytes > most) {
    throw std::invalid_argument("log_mass: " + std::to_string(lists.heads) + " query heads a list and " +
                                std::to_string(lists.buffers.max_pages) + " pages need " + std::to_string(bytes) +
                                " bytes of shared memory, and this device has " + std::to_string(most));
  }
  // More than 48 KB must be asked for; always the same, whatever else is being launched.
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
        "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(lists.args.num_lists * gang), static_cast<unsigned>(lists.requests()));
  const int threads =
      block_threads(std::int64_t{grid.x} * grid.y, threads_with_work, device_attribute(cudaDevAttrMultiProcessorCount));
  return {name, start, grid, threads, bytes, stream, gang};
}

template <bool kRanks>
void launch_choose_pages(const Lists& lists, bool wants_rest, Start start, Stream stream) {
  constexpr auto kKernel = choose_pages<kRanks>;
  const int max_blocks = lists.buffers.max_blocks;
  const auto memory_of = [&](int gang) {
    return PagesMemory(lists.heads, (max_blocks + gang - 1) / gang, max_blocks,
                       wants_rest && lists.selects_pages() ? lists.words_of_candidates() : 0, most_shared_bytes<kKernel>());
  };
  const std::int64_t head_blocks = std::int64_t{max_blocks} * lists.heads;
  const auto launch = [&](int gang) {
    // Alone on its multiprocessor a thread block may have some without work in the longest step, weighing.
    constexpr int kGenerous = 4;
    const bool alone =
        std::int64_t{lists.requests()} * lists.args.num_lists * gang <= device_attribute(cudaDevAttrMultiProcessorCount);
    const std::int64_t threads = head_blocks / gang * kLanes * (alone ? kGenerous : 1);
    return launch_of<kKernel>("choose_pages", lists, gang, threads, memory_of(gang).bytes, start, stream);
  };
  int gang = gang_size_of<kKernel>(lists, head_blocks / kGangHeadBlocks);
  if (gang > kPortable && clusters_at_once<kKernel>(launch(gang)) < lists.requests() * lists.args.num_lists) {
    gang = kPortable;
  }
  launch_kernel<kKernel>(launch(gang), lists, memory_of(gang), wants_rest);
}

}  // namespace

void launch_pages(const Lists& lists, bool wants_rest, Start start, Stream stream) {
  launch_choose_pages<false>(lists, wants_rest, start, stream);
}
void launch_ranks(const Lists& lists, Start start, Stream stream) { launch_choose_pages<true>(lists, false, start, stream); }

void launch_tokens(const Lists& lists, bool wants_rest, Start start, Stream stream) {
  constexpr auto kKernel = choose_tokens;
  if (lists.selects_pages()) return;  // choose_pages has done it all
  const int parts = kPageTokens / lists.args.config.part_tokens;
  const int capacity = lists.buffers.capacity;
  const TokensMemory memory(lists.heads, parts, capacity, lists.buffers.max_pages, most_shared_bytes<kKernel>());
  const std::int64_t head_pages = std::int64_t{capacity} * lists.heads;
  const std::int64_t blocks = std::max(head_pages / kGangHeadPages, std::int64_t{lists.buffers.max_pages} / kGangPages);
  const int gang = memory.keeps_candidates ? std::min(kPortable, gang_size_of<kKernel>(lists, blocks)) : 1;
  launch_kernel<kKernel>(launch_of<kKernel>("choose_tokens", lists, gang, head_pages, memory.bytes, start, stream), lists,
                         memory, wants_rest);
}

}  // namespace locks::cuda::select_kernels
