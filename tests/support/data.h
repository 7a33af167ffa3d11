// Made data for the tests: caches of any layout with known contents, and the tolerances that a sum of products earns.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "locks/locks.h"

namespace locks::test {

/// Names the targets for parameterised tests, the reference left out.
std::vector<Target> simd_targets();

enum class Layout { kTokenMajor, kHeadMajor, kGaps, kScattered };  // vLLM/ggml-like, heads outermost, odd gaps, page_slots

enum class Content {
  kNormal,    // independent normal values
  kLowRank,   // pages with a few strong directions and a common mean, like real keys
  kConstant,  // every key of a page the same
  kZero,
  kHuge,  // magnitudes around 1e18 (1e4 for f16)
  kDenormal,
  kOneOutlier,  // normal, and one key per page a thousand times as large (sixteen times for f16)
};

/// Owns one cache. Values are rounded to `dtype`; value() gives back exactly what is stored, but for the product of e4m3
/// with the cache's scale, which is rounded.
class CacheData {
 public:
  CacheData(DType dtype, Layout layout, int num_pages, int kv_heads, int head_dim, int block_tokens, Content content,
            std::uint64_t seed);
  [[nodiscard]] const PagedCache& view() const { return view_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }     // what view().data points to
  [[nodiscard]] std::span<const std::int32_t> slots() const { return slots_; }  // and view().page_slots
  [[nodiscard]] float value(std::int64_t page, int token, int head, int dim) const;
  void set_value(std::int64_t page, int token, int head, int dim, float new_value);  // not for q8_0
  [[nodiscard]] std::span<const float> scale() const { return scale_; }              // what view().scale points to

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::int32_t> slots_;
  std::vector<float> scale_;
  PagedCache view_;
  int head_dim_ = 0;
};

/// Shuffled block tables for requests of these lengths over one cache, no block used twice.
struct TableData {
  std::vector<std::int32_t> blocks;
  std::vector<std::int32_t> context_tokens;
  PageTable table;
  TableData(std::vector<std::int32_t> lengths, std::int64_t num_pages, int block_tokens, std::uint64_t seed);
  TableData(const TableData&) = delete;
};

/// 64-byte aligned memory.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : storage_(bytes + 64) {}
  [[nodiscard]] std::span<std::byte> span();

 private:
  std::vector<std::byte> storage_;
};

std::vector<float> normal_floats(std::size_t count, std::uint64_t seed, float deviation = 1.0F);

}  // namespace locks::test
