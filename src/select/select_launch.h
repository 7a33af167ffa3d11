// What the checked entry points call.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/start.h"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kMaxGang = 16;  // a cluster of more than 8 is asked for
inline constexpr int kFewestThreads = 256;
inline constexpr int kMostThreads = 1024;  // that a multiprocessor has room for, in blocks of any size
// What a thread block of a gang takes at least, counted once for each head:
inline constexpr int kGangHeadBlocks = 16;  // of pages: two for each warp of the fewest threads
inline constexpr int kGangHeadPages = 128;  // that are candidates
inline constexpr int kGangPages = 4096;     // that may be completed, for all heads

/// Thread blocks of a gang: a power of two, as many as have work (`blocks`) and as run at the same time for all `gangs`.
[[nodiscard]] constexpr int gang_size(std::int64_t gangs, std::int64_t blocks, int multiprocessors) noexcept {
  constexpr int kBlocksAtOnce = kMostThreads / kFewestThreads;
  const std::int64_t most = std::min({std::int64_t{kMaxGang}, blocks, kBlocksAtOnce * multiprocessors / gangs});
  int size = 1;
  while (2 * size <= most) size *= 2;
  return size;
}

/// Threads of each of `blocks` thread blocks: a power of two, as many as have work (`wanted`) and as run at the same time.
/// What is done once by a block, and waited for by all of its threads, costs a multiprocessor less with fewer.
[[nodiscard]] constexpr int block_threads(std::int64_t blocks, std::int64_t wanted, int multiprocessors) noexcept {
  const std::int64_t most = std::min(wanted, std::int64_t{kMostThreads} * multiprocessors / blocks);
  int threads = kFewestThreads;
  while (2 * threads <= kMostThreads && 2 * threads <= most) threads *= 2;
  return threads;
}

/// Checks the arguments and lays the workspace out.
[[nodiscard]] Lists checked(const SelectArgs& args);

/// The candidates; with whole pages, the selection, and if the rest is wanted, what is skipped and the pages that stand in
/// for it.
void launch_pages(const Lists& lists, bool wants_rest, Start start, Stream stream);
/// The selection of whole pages by scores that are compared as they are.
void launch_ranks(const Lists& lists, Start start, Stream stream);
/// The same of parts; of whole pages nothing is left.
void launch_tokens(const Lists& lists, bool wants_rest, Start start, Stream stream);

}  // namespace locks::cuda::select_kernels
