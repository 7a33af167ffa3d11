// What the selectors share: rows as numbers, the largest of some scores, lists of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cpu/half.h"
#include "locks/selector.h"

namespace locks::selectors {

inline constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Rows [first, last) of one KV head as floats, row after row.
void load_rows(const Sequence& sequence, const PagedCache& cache, int kv_head, int first, int last, int head_dim,
               float* out);

/// As bf16.
[[nodiscard]] inline float rounded(float value) noexcept { return bf16_to_float(float_to_bf16(value)); }

[[nodiscard]] float dot(const float* a, const float* b, int count) noexcept;

/// Indices of the `count` largest scores, ascending. Equal scores go to the lower index; one that is not a number counts
/// as the smallest.
[[nodiscard]] std::vector<std::int32_t> largest(std::span<const float> scores, std::int64_t count);

/// Puts runs of tokens together to a list. Runs come in ascending order.
class ListBuilder {
 public:
  void add(int first, int last);  // tokens [first, last)
  [[nodiscard]] SelectedList take() noexcept { return std::move(list_); }

 private:
  SelectedList list_;
};

/// softmax over `logits`, in place. What is not a number, or all -infinity, gets no weight.
void normalise(std::span<float> logits) noexcept;

/// One list's scores out of those of its query heads, all of one length: their sum or their largest.
[[nodiscard]] std::vector<float> combined(std::span<const std::vector<float>> of_heads, GroupCombine combine);

/// Calls choose(scores) for every list: those of all query heads combined, or of each for itself.
template <class Choose>
void for_each_list(std::span<const std::vector<float>> of_heads, GroupCombine combine, const Choose& choose) {
  if (combine == GroupCombine::kPerQueryHead) {
    for (const std::vector<float>& scores : of_heads) choose(scores);
  } else {
    choose(combined(of_heads, combine));
  }
}

// One file each.
std::unique_ptr<Selector> make_oracle(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_random(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_recency(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_quest(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_unique_selector(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_rocketkv(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_shadowkv(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_shared_basis(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_two_bit(const SelectorConfig& config, const Geometry& geometry);
std::unique_ptr<Selector> make_compkv(const SelectorConfig& config, const Geometry& geometry);

}  // namespace locks::selectors
