// What the kernels of one selection share: the arguments, the workspace, and one list's place in both.
#pragma once

#include <cstdint>

#include "locks/cuda.h"
#include "select/counts.h"
#include "select/share.h"

namespace locks::cuda::select_kernels {

using select::kBlockPages;
using select::kInfinity;
using select::kLanes;

// Shares are counted by their leading bits: 64 exponents from 2^kLowest on, and five bits of the fraction. What is smaller
// counts as the lowest, what is larger as the highest.
inline constexpr int kBuckets = 2048;
inline constexpr int kBucketShift = 18;
inline constexpr int kLowest = -60;
/// A page in the bucket of the threshold, and the bits of its share.
struct Member {
  std::int32_t page;
  std::uint32_t key;
};

/// Cut from the workspace; sizes are maxima.
struct Buffers {
  int max_blocks = 0;                        // of pages
  int max_pages = 0;                         // max_blocks * kBlockPages
  int capacity = 0;                          // of candidates
  select::BlockMass* masses = nullptr;       // [requests, query_heads, max_blocks]
  float* block_shares = nullptr;             // [requests, query_heads, max_blocks]: sum of a block's shares that are skipped
  float* log_norm = nullptr;                 // [requests, query_heads]
  float* share = nullptr;                    // [requests, lists, max_pages], from the first selectable page on
  std::int32_t* buckets = nullptr;           // [requests, lists, kBuckets]: how many shares each holds
  std::int32_t* fine_buckets = nullptr;      // [requests, lists, kBuckets]: of a bucket with many members
  std::uint32_t* above = nullptr;            // [requests, lists, max_pages / 32]: pages above the bucket of the threshold
  Member* members = nullptr;                 // [requests, lists, max_pages], in any order
  std::int32_t* num_members = nullptr;       // [requests, lists]; 0 between launches
  std::uint32_t* candidate_words = nullptr;  // [requests, lists]: see Candidates
};

struct Lists {
  SelectArgs args;
  Buffers buffers;
  int query_heads = 0;
  int heads = 0;  // of a list

  [[nodiscard]] constexpr int requests() const noexcept { return static_cast<int>(args.context_tokens.size()); }
  [[nodiscard]] constexpr AlwaysAttended always(int request) const noexcept {
    return always_attended(args.config, args.context_tokens[request], args.min_context_tokens);
  }
  [[nodiscard]] constexpr std::int64_t list_at(int request, int list) const noexcept {
    return std::int64_t{request} * args.num_lists + list;
  }
  [[nodiscard]] constexpr std::int64_t head_at(int request, int head) const noexcept {
    return std::int64_t{request} * query_heads + head;
  }
};

}  // namespace locks::cuda::select_kernels
