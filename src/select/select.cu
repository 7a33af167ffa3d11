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

int gang_size_of(const Lists& lists) {
  constexpr int kFirstWithClusters = 9;
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < kFirstWithClusters || !waits<choose_pages>()) return 1;
  return gang_size(std::int64_t{lists.requests()} * lists.args.num_lists,
                   std::int64_t{lists.buffers.max_blocks} * lists.heads, device_attribute(cudaDevAttrMultiProcessorCount));
}

template <auto kKernel, class... Args>
void launch_gangs(const char* name, const Lists& lists, int size, std::size_t bytes, Start start, Stream stream,
                  const Args&... args) {
  const std::size_t most = most_shared_bytes<kKernel>();
  if (bytes > most) {
    throw std::invalid_argument("log_mass: " + std::to_string(lists.heads) + " query heads a list and " +
                                std::to_string(lists.buffers.max_pages) + " pages need " + std::to_string(bytes) +
                                " bytes of shared memory, and this device has " + std::to_string(most));
  }
  // More than 48 KB must be asked for; always the same, whatever else is being launched.
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
        "cudaFuncSetAttribute");
  const auto gangs = static_cast<unsigned>(lists.args.num_lists);
  const auto requests = static_cast<unsigned>(lists.requests());
  Launch launch{name, start, dim3(gangs * static_cast<unsigned>(size), requests), kThreads, bytes, stream, size};
  if (size > kPortable && clusters_at_once<kKernel>(launch) < static_cast<int>(gangs * requests)) {
    launch.cluster = kPortable;
    launch.grid.x = gangs * kPortable;
  }
  launch_kernel<kKernel>(launch, lists, args...);
}

}  // namespace

void launch_pages(const Lists& lists, Start start, Stream stream) {
  const std::size_t bytes =
      std::max(static_cast<std::size_t>(share_floats(lists.heads)) * sizeof(float), assembly_bytes(lists.buffers.max_pages));
  launch_gangs<choose_pages>("choose_pages", lists, gang_size_of(lists), bytes, start, stream);
}

void launch_tokens(const Lists& lists, bool wants_rest, Start start, Stream stream) {
  const int parts = kPageTokens / lists.args.config.part_tokens;
  if (parts == 1 && !wants_rest) return;
  const auto words = static_cast<std::size_t>(Candidates::words(lists.buffers.capacity, parts, lists.heads));
  const std::size_t others = assembly_bytes(lists.buffers.max_pages);
  // The completion is put together where the candidates were.
  const std::size_t bytes = std::max(words * sizeof(std::uint32_t), others);
  const bool fits = bytes <= most_shared_bytes<choose_tokens>();
  // What does not fit lies in the workspace, once for a list.
  launch_gangs<choose_tokens>("choose_tokens", lists, fits ? gang_size_of(lists) : 1, fits ? bytes : others, start, stream,
                              wants_rest, fits);
}

}  // namespace locks::cuda::select_kernels
