// Stage 3: which tokens are attended. Plain scalar code with specified tie-breaks, the same on every target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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
  float candidate_factor = 4.0F;     // parts are looked for in this many times the budget's worth of best pages
  float completion_fraction = 0.1F;  // of the selectable pages; 0: no completion
  GroupCombine combine = GroupCombine::kSum;
};

/// Throws std::invalid_argument naming the setting, the value and what it may be.
void check_select_config(const SelectConfig& config);

/// What is attended whatever the scores say, for a context of `context_tokens`.
struct AlwaysAttended {
  int sink_pages = 0;          // pages [0, sink_pages)
  int first_recent_page = 0;   // pages [first_recent_page, filled_pages)
  int filled_pages = 0;
  int tail_tokens = 0;         // of the page being filled
  int tokens = 0;              // in all
  bool everything = false;     // the context fits the budget
  [[nodiscard]] int selectable_pages() const noexcept { return everything ? 0 : first_recent_page - sink_pages; }
};
[[nodiscard]] AlwaysAttended always_attended(const SelectConfig& config, int context_tokens) noexcept;

/// Most entries that a list can need: selected pages, and pages to complete. For sizing buffers.
struct SelectLimits {
  int candidate_pages = 0;
  int completed_pages = 0;
};
[[nodiscard]] SelectLimits select_limits(const SelectConfig& config, int max_context_tokens) noexcept;

/// The scores of one list: the query heads that share it, [heads, pages], and each head's logarithm of the exact mass
/// of what is always attended. Masses are normalised per head over both before heads are combined.
struct ListScores {
  View<const float, 2> log_mass;
  std::span<const float> always_log_mass;  // [heads]
};

[[nodiscard]] std::size_t select_scratch_floats(int max_heads, int max_pages) noexcept;

/// Step 1: the pages in which tokens will be selected, best first decides, ascending order out. With whole pages this is
/// the selection. Pages with log_mass +infinity are always in and count towards the budget. Equal shares: lower index.
/// Fills `log_norm` [heads], the logarithm of each head's whole mass, and `share` [pages], the combined shares, for
/// step 2. Returns the number of candidates.
int select_pages(const SelectConfig& config, const AlwaysAttended& always, const ListScores& scores,
                 std::span<float> log_norm, std::span<float> share, std::span<std::int32_t> order_scratch,
                 std::span<std::int32_t> candidates);

/// Step 2 (not for whole pages): the best parts of the candidates. `logits` [candidates, heads, 16] as score_tokens
/// gives them. Equal shares: lower token first. Writes one entry per candidate that keeps a token, ascending.
int select_parts(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 View<const float, 3> logits, std::span<const float> log_norm, std::span<float> part_share_scratch,
                 std::span<std::int32_t> order_scratch, std::span<SelectedPage> selected);

/// Step 3: the pages that stand in for what is skipped: the best by remaining combined share. `share` is updated for the
/// selected tokens first, from `logits` (null data for whole pages). Entries carry the mask of tokens NOT attended,
/// ascending.
int select_completion(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                      View<const float, 3> logits, std::span<const float> log_norm,
                      std::span<const SelectedPage> selected, std::span<float> share,
                      std::span<std::int32_t> order_scratch, std::span<SelectedPage> completed);

}  // namespace locks
