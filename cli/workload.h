// Made KV caches for measurements: many layers' worth of them, so that no processor cache holds what is read next.
#pragma once

#include <cstdint>
#include <vector>

#include "locks/locks.h"
#include "measure.h"

namespace locks::cli {

struct Shape {
  Geometry geometry;
  DType dtype = DType::kF16;
};

[[nodiscard]] Geometry make_geometry(int head_dim, int kv_heads, int group_size);
[[nodiscard]] std::vector<float> normal_floats(std::size_t count, std::uint64_t seed);

/// Keys and values of `pages` pages, [tokens, kv_heads, head_dim] as llama.cpp keeps them, normal random values.
/// The contents repeat every kPeriodPages pages.
class MadeCache {
 public:
  static constexpr int kPeriodPages = 128;

  MadeCache(const Shape& shape, std::int64_t pages);
  [[nodiscard]] std::int64_t pages() const noexcept { return pages_; }
  /// Views of `pages` pages from `first_page` (a multiple of kPeriodPages) on.
  [[nodiscard]] PagedCache keys(std::int64_t first_page, std::int64_t pages) const noexcept {
    return view(keys_, first_page, pages);
  }
  [[nodiscard]] PagedCache values(std::int64_t first_page, std::int64_t pages) const noexcept {
    return view(values_, first_page, pages);
  }

 private:
  [[nodiscard]] PagedCache view(const Memory& memory, std::int64_t first_page, std::int64_t pages) const noexcept;

  Shape shape_;
  std::int64_t pages_;
  Memory keys_;
  Memory values_;
};

/// Summaries of `pages` pages of such a cache, whatever its length.
class MadeSummaries {
 public:
  MadeSummaries(const Shape& shape, const SummaryFormat& format, std::int64_t pages, bool with_values);
  /// The store of `pages` pages from `first_page` (a multiple of kPeriodPages) on.
  [[nodiscard]] SummaryStore store(std::int64_t first_page, std::int64_t pages) const noexcept;

 private:
  SummaryStore store_;
  Memory records_;
  Memory values_;
};

/// One request whose pages lie in order.
class MadeTable {
 public:
  explicit MadeTable(int context_tokens);
  MadeTable(MadeTable&&) = default;
  [[nodiscard]] const PageTable& table() const noexcept { return table_; }
  [[nodiscard]] std::span<const std::int32_t> blocks() const noexcept { return blocks_; }

 private:
  std::vector<std::int32_t> blocks_;
  std::vector<std::int32_t> context_tokens_;
  PageTable table_;
};

/// `pages` rounded up to whole periods.
[[nodiscard]] std::int64_t whole_periods(std::int64_t pages) noexcept;

}  // namespace locks::cli
