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

/// The pages of a completion, those among them that are selected.
[[nodiscard]] constexpr int completed_pages(const SelectConfig& config, const AlwaysAttended& always) noexcept {
  const int selectable = always.selectable_pages();
  if (!(config.completion_fraction > 0.0F) || selectable == 0) return 0;
  const int asked_for = static_cast<int>(double{config.completion_fraction} * selectable + 0.5);
  const int held = remaining_tokens(config, always) / kPageTokens;
  return std::min(selectable, std::max(1, asked_for) + held);
}

}  // namespace locks::select
