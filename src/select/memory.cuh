// Where the selection's kernels have what in dynamic shared memory: offsets in bytes, the same for every thread block.
#pragma once

#include <algorithm>
#include <cstddef>

#include "select/largest.cuh"
#include "select/mailbox.cuh"
#include "select/parts.cuh"

namespace locks::cuda::select_kernels {

/// Hands out offsets.
class Layout {
 public:
  constexpr std::size_t take(std::size_t bytes) noexcept {
    const std::size_t at = bytes_;
    constexpr std::size_t kAlign = 16;
    bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Of choose_pages. Whoever can keep the masses of all its blocks of pages does, and their shares; with less memory they are
/// weighed twice, a round at a time, and the shares go to the workspace. With whole pages what is kept of the selected ones
/// (candidate_words(), otherwise 0) goes there too if it does not fit.
struct PagesMemory {
  int round_blocks = 0;
  bool keeps_shares = false;
  bool keeps_selected = false;
  bool gathers = false;  // the masses of all blocks in every thread block
  std::size_t norms, counts, found, factors, shares, masses, marks, selected, mail, gathered;
  std::size_t bytes = 0;

  /// `own_blocks` of pages are a thread block's, of at most `max_blocks`; no more than `most` bytes if that can be.
  constexpr PagesMemory(int heads, int own_blocks, int max_blocks, std::int64_t words_of_selected,
                        std::size_t most) noexcept {
    const int max_pages = max_blocks * kBlockPages;
    lay_out(heads, own_blocks, own_blocks, max_pages);
    if (bytes > most) {
      const int in_round = std::max(1, kMostThreads / kLanes / heads);  // every warp has two
      lay_out(heads, std::min(in_round, own_blocks), 0, max_pages);
    }
    selected = bytes;
    const std::size_t more = static_cast<std::size_t>(words_of_selected) * sizeof(std::uint32_t);
    keeps_selected = bytes + more <= most;
    if (keeps_selected) bytes += more;
    gathered = bytes;
    const std::size_t of_all =
        static_cast<std::size_t>(heads) * static_cast<std::size_t>(max_blocks) * sizeof(select::BlockMass);
    gathers = bytes + of_all <= most;
    if (gathers) bytes += of_all;
  }

 private:
  constexpr void lay_out(int heads, int round, int kept_blocks, int max_pages) noexcept {
    const auto num_heads = static_cast<std::size_t>(heads);
    const auto blocks = static_cast<std::size_t>(round);
    round_blocks = round;
    keeps_shares = kept_blocks > 0;
    Layout layout;
    norms = layout.take(num_heads * sizeof(float));
    counts = layout.take(kBuckets * sizeof(std::int32_t));
    found = layout.take(2 * sizeof(Search));
    mail = layout.take(2 * sizeof(Mailbox::Word));
    factors = layout.take(blocks * num_heads * sizeof(float));
    shares = layout.take(static_cast<std::size_t>(kept_blocks) * kBlockPages * sizeof(float));
    // Pages are marked when nobody looks at masses any more.
    const std::size_t mass_bytes = blocks * num_heads * kBlockPages * sizeof(float);
    masses = marks = layout.take(std::max(mass_bytes, Marks::bytes(max_pages)));
    bytes = layout.bytes();
  }
};

/// Of choose_tokens. Candidates that do not fit lie in the workspace, once for a list.
struct TokensMemory {
  bool keeps_candidates = true;
  std::size_t counts, taken, before, candidates;
  std::size_t bytes = 0;

  constexpr TokensMemory(int heads, int parts, int capacity, int max_pages, std::size_t most) noexcept {
    const auto num_words = static_cast<std::size_t>(max_pages) / 32;
    Layout layout;
    counts = layout.take(kBuckets * sizeof(std::int32_t));
    taken = layout.take(num_words * sizeof(std::uint32_t));
    before = layout.take(num_words * sizeof(std::int32_t));
    bytes = layout.bytes();
    candidates = layout.take(static_cast<std::size_t>(candidate_words(capacity, parts, heads)) * sizeof(std::uint32_t));
    keeps_candidates = layout.bytes() <= most;
    if (keeps_candidates) bytes = layout.bytes();
  }
};

}  // namespace locks::cuda::select_kernels
