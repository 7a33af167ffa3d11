#include <algorithm>

#include "locks/select.h"
#include "select/counts.h"
#include "select/kernels.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

/// Takes the selected tokens of one page out of the shares. `of_heads` [heads, 16 / part_tokens] is not read if the page is
/// selected whole or marked always-attend.
void remove_page(const SelectConfig& config, const SelectedPage& entry, std::span<const float> of_heads,
                 const ListShares& shares) noexcept {
  const std::size_t num_parts = kPageTokens / config.part_tokens;
  const bool none_left = entry.mask == kWholePage || shares.share[entry.page] == select::kInfinity;
  float combined = 0.0F;
  for (std::size_t head = 0; head < shares.log_norm.size(); ++head) {
    float left = 0.0F;
    for (std::size_t part = 0; !none_left && part < num_parts; ++part) {
      const bool selected = (entry.mask >> (part * config.part_tokens) & 1) != 0;
      left += selected ? 0.0F : of_heads[head * num_parts + part];
    }
    shares.head_share(head, entry.page) = left;
    combined = config.combine == GroupCombine::kMax ? std::max(combined, left) : combined + left;
  }
  shares.share[entry.page] = combined;
}

}  // namespace

void remove_selected(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                     std::span<const float> part_shares, std::span<const SelectedPage> selected, const ListShares& shares,
                     std::span<float> skipped_log_mass, Target target) noexcept {
  const select::Kernels& kernels = select::kernels(target);
  const int pages = always.selectable_pages();
  const std::size_t num_parts = kPageTokens / config.part_tokens;
  const std::size_t row = shares.log_norm.size() * num_parts;
  std::size_t candidate = 0;
  for (const SelectedPage& entry : selected) {
    while (candidates[candidate] != entry.page) ++candidate;
    const std::size_t at = candidates.size() * num_parts + candidate * row;
    remove_page(config, entry, entry.mask == kWholePage ? std::span<const float>{} : part_shares.subspan(at, row), shares);
  }
  kernels.clear_marked(shares.share.data() + always.sink_pages, pages);
  for (std::size_t head = 0; head < skipped_log_mass.size(); ++head) {
    const float skipped = kernels.clear_marked(shares.head_share.at(head, always.sink_pages), pages);
    skipped_log_mass[head] = skipped > 0.0F ? shares.log_norm[head] + select::share_log(skipped) : -select::kInfinity;
  }
}

int select_completion(const SelectConfig& config, const AlwaysAttended& always, std::span<const SelectedPage> selected,
                      std::span<const float> share, std::span<std::int32_t> order_scratch,
                      std::span<SelectedPage> completed) noexcept {
  const int count = std::min(select::completed_pages(config, always), static_cast<int>(completed.size()));
  if (count == 0) return 0;
  const auto remaining =
      share.subspan(static_cast<std::size_t>(always.sink_pages), static_cast<std::size_t>(always.selectable_pages()));
  select::Threshold threshold = select::largest(remaining, count, order_scratch);
  int taken = 0;
  for (std::int32_t page = always.sink_pages; taken < count; ++page) {
    completed[taken] = {page, kWholePage};  // without a branch: which entries pass cannot be predicted
    taken += threshold.takes(share[page]) ? 1 : 0;
  }
  int entries = 0;
  auto next = selected.begin();
  for (const SelectedPage& entry : completed.first(static_cast<std::size_t>(count))) {
    while (next != selected.end() && next->page < entry.page) ++next;
    const bool partly = next != selected.end() && next->page == entry.page;
    if (!(share[entry.page] > 0.0F)) continue;
    completed[entries++] = {entry.page, static_cast<std::uint16_t>(partly ? ~next->mask : kWholePage)};
  }
  return entries;
}

}  // namespace locks
