// What the door hands to the kernels, and how a row of tokens is cut. Plain C++.
//
// A row is the tokens of a (request, list), packed: token i is the i-th bit that is set in its entries' masks. Leaves are
// equal runs of it, and as many of them as there may be; a group is eight leaves. States fold leaf by leaf inside a group
// and then group by group. A thread block takes some leaves, and writes a state for each, when there are few rows; when
// there are many it takes a whole group and writes one. The folding is the same, and so are the bits, whatever else is in
// the batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attend/complete_launch.h"
#include "locks/cuda.h"

namespace locks::cuda::attend_stage {

inline constexpr int kLeafTokens = 128;  // of a leaf at least
inline constexpr int kLeafStep = 64;     // that it is longer by: what four warps take in a turn
inline constexpr int kGroupLeaves = 8;
inline constexpr int kMaxGroups = 16;
inline constexpr int kMaxLeaves = kMaxGroups * kGroupLeaves;
// Some 128 multiprocessors hold two blocks each. Of short leaves a block may take several, so there can be more of them.
inline constexpr int kShortLeaf = 256;
inline constexpr int kShortLeaves = 512;  // of all rows of a request
inline constexpr int kLongLeaves = 256;
inline constexpr int kFewLists = 2;        // of a request with more of them a row has no more than half of kMaxLeaves
inline constexpr int kBlockTokens = 1024;  // that a block takes in several leaves
// With fewer rows each leaf has a partial state.
inline constexpr int kFewRows = 64;
// With so few that blocks of a leaf leave multiprocessors idle, a leaf gets twice the warps.
inline constexpr int kVeryFewRows = 16;

/// The leaves of a row at most, in a model whose requests have so many lists.
struct Cut {
  int short_leaves = 0;
  int long_leaves = 0;
};
[[nodiscard]] constexpr Cut make_cut(int num_lists) noexcept {
  const auto share = [num_lists](int leaves) {
    const int most = num_lists <= kFewLists ? kMaxLeaves : kMaxLeaves / 2;
    return std::clamp(leaves / num_lists / kGroupLeaves * kGroupLeaves, kGroupLeaves, most);
  };
  return {share(kShortLeaves), share(kLongLeaves)};
}
/// Of each leaf but the last one.
[[nodiscard]] constexpr int leaf_tokens(int row_tokens, const Cut& cut) noexcept {
  const int step = kLeafStep * (row_tokens <= kShortLeaf * cut.short_leaves ? cut.short_leaves : cut.long_leaves);
  const int leaf = (row_tokens + step - 1) / step * kLeafStep;
  return leaf > 0 && leaf < kLeafTokens ? kLeafTokens
                                        : leaf;  // std::max would take the constant's address, which is the host's
}
[[nodiscard]] constexpr int leaves_of(int row_tokens, const Cut& cut) noexcept {
  const int leaf = leaf_tokens(row_tokens, cut);
  return leaf == 0 ? 0 : (row_tokens + leaf - 1) / leaf;
}
/// Of a row of this many tokens or fewer.
[[nodiscard]] constexpr int most_leaves(std::int64_t row_tokens, const Cut& cut) noexcept {
  return static_cast<int>(std::min<std::int64_t>((row_tokens + kLeafTokens - 1) / kLeafTokens, cut.short_leaves));
}
/// Leaves that have a partial state together.
[[nodiscard]] constexpr int leaves_per_part(std::int64_t rows) noexcept { return rows < kFewRows ? 1 : kGroupLeaves; }
/// Leaves that a thread block takes, if all rows have so many: as few as a device can hold the blocks of.
[[nodiscard]] constexpr int leaves_per_block(int leaf, int leaves, int rows, int blocks_at_once) noexcept {
  const int in_one_wave = (leaves * rows + blocks_at_once - 1) / blocks_at_once;
  const int most = kBlockTokens / leaf;
  return in_one_wave < most ? in_one_wave : most > 1 ? most : 1;
}

/// Thread blocks that rows take at most whose length each block knows: so many tokens or fewer. A grid has no more, as
/// blocks that find nothing to do keep others from being spread evenly.
[[nodiscard]] constexpr int blocks_of_rows(int row_tokens, const Cut& cut, int rows, int blocks_at_once) noexcept {
  int most = row_tokens > kShortLeaf * cut.short_leaves ? cut.long_leaves : 1;
  for (int leaf = kLeafTokens; leaf <= kShortLeaf; leaf += kLeafStep) {
    for (int leaves = 1; leaves <= cut.short_leaves && (leaves - 1) * leaf < row_tokens; ++leaves) {
      const int taken = leaves_per_block(leaf, leaves, rows, blocks_at_once);
      most = std::max(most, (leaves + taken - 1) / taken);
    }
  }
  return most;
}
/// The same of lists, of which blocks know only what is the most.
[[nodiscard]] constexpr int blocks_of_lists(int listed_tokens, const Cut& cut, int rows, int blocks_at_once) noexcept {
  const int leaves = most_leaves(listed_tokens, cut);
  if (leaves == 0) return 1;
  const int taken = leaves_per_block(leaf_tokens(listed_tokens, cut), leaves, rows, blocks_at_once);
  return (leaves + taken - 1) / taken;
}

/// Numbers below 2^31 by a divisor that is known on the host.
struct Divider {
  std::uint32_t divisor = 1;
  std::uint32_t shift = 0;         // 2^shift >= divisor
  std::uint32_t magic = 1U << 31;  // 2^(31 + shift) / divisor, rounded up: less than divisor / 2^(31 + shift) too much
};
[[nodiscard]] constexpr Divider make_divider(std::uint32_t divisor) noexcept {
  Divider divider{divisor};
  while ((std::uint64_t{1} << divider.shift) < divisor) ++divider.shift;
  divider.magic = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + divider.shift)) + divisor - 1) / divisor);
  return divider;
}

struct Rows {
  const std::byte* data = nullptr;
  const std::int32_t* page_slots = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

/// Partial states: sums of a part, relative to its max.
struct Partials {
  Cut cut;
  int parts_per_row = 0;  // slots
  int parts = 0;          // of them that rows of the longest possible length would use
  int leaves_per_part = 0;
  std::int32_t* leaves = nullptr;  // [requests, lists]
  float* max_and_sum = nullptr;    // [requests, query_heads, parts, 2]
  float* out = nullptr;            // [requests, query_heads, parts, head_dim]
};

struct AttendParams {
  const float* queries = nullptr;
  std::int64_t query_request_stride = 0;
  std::int64_t query_head_stride = 0;
  Rows keys;
  Rows values;
  const std::int32_t* blocks = nullptr;
  std::int64_t block_request_stride = 0;
  std::int64_t block_entry_stride = 0;
  int most_tokens = 0;    // of a row
  int listed_tokens = 0;  // of a row that is a list
  /// Contexts of no more tokens are attended whole, and begin before the kernels in front have ended: what those write is
  /// not read for them. 0: there are none.
  int whole_tokens = 0;
  Divider block_pages;
  const std::int32_t* context_tokens = nullptr;
  const SelectedPage* selected = nullptr;  // null: every token
  std::int64_t selected_request_stride = 0;
  std::int64_t selected_list_stride = 0;
  int capacity = 0;
  const std::int32_t* num_selected = nullptr;
  std::int64_t count_request_stride = 0;
  std::int64_t count_list_stride = 0;
  int num_requests = 0;
  int num_lists = 0;
  Divider lists_per_kv_head;
  int list_heads = 0;  // query heads that share a list
  int query_heads = 0;
  Divider passes;  // over a row, for all of its heads
  float softmax_scale = 0.0F;
  const float* key_scale = nullptr;  // of e4m3, on the device; null is 1
  const float* value_scale = nullptr;
  bool leaf_blocks = false;  // eight warps for a leaf, none of which is longer than kLeafTokens
  int blocks_at_once = 0;    // that the device holds, of blocks of four warps
  Partials partials;
};

/// Query heads that one pass over a row takes: 8, or 16 where their state leaves room in the registers.
[[nodiscard]] constexpr bool has_wide_instance(DType dtype, int head_dim) noexcept {
  return dtype != DType::kF32 && (head_dim == 64 || head_dim == 128);
}
[[nodiscard]] constexpr int heads_per_pass(DType dtype, int head_dim, int list_heads) noexcept {
  return list_heads > 8 && has_wide_instance(dtype, head_dim) ? 16 : 8;
}
/// Launches the instance for this kind of cache.
void launch_attend(const AttendParams& params, DType dtype, int head_dim, Stream stream);
/// Where a row's result goes.
struct Result {
  SoftmaxStates states;
  bool accumulate = false;  // with what the states hold
  View<float, 3> out;       // if it has data, the states are not written, but what finish() would make of them
};
/// Folds the partial states, and what `completion` adds if it has partials; that only with a leaf a part.
void launch_merge(const AttendParams& params, int head_dim, const Result& result, const complete_kernels::Merge& completion,
                  Stream stream);
void launch_finish(SoftmaxStates states, View<float, 3> out, Stream stream);
void check_out(SoftmaxStates states, View<float, 3> out);

// One per head dimension, in instances/.
template <int kHeadDim>
void launch_instance(const AttendParams& params, DType dtype, Stream stream);

}  // namespace locks::cuda::attend_stage
