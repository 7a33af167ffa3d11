// How a row of tokens is cut, and what of it thread blocks take. Plain C++.
//
// A row is the tokens of a (request, list), packed: token i is the i-th bit that is set in its entries' masks. Leaves are
// equal runs of it, and as many of them as there may be; a group is eight leaves. States fold leaf by leaf inside a group
// and then group by group. A thread block takes some leaves, and writes a state for each, when there are few rows; when
// there are many it takes a whole group and writes one. The folding is the same, and so are the bits, whatever else is in
// the batch.
#pragma once

#include <algorithm>
#include <cstdint>

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
    return std::clamp(leaves / std::max(1, num_lists) / kGroupLeaves * kGroupLeaves, kGroupLeaves, most);
  };
  return {share(kShortLeaves), share(kLongLeaves)};
}
/// Of each leaf but the last one.
[[nodiscard]] constexpr int leaf_tokens(int row_tokens, const Cut& cut) noexcept {
  const int step = kLeafStep * (row_tokens <= kShortLeaf * cut.short_leaves ? cut.short_leaves : cut.long_leaves);
  const int leaf = (row_tokens + step - 1) / step * kLeafStep;
  // Not std::max, which would take the constant's address: it is the host's.
  return leaf > 0 && leaf < kLeafTokens ? kLeafTokens : leaf;
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

}  // namespace locks::cuda::attend_stage
