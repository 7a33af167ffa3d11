// Stage 3: which tokens are attended. Arithmetic and tie-breaks are specified: every target gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/target.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks {

/// A page index within the request and the tokens of it that are meant (bit i: token i).
struct SelectedPage {
  std::int32_t page = 0;
  std::uint16_t mask = 0;
  friend bool operator==(const SelectedPage&, const SelectedPage&) = default;
};
inline constexpr std::uint16_t kWholePage = 0xFFFF;

enum class GroupCombine : std::uint8_t { kSum, kMax, kPerQueryHead };

struct SelectConfig {
  int budget_tokens = 512;           // every attended token counts: sink, recent and the page being filled included
  int sink_tokens = 16;              // the first pages, always attended (rounded up to pages)
  int recent_tokens = 64;            // at least this many last tokens are always attended
  int part_tokens = 4;               // 1, 2, 4, 8: parts of pages; 16: whole pages
  float candidate_factor = 4.0F;     // parts are looked for in this many times the budget's worth of best pages; at least
                                     // 8 times if no more than 32 tokens are selected
  float completion_fraction = 0.1F;  // of the selectable pages, besides what the budget holds; 0: no completion
  GroupCombine combine = GroupCombine::kSum;
};

/// Throws std::invalid_argument naming the setting, the value and what it may be.
void check_select_config(const SelectConfig& config);

/// What is attended whatever the scores say, for a context of `context_tokens`.
struct AlwaysAttended {
  int sink_pages = 0;         // pages [0, sink_pages); 0 if everything is attended
  int first_recent_page = 0;  // pages [first_recent_page, filled_pages); 0 if everything is attended
  int filled_pages = 0;
  int tail_tokens = 0;      // of the page being filled
  int tokens = 0;           // in all
  bool everything = false;  // the context fits the budget
  [[nodiscard]] constexpr int selectable_pages() const noexcept { return everything ? 0 : first_recent_page - sink_pages; }
};
[[nodiscard]] constexpr int pages_for(int tokens) noexcept { return (tokens + kPageTokens - 1) / kPageTokens; }
/// Contexts shorter than `min_context_tokens` are attended whole.
[[nodiscard]] constexpr AlwaysAttended always_attended(const SelectConfig& config, int context_tokens,
                                                       int min_context_tokens = 0) noexcept {
  AlwaysAttended always;
  always.filled_pages = context_tokens / kPageTokens;
  always.tail_tokens = context_tokens % kPageTokens;
  always.everything = context_tokens <= config.budget_tokens || context_tokens < min_context_tokens;
  always.tokens = context_tokens;
  if (always.everything) return always;
  always.sink_pages = pages_for(config.sink_tokens);
  always.first_recent_page = std::max(always.sink_pages, (context_tokens - config.recent_tokens) / kPageTokens);
  always.tokens -= always.selectable_pages() * kPageTokens;
  return always;
}

/// Most entries that a list can need: selected pages, and pages to complete. For sizing buffers.
struct SelectLimits {
  int candidate_pages = 0;
  int completed_pages = 0;
};
[[nodiscard]] SelectLimits select_limits(const SelectConfig& config, int max_context_tokens) noexcept;

/// The scores of one list: the query heads that share it, [heads, pages], and each head's logarithm of the exact mass
/// of what is always attended. NaN counts as -infinity (no mass).
struct ListScores {
  View<const float, 2> log_mass;
  std::span<const float> always_log_mass;  // [heads]
};

/// What the steps of one list tell each other. A share is a part of the whole mass of its head, what is always attended
/// included: share = exp(log_mass) / (exp(always_log_mass) + sum over selectable pages of exp(log_mass)). Only the entries
/// of selectable pages are written and read.
struct ListShares {
  View<float, 2> head_share;    // [heads, pages]; pages contiguous; may be the memory of log_mass
  std::span<float> log_norm;    // [heads]: logarithm of a head's whole mass; +infinity if it has none
  std::span<float> share;       // [pages]: head_share combined over the heads; +infinity: marked always-attend
  std::span<float> selectable;  // [heads]: the share of all selectable pages together; marked ones have none
};

/// Step 1: the pages in which tokens will be selected, best first decides, ascending order out. With whole pages this is
/// the selection. Pages with log_mass +infinity come before all others and count towards the budget. Equal shares: lower
/// index. Returns the number of candidates. `order_scratch` [pages].
int select_pages(const SelectConfig& config, const AlwaysAttended& always, const ListScores& scores,
                 const ListShares& shares, std::span<std::int32_t> order_scratch, std::span<std::int32_t> candidates,
                 Target target) noexcept;

/// Step 2: the best parts of the candidates. `logits` [candidates, heads, 16] as score_tokens gives them. Equal shares:
/// lower token first. Writes one entry per candidate that keeps a token, ascending, and returns their number.
/// `part_shares` is left to step 3: the combined shares [candidates, 16 / part_tokens], and behind them those of the heads
/// [candidates, heads, 16 / part_tokens]. `order_scratch` [candidates * 16 / part_tokens]. With whole pages every candidate
/// is selected, and neither logits nor part_shares are touched.
int select_parts(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 View<const float, 3> logits, const ListShares& shares, std::span<float> part_shares,
                 std::span<std::int32_t> order_scratch, std::span<SelectedPage> selected, Target target) noexcept;

/// Step 3: the logarithm of each head's skipped mass, -infinity if nothing is skipped, and log_norm at most. It is a
/// difference, within 1e-6 (1 + |log_norm|) of the whole mass. With whole pages part_shares is not touched.
void sum_skipped(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 std::span<const float> part_shares, std::span<const SelectedPage> selected, const ListShares& shares,
                 std::span<float> skipped_log_mass) noexcept;

/// Step 4: what stands in for what is skipped: as many of the best pages as the budget holds and completion_fraction asks
/// for, less what is selected. Entries carry the mask of tokens NOT attended, ascending; a page that is selected whole,
/// marked or without any share gets none. Returns their number. `order_scratch` [pages].
int select_completion(const SelectConfig& config, const AlwaysAttended& always, std::span<const SelectedPage> selected,
                      std::span<const float> share, std::span<std::int32_t> order_scratch,
                      std::span<SelectedPage> completed) noexcept;

}  // namespace locks
