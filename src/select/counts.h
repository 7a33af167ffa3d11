// How many of what, from the settings and the context length alone; on a GPU too.
#pragma once

#include <algorithm>

#include "locks/select.h"

namespace locks::select {

inline constexpr int kFewTokens = 2 * kPageTokens;  // the smallest budgets leave 17 to 32 tokens to select
inline constexpr double kFewFactor = 8.0;

/// The budget less what is always attended.
[[nodiscard]] constexpr int remaining_tokens(const SelectConfig& config, const AlwaysAttended& always) noexcept {
  return always.everything ? 0 : config.budget_tokens - always.tokens;
}

[[nodiscard]] constexpr int candidate_pages(const SelectConfig& config, const AlwaysAttended& always) noexcept {
  const int remaining = remaining_tokens(config, always);
  const int selectable = always.selectable_pages();
  if (config.part_tokens == kPageTokens) return std::min(remaining / kPageTokens, selectable);
  double factor = config.candidate_factor;  // no std::max with a constant here: a GPU has no address of it
  if (remaining <= kFewTokens && factor < kFewFactor) factor = kFewFactor;
  const double pages = factor * remaining / kPageTokens;
  if (pages >= selectable) return selectable;
  const int whole = static_cast<int>(pages);
  return whole < pages ? whole + 1 : whole;
}

/// Of a completion that finds enough pages with mass.
[[nodiscard]] constexpr int completed_pages(const SelectConfig& config, const AlwaysAttended& always) noexcept {
  if (!(config.completion_fraction > 0.0F) || always.selectable_pages() == 0) return 0;
  return std::max(1, static_cast<int>(double{config.completion_fraction} * always.selectable_pages() + 0.5));
}

}  // namespace locks::select
