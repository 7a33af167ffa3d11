#include <algorithm>
#include <cmath>

#include "locks/select.h"
#include "select/counts.h"
#include "select/kernels.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

float combine(GroupCombine how, const ListShares& shares, int heads, std::int32_t page) noexcept {
  float combined = shares.head_share(0, page);
  for (int head = 1; head < heads; ++head) {
    const float own = shares.head_share(head, page);
    combined = how == GroupCombine::kMax ? std::max(combined, own) : combined + own;
  }
  return combined;
}

}  // namespace

void remove_selected(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                     View<const float, 3> logits, std::span<const SelectedPage> selected, const ListShares& shares,
                     std::span<float> skipped_log_mass, Target target) noexcept {
  const select::Kernels& kernels = select::kernels(target);
  const auto heads = static_cast<int>(skipped_log_mass.size());
  const int pages = always.selectable_pages();
  std::size_t candidate = 0;
  for (const SelectedPage& entry : selected) {
    while (candidates[candidate] != entry.page) ++candidate;
    const bool none_left = entry.mask == kWholePage || shares.share[entry.page] == select::kInfinity;
    for (int head = 0; head < heads; ++head) {
      shares.head_share(head, entry.page) =
          none_left ? 0.0F : kernels.unselected_share(logits.at(candidate, head), shares.log_norm[head], entry.mask);
    }
    shares.share[entry.page] = combine(config.combine, shares, heads, entry.page);
  }
  kernels.clear_marked(shares.share.data() + always.sink_pages, pages);
  for (int head = 0; head < heads; ++head) {
    const float skipped = kernels.clear_marked(shares.head_share.at(head, always.sink_pages), pages);
    skipped_log_mass[head] = skipped > 0.0F ? shares.log_norm[head] + std::log(skipped) : -select::kInfinity;
  }
}

int select_completion(const SelectConfig& config, const AlwaysAttended& always, std::span<const SelectedPage> selected,
                      std::span<const float> share, std::span<std::int32_t> order_scratch,
                      std::span<SelectedPage> completed) noexcept {
  const int count = std::min(select::completed_pages(config, always), static_cast<int>(completed.size()));
  if (count == 0) return 0;
  const auto remaining = share.subspan(static_cast<std::size_t>(always.sink_pages), static_cast<std::size_t>(always.selectable_pages()));
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
