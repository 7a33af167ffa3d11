#include <algorithm>

#include "locks/select.h"
#include "select/counts.h"
#include "select/kernels.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

/// The shares that a candidate's unselected parts have of one head.
float unselected(const SelectConfig& config, std::uint16_t mask, std::span<const float> parts) noexcept {
  float left = 0.0F;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    left += (mask >> (part * config.part_tokens) & 1) != 0 ? 0.0F : parts[part];
  }
  return left;
}

}  // namespace

void sum_skipped(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 std::span<const float> part_shares, std::span<const SelectedPage> selected, const ListShares& shares,
                 std::span<float> skipped_log_mass) noexcept {
  const std::size_t heads = skipped_log_mass.size();
  const std::size_t num_parts = kPageTokens / config.part_tokens;
  const auto of_heads = part_shares.empty() ? part_shares : part_shares.subspan(candidates.size() * num_parts);
  const bool has_others = selected.size() < static_cast<std::size_t>(always.selectable_pages());
  for (std::size_t head = 0; head < heads; ++head) {
    // Of the selected pages what is not selected; of the others all, which is what the selected ones leave.
    select::Lanes rests{};
    select::Lanes of_selected{};
    auto next = selected.begin();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (next == selected.end() || next->page != candidates[i]) continue;
      const std::uint16_t mask = (next++)->mask;
      if (shares.share[candidates[i]] == select::kInfinity) continue;
      if (mask != kWholePage) {
        rests[i % select::kLanes] += unselected(config, mask, of_heads.subspan((i * heads + head) * num_parts, num_parts));
      }
      of_selected[i % select::kLanes] += shares.head_share(head, candidates[i]);
    }
    const float others = has_others ? std::max(0.0F, shares.selectable[head] - select::fold_sum(of_selected)) : 0.0F;
    // Where logits have no digits left for a difference, tokens may seem to have more than their page.
    const float skipped = std::min(1.0F, others + select::fold_sum(rests));
    skipped_log_mass[head] = skipped > 0.0F ? shares.log_norm[head] + select::share_log(skipped) : -select::kInfinity;
  }
}

int select_completion(const SelectConfig& config, const AlwaysAttended& always, std::span<const SelectedPage> selected,
                      std::span<const float> share, std::span<std::int32_t> order_scratch,
                      std::span<SelectedPage> completed) noexcept {
  const int count = std::min(select::completed_pages(config, always), static_cast<int>(completed.size()));
  if (count == 0) return 0;
  const auto selectable =
      share.subspan(static_cast<std::size_t>(always.sink_pages), static_cast<std::size_t>(always.selectable_pages()));
  select::Threshold threshold = select::largest(selectable, count, order_scratch);
  int taken = 0;
  for (std::int32_t page = always.sink_pages; taken < count; ++page) {
    completed[taken] = {page, kWholePage};  // without a branch: which entries pass cannot be predicted
    taken += threshold.takes(share[page]) ? 1 : 0;
  }
  int entries = 0;
  auto next = selected.begin();
  for (const SelectedPage& entry : completed.first(static_cast<std::size_t>(count))) {
    while (next != selected.end() && next->page < entry.page) ++next;
    const bool has_entry = next != selected.end() && next->page == entry.page;
    const std::uint16_t mask = has_entry ? static_cast<std::uint16_t>(~next->mask) : kWholePage;
    if (mask != 0 && share[entry.page] > 0.0F && share[entry.page] < select::kInfinity)
      completed[entries++] = {entry.page, mask};
  }
  return entries;
}

}  // namespace locks
