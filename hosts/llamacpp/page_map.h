// Which cells of a KV cache are the tokens of a sequence, in which order, and in which pages of 16 they are read.
//
// A host's cache is a list of cells that sequences share, free and reuse. What a query row may see is known (its mask),
// and so is which cells were written when. That is enough: a row's cells in the order in which they were written are its
// sequence, and 16 consecutive ones of them are a page. Sequences with the same cells share pages.
//
// While cells lie in token order, page p is cells 16 p to 16 p + 15, and the cache can be read without a table of slots.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "locks/types.h"

namespace locks::llamacpp {

/// What a query row sees: the first `tokens` tokens of a sequence.
struct MappedRow {
  int sequence = -1;
  std::int32_t tokens = 0;
};

class PageMap {
 public:
  static constexpr int kMaxSequences = 256;

  /// For cells 0 to num_cells - 1, in streams of `stream_cells` (a divisor of num_cells) that share nothing. Sequences
  /// that part inside a page need spare pages: two each.
  PageMap(std::int64_t num_cells, std::int64_t stream_cells, int spare_pages);

  // What happens to the cache.

  /// The host writes these cells, in the order of their tokens.
  void write(std::span<const std::int64_t> cells);
  /// All contents changed, and sequences may have lost cells, but when each cell was written still holds: a K-shift.
  void shift() noexcept;
  /// Nothing that was known of the cells in this cell's stream holds any more.
  void forget_stream(std::int64_t cell) noexcept;

  // What is seen of it.

  /// Sequences mapped from here on stay until the next step begins.
  void begin_step() noexcept { ++step_; }
  /// Maps a query row that sees the cells base + i for which bit i of `seen` is set (of one stream). False if there is no
  /// room, or if the rows of one step have nothing in common; the map stays valid.
  [[nodiscard]] bool map_row(std::int64_t base, std::span<const std::uint64_t> seen, MappedRow& row);

  /// Pages of a sequence, the last one perhaps partly filled. Valid until the next step begins.
  [[nodiscard]] std::span<const std::int32_t> pages(int sequence) const noexcept { return sequences_[sequence].pages; }
  [[nodiscard]] std::int32_t tokens(int sequence) const noexcept {
    return static_cast<std::int32_t>(sequences_[sequence].order.size());
  }
  /// The sequence's cells in token order.
  [[nodiscard]] std::span<const std::int32_t> cells(int sequence) const noexcept { return sequences_[sequence].order; }
  /// Page p of this sequence is cells 16 p and following, for every page of it.
  [[nodiscard]] bool in_cell_order(int sequence) const noexcept { return sequences_[sequence].irregular_pages == 0; }
  /// Distinguishes the sequences that one slot has held.
  [[nodiscard]] std::uint64_t identity(int sequence) const noexcept { return sequences_[sequence].identity; }

  [[nodiscard]] std::int64_t num_cells() const noexcept { return static_cast<std::int64_t>(stamps_.size()); }
  [[nodiscard]] std::int32_t num_pages() const noexcept { return static_cast<std::int32_t>(pages_.size()); }
  [[nodiscard]] const std::int32_t* page_slots() const noexcept { return slots_.data(); }  // [num_pages, 16]

  /// Pages whose contents are new since the last call of clear_changes(), some perhaps twice. All pages if all_changed().
  [[nodiscard]] std::span<const std::int32_t> changed_pages() const noexcept { return changed_; }
  [[nodiscard]] bool all_changed() const noexcept { return all_changed_; }
  void clear_changes() noexcept;
  /// Grows whenever a page that a living sequence has held changes.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

  /// Rows that saw cells which nobody was seen to write, such as those of a restored state.
  [[nodiscard]] std::uint64_t adoptions() const noexcept { return adoptions_; }
  /// Rows from which the oldest cells had vanished although they were not written again: a sliding window.
  [[nodiscard]] std::uint64_t slides() const noexcept { return slides_; }

 private:
  struct Page {
    std::int32_t references = 0;
    std::int32_t next_in_bucket = -1;
    std::int8_t tokens = 0;  // 0: free
    bool shared = false;     // full, and can be found by its cells
    bool regular = false;    // cells 16 p and following
  };
  struct Sequence {
    bool alive = false;
    std::int64_t base = 0;
    std::uint64_t identity = 0;
    std::uint64_t step = 0;
    std::int32_t irregular_pages = 0;
    std::vector<std::uint64_t> bits;  // bit i: cell base + i
    std::vector<std::int32_t> order;  // cells in token order
    std::vector<std::int32_t> pages;
  };

  [[nodiscard]] std::span<std::int32_t, kPageTokens> slots(std::int32_t page) noexcept {
    return std::span<std::int32_t, kPageTokens>(slots_.data() + std::int64_t{page} * kPageTokens, kPageTokens);
  }
  [[nodiscard]] int find_sequence(std::int64_t base, std::span<const std::uint64_t> seen, std::int64_t count) const noexcept;
  [[nodiscard]] bool extend(Sequence& sequence, std::span<const std::int32_t> cells);
  [[nodiscard]] int rebuild(std::int64_t base, std::span<const std::uint64_t> seen);
  [[nodiscard]] int free_sequence() noexcept;
  bool drop_oldest() noexcept;
  void change_all() noexcept;
  [[nodiscard]] bool in_stream(std::int32_t page, std::int64_t cell) const noexcept {
    return pages_[page].tokens > 0 && slots_[std::int64_t{page} * kPageTokens] / stream_cells_ == cell / stream_cells_;
  }
  void note_slide(std::int64_t base, std::span<const std::uint64_t> seen) noexcept;
  void adopt(std::vector<std::int32_t>& cells);
  void drop(Sequence& sequence) noexcept;
  void truncate(Sequence& sequence, std::size_t tokens) noexcept;

  [[nodiscard]] std::int32_t take_page(std::int32_t wanted) noexcept;
  [[nodiscard]] std::int32_t find_page(std::span<const std::int32_t, kPageTokens> cells) const noexcept;
  void add_token(Sequence& sequence, std::int32_t page, std::int32_t cell) noexcept;
  void share(Sequence& sequence) noexcept;
  void unshare(std::int32_t page) noexcept;
  void release(std::int32_t page) noexcept;
  void free_page(std::int32_t page) noexcept;
  void kill_page(std::int32_t page) noexcept;
  void note_change(std::int32_t page) noexcept;
  [[nodiscard]] std::size_t bucket(std::span<const std::int32_t, kPageTokens> cells) const noexcept;

  std::int64_t stream_cells_;
  std::vector<std::uint64_t> stamps_;       // [cells] when each was written; 0: nobody knows
  std::vector<std::int32_t> page_of_cell_;  // [cells] the latest page that holds it, or -1
  std::vector<bool> in_several_pages_;      // [cells] it may be in other pages as well
  std::vector<Page> pages_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> buckets_;  // first page of each chain, or -1
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> changed_;
  std::vector<std::int32_t> scratch_;
  bool all_changed_ = true;
  int latest_ = 0;  // the sequence mapped last
  std::int32_t next_free_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t step_ = 1;
  std::uint64_t step_clock_ = 0;  // clock when the latest write() began
  std::uint64_t rebuilds_in_step_ = 0;
  std::uint64_t rebuild_step_ = 0;
  std::uint64_t next_identity_ = 1;
  std::uint64_t epoch_ = 1;
  std::uint64_t adoptions_ = 0;
  std::uint64_t slides_ = 0;
};

}  // namespace locks::llamacpp
