// What the checked entry points call.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/start.h"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kMaxGang = 16;  // a cluster of more than 8 is asked for
// What a thread block takes at a time, counted once for each head:
inline constexpr int kGangHeadBlocks = 16;  // of pages, with a quarter of its half-warps
inline constexpr int kGangHeadPages = 128;  // that are candidates
inline constexpr int kGangPages = 4096;     // that may be completed, for all heads

/// Thread blocks of a gang: a power of two, as many as have work (`blocks`) and as run at the same time for all `gangs`, a
/// thread block to a multiprocessor.
[[nodiscard]] constexpr int gang_size(std::int64_t gangs, std::int64_t blocks, int multiprocessors) noexcept {
  const std::int64_t most = std::min({std::int64_t{kMaxGang}, blocks, multiprocessors / gangs});
  int size = 1;
  while (2 * size <= most) size *= 2;
  return size;
}

/// Checks the arguments and lays the workspace out.
[[nodiscard]] Lists checked(const SelectArgs& args);

/// The candidates; with whole pages, the selection.
void launch_pages(const Lists& lists, Start start, Stream stream);
/// The selection, if it is by parts; and if the rest is wanted, what is skipped and the pages that stand in for it.
void launch_tokens(const Lists& lists, bool wants_rest, Start start, Stream stream);

}  // namespace locks::cuda::select_kernels
