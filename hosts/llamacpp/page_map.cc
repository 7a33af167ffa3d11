#include "page_map.h"

#include <algorithm>
#include <bit>

namespace locks::llamacpp {
namespace {

constexpr std::uint64_t kMaxRebuildsInStep = 64;  // more: the rows of a step share nothing, as under a sliding window
constexpr std::size_t kMaxTakenBack = 64;         // tokens that may be written anew without sorting the sequence again

std::size_t ceil_pow2(std::size_t x) { return std::bit_ceil(std::max<std::size_t>(x, 64)); }

std::int64_t popcount(std::span<const std::uint64_t> words) noexcept {
  std::int64_t count = 0;
  for (const std::uint64_t word : words) count += std::popcount(word);
  return count;
}

bool has_bit(std::span<const std::uint64_t> words, std::int64_t bit) noexcept {
  return bit >= 0 && bit < static_cast<std::int64_t>(words.size()) * 64 && (words[bit / 64] >> (bit % 64) & 1U) != 0;
}

bool is_subset(std::span<const std::uint64_t> small, std::span<const std::uint64_t> large) noexcept {
  const std::size_t common = std::min(small.size(), large.size());
  for (std::size_t i = 0; i < common; ++i) {
    if ((small[i] & ~large[i]) != 0) return false;
  }
  for (std::size_t i = common; i < small.size(); ++i) {
    if (small[i] != 0) return false;
  }
  return true;
}

}  // namespace

PageMap::PageMap(std::int64_t num_cells, std::int64_t stream_cells, int spare_pages)
    : stream_cells_(stream_cells),
      stamps_(static_cast<std::size_t>(num_cells)),
      page_of_cell_(static_cast<std::size_t>(num_cells), -1),
      in_several_pages_(static_cast<std::size_t>(num_cells)),
      pages_(static_cast<std::size_t>((num_cells + kPageTokens - 1) / kPageTokens + spare_pages)),
      slots_(pages_.size() * kPageTokens),
      buckets_(ceil_pow2(2 * pages_.size()), -1),
      sequences_(kMaxSequences) {
  changed_.reserve(pages_.size());
  scratch_.reserve(static_cast<std::size_t>(num_cells));
  next_free_ = num_pages() - 1;
}

// ---- what happens to the cache

void PageMap::write(std::span<const std::int64_t> cells) {
  step_clock_ = clock_;
  bool in_several = false;
  for (const std::int64_t cell : cells) {
    stamps_[cell] = ++clock_;
    in_several = in_several || in_several_pages_[cell];
    if (page_of_cell_[cell] >= 0) kill_page(page_of_cell_[cell]);
  }
  if (in_several) {
    for (std::int32_t page = 0; page < num_pages(); ++page) {
      const auto held = slots(page);
      for (int i = 0; i < pages_[page].tokens; ++i) {
        if (stamps_[held[i]] <= step_clock_) continue;
        kill_page(page);
        break;
      }
    }
  }
  for (Sequence& sequence : sequences_) {
    for (const std::int64_t cell : cells) {
      if (!sequence.alive) break;
      if (!has_bit(sequence.bits, cell - sequence.base)) continue;
      const std::size_t first = sequence.order.size() - std::min(sequence.order.size(), kMaxTakenBack);
      const auto at = std::find(sequence.order.begin() + static_cast<std::ptrdiff_t>(first), sequence.order.end(),
                                static_cast<std::int32_t>(cell));
      if (at == sequence.order.end()) {
        drop(sequence);
      } else {
        truncate(sequence, static_cast<std::size_t>(at - sequence.order.begin()));
      }
    }
  }
}

void PageMap::change_all() noexcept {
  all_changed_ = true;
  ++epoch_;
}

void PageMap::shift() noexcept {
  for (Sequence& sequence : sequences_) {
    if (sequence.alive) drop(sequence);
  }
  change_all();
}

void PageMap::forget_stream(std::int64_t cell) noexcept {
  const std::int64_t first = cell / stream_cells_ * stream_cells_;
  for (Sequence& sequence : sequences_) {
    if (sequence.alive && sequence.base / stream_cells_ == cell / stream_cells_) drop(sequence);
  }
  for (std::int32_t page = 0; page < num_pages(); ++page) {
    if (!in_stream(page, cell)) continue;
    note_change(page);
    free_page(page);
  }
  std::fill_n(stamps_.begin() + first, stream_cells_, 0);
  std::fill_n(in_several_pages_.begin() + first, stream_cells_, false);
  ++epoch_;
}

void PageMap::clear_changes() noexcept {
  changed_.clear();
  all_changed_ = false;
}

// ---- sequences

bool PageMap::map_row(std::int64_t base, std::span<const std::uint64_t> seen, MappedRow& row) {
  const std::int64_t count = popcount(seen);
  if (count == 0) return false;
  int slot = find_sequence(base, seen, count);
  if (slot >= 0) {
    Sequence& sequence = sequences_[slot];
    scratch_.clear();
    for (std::size_t word = 0; word < seen.size(); ++word) {
      std::uint64_t added = seen[word] & ~(word < sequence.bits.size() ? sequence.bits[word] : 0);
      for (; added != 0; added &= added - 1) {
        scratch_.push_back(static_cast<std::int32_t>(base + static_cast<std::int64_t>(word) * 64 + std::countr_zero(added)));
      }
    }
    const auto by_stamp = [this](std::int32_t a, std::int32_t b) { return stamps_[a] < stamps_[b]; };
    if (std::any_of(scratch_.begin(), scratch_.end(), [this](std::int32_t cell) { return stamps_[cell] == 0; })) {
      adopt(scratch_);
    }
    if (!std::is_sorted(scratch_.begin(), scratch_.end(), by_stamp)) std::sort(scratch_.begin(), scratch_.end(), by_stamp);
    if (scratch_.empty() || by_stamp(sequence.order.back(), scratch_.front())) {
      sequence.step = step_;
      if (!extend(sequence, scratch_)) {
        drop(sequence);
        return false;
      }
    } else {
      slot = -1;
    }
  }
  if (slot < 0) slot = rebuild(base, seen);
  if (slot < 0) return false;
  latest_ = slot;
  row = {slot, tokens(slot)};
  return true;
}

int PageMap::find_sequence(std::int64_t base, std::span<const std::uint64_t> seen, std::int64_t count) const noexcept {
  const auto fits = [&](const Sequence& sequence) {
    return sequence.alive && sequence.base == base && static_cast<std::int64_t>(sequence.order.size()) <= count &&
           is_subset(sequence.bits, seen);
  };
  if (static_cast<std::int64_t>(sequences_[latest_].order.size()) + 1 >= count && fits(sequences_[latest_])) return latest_;
  int best = -1;
  for (int slot = 0; slot < kMaxSequences; ++slot) {
    if (best >= 0 && sequences_[slot].order.size() <= sequences_[best].order.size()) continue;
    if (fits(sequences_[slot])) best = slot;
  }
  return best;
}

int PageMap::rebuild(std::int64_t base, std::span<const std::uint64_t> seen) {
  if (rebuild_step_ != step_) rebuilds_in_step_ = 0;
  rebuild_step_ = step_;
  if (++rebuilds_in_step_ > kMaxRebuildsInStep) return -1;
  note_slide(base, seen);

  scratch_.clear();
  for (std::size_t word = 0; word < seen.size(); ++word) {
    for (std::uint64_t left = seen[word]; left != 0; left &= left - 1) {
      scratch_.push_back(static_cast<std::int32_t>(base + static_cast<std::int64_t>(word) * 64 + std::countr_zero(left)));
    }
  }
  const auto by_stamp = [this](std::int32_t a, std::int32_t b) { return stamps_[a] < stamps_[b]; };
  if (std::any_of(scratch_.begin(), scratch_.end(), [this](std::int32_t cell) { return stamps_[cell] == 0; }))
    adopt(scratch_);
  if (!std::is_sorted(scratch_.begin(), scratch_.end(), by_stamp)) std::sort(scratch_.begin(), scratch_.end(), by_stamp);

  const int slot = free_sequence();
  if (slot < 0) return -1;
  Sequence& sequence = sequences_[slot];
  sequence.alive = true;
  sequence.base = base;
  sequence.identity = next_identity_++;
  sequence.step = step_;
  sequence.irregular_pages = 0;
  sequence.order.reserve(stamps_.size());
  sequence.pages.reserve(pages_.size());
  sequence.bits.reserve(stamps_.size() / 64 + 1);
  for (std::size_t at = 0; at < scratch_.size(); at += kPageTokens) {
    const std::span<const std::int32_t> piece(scratch_.data() + at,
                                              std::min<std::size_t>(kPageTokens, scratch_.size() - at));
    const std::int32_t known = piece.size() == kPageTokens ? find_page(piece.first<kPageTokens>()) : -1;
    if (known < 0) {
      if (extend(sequence, piece)) continue;
      drop(sequence);
      return -1;
    }
    ++pages_[known].references;
    if (!pages_[known].regular) ++sequence.irregular_pages;
    sequence.pages.push_back(known);
    sequence.order.insert(sequence.order.end(), piece.begin(), piece.end());
  }
  sequence.bits.assign(seen.begin(), seen.end());
  return slot;
}

/// Restored cells have no history. They are taken to be in the order in which they lie, before what this step wrote, and
/// whoever wrote them may have written others too.
void PageMap::adopt(std::vector<std::int32_t>& cells) {
  ++adoptions_;
  for (std::int32_t page = 0; page < num_pages(); ++page) {
    if (in_stream(page, cells.front())) note_change(page);
  }
  ++epoch_;
  const auto old =
      std::stable_partition(cells.begin(), cells.end(), [this](std::int32_t cell) { return stamps_[cell] <= step_clock_; });
  std::sort(cells.begin(), old);
  std::sort(old, cells.end(), [this](std::int32_t a, std::int32_t b) { return stamps_[a] < stamps_[b]; });
  for (const std::int32_t cell : cells) stamps_[cell] = ++clock_;
}

void PageMap::note_slide(std::int64_t base, std::span<const std::uint64_t> seen) noexcept {
  for (const Sequence& sequence : sequences_) {
    if (!sequence.alive || sequence.base != base) continue;
    if (has_bit(seen, sequence.order.front() - base) || !has_bit(seen, sequence.order.back() - base)) continue;
    const auto sees = [&](std::int32_t cell) { return has_bit(seen, cell - base); };
    const auto first = std::find_if(sequence.order.begin(), sequence.order.end(), sees);
    if (!std::all_of(first, sequence.order.end(), sees)) continue;
    ++slides_;
    return;
  }
}

bool PageMap::extend(Sequence& sequence, std::span<const std::int32_t> cells) {
  for (const std::int32_t cell : cells) {
    if (sequence.order.size() % kPageTokens == 0) {
      const std::int32_t page = take_page(cell % kPageTokens == 0 ? cell / kPageTokens : -1);
      if (page < 0) return false;
      pages_[page].references = 1;
      pages_[page].regular = true;
      std::fill_n(slots(page).begin(), kPageTokens, cell);
      sequence.pages.push_back(page);
    }
    add_token(sequence, sequence.pages.back(), cell);
    if (sequence.order.size() % kPageTokens == 0) share(sequence);
  }
  return true;
}

void PageMap::add_token(Sequence& sequence, std::int32_t page, std::int32_t cell) noexcept {
  Page& entry = pages_[page];
  if (entry.regular && cell != page * kPageTokens + entry.tokens) {
    entry.regular = false;
    ++sequence.irregular_pages;
  }
  slots(page)[entry.tokens++] = cell;
  if (page_of_cell_[cell] >= 0 && page_of_cell_[cell] != page) in_several_pages_[cell] = true;
  page_of_cell_[cell] = page;
  const std::int64_t bit = cell - sequence.base;
  if (static_cast<std::size_t>(bit / 64) >= sequence.bits.size())
    sequence.bits.resize(static_cast<std::size_t>(bit / 64 + 1));
  sequence.bits[bit / 64] |= std::uint64_t{1} << (bit % 64);
  sequence.order.push_back(cell);
}

int PageMap::free_sequence() noexcept {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (int slot = 0; slot < kMaxSequences; ++slot) {
      if (!sequences_[slot].alive) return slot;
    }
    if (!drop_oldest()) return -1;
  }
  return -1;
}

bool PageMap::drop_oldest() noexcept {
  Sequence* oldest = nullptr;
  for (Sequence& sequence : sequences_) {
    if (!sequence.alive || sequence.step == step_) continue;
    if (oldest == nullptr || sequence.step < oldest->step) oldest = &sequence;
  }
  if (oldest == nullptr) return false;
  drop(*oldest);
  return true;
}

void PageMap::drop(Sequence& sequence) noexcept {
  for (const std::int32_t page : sequence.pages) release(page);
  sequence.alive = false;
  sequence.irregular_pages = 0;
  sequence.pages.clear();
  sequence.order.clear();
  sequence.bits.clear();
}

void PageMap::truncate(Sequence& sequence, std::size_t tokens) noexcept {
  if (tokens == 0) return drop(sequence);
  const std::size_t keep = tokens % kPageTokens;
  for (std::size_t i = tokens; i < sequence.order.size(); ++i) {
    const std::int64_t bit = sequence.order[i] - sequence.base;
    sequence.bits[bit / 64] &= ~(std::uint64_t{1} << (bit % 64));
  }
  while (sequence.pages.size() > tokens / kPageTokens) {
    const std::int32_t page = sequence.pages.back();
    if (!pages_[page].regular) --sequence.irregular_pages;
    sequence.pages.pop_back();
    release(page);
  }
  std::array<std::int32_t, kPageTokens> rest;
  std::copy_n(sequence.order.begin() + static_cast<std::ptrdiff_t>(tokens - keep), keep, rest.begin());
  sequence.order.resize(tokens - keep);
  sequence.step = step_;  // not to be dropped for the page that it needs itself
  if (!extend(sequence, std::span(rest).first(keep))) drop(sequence);
}

// ---- pages

std::int32_t PageMap::take_page(std::int32_t wanted) noexcept {
  const auto take = [this](std::int32_t page) {
    if (pages_[page].tokens > 0) free_page(page);
    note_change(page);
    return page;
  };
  if (wanted >= 0 && pages_[wanted].references == 0) return take(wanted);
  do {
    for (const bool with_contents : {false, true}) {
      for (std::int32_t tried = 0; tried < num_pages(); ++tried) {
        const std::int32_t page = next_free_;
        next_free_ = next_free_ > 0 ? next_free_ - 1 : num_pages() - 1;  // from the end: low pages are wanted by number
        if (pages_[page].references == 0 && (with_contents || pages_[page].tokens == 0)) return take(page);
      }
    }
  } while (drop_oldest());
  return -1;
}

std::size_t PageMap::bucket(std::span<const std::int32_t, kPageTokens> cells) const noexcept {
  std::uint64_t hash = 0x9E3779B97F4A7C15U;
  for (const std::int32_t cell : cells) hash = (hash ^ static_cast<std::uint32_t>(cell)) * 0xFF51AFD7ED558CCDU;
  return static_cast<std::size_t>((hash ^ hash >> 32) & (buckets_.size() - 1));
}

std::int32_t PageMap::find_page(std::span<const std::int32_t, kPageTokens> cells) const noexcept {
  for (std::int32_t page = buckets_[bucket(cells)]; page >= 0; page = pages_[page].next_in_bucket) {
    if (std::equal(cells.begin(), cells.end(), slots_.begin() + std::int64_t{page} * kPageTokens)) return page;
  }
  return -1;
}

/// The sequence's last page is full: it becomes the one that every sequence with these cells uses.
void PageMap::share(Sequence& sequence) noexcept {
  const std::int32_t page = sequence.pages.back();
  const std::int32_t known = find_page(slots(page));
  if (known < 0) {
    const std::size_t chain = bucket(slots(page));
    pages_[page].next_in_bucket = buckets_[chain];
    pages_[page].shared = true;
    buckets_[chain] = page;
    return;
  }
  sequence.irregular_pages += static_cast<int>(!pages_[known].regular) - static_cast<int>(!pages_[page].regular);
  sequence.pages.back() = known;
  ++pages_[known].references;
  release(page);
}

void PageMap::unshare(std::int32_t page) noexcept {
  std::int32_t* link = &buckets_[bucket(slots(page))];
  while (*link != page) link = &pages_[*link].next_in_bucket;
  *link = pages_[page].next_in_bucket;
  pages_[page].next_in_bucket = -1;
  pages_[page].shared = false;
}

/// A full page without sequences keeps its contents until its cells are written or its number is needed: a prompt that is
/// read again finds it.
void PageMap::release(std::int32_t page) noexcept {
  if (--pages_[page].references == 0 && !pages_[page].shared) free_page(page);
}

void PageMap::free_page(std::int32_t page) noexcept {
  if (pages_[page].shared) unshare(page);
  for (int i = 0; i < pages_[page].tokens; ++i) {
    const std::int32_t cell = slots(page)[i];
    if (page_of_cell_[cell] == page) page_of_cell_[cell] = -1;
  }
  pages_[page].tokens = 0;
}

void PageMap::kill_page(std::int32_t page) noexcept {
  if (pages_[page].shared) unshare(page);
  note_change(page);
  if (pages_[page].references > 0) {
    ++epoch_;
  } else {
    free_page(page);
  }
}

void PageMap::note_change(std::int32_t page) noexcept {
  if (changed_.size() == changed_.capacity()) {
    change_all();
  } else {
    changed_.push_back(page);
  }
}

}  // namespace locks::llamacpp
