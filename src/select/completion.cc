#include <algorithm>
#include <array>
#include <cmath>

#include "locks/select.h"
#include "select/counts.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

/// The share of the page's tokens that `mask` leaves out, summed in the order of the tokens.
float unselected_share(const float* logit, float log_norm, std::uint16_t mask) noexcept {
  std::array<float, kPageTokens> mass;
  for (int token = 0; token < kPageTokens; ++token) mass[token] = select::share_exp(logit[token] - log_norm);
  float sum = 0.0F;
  for (int token = 0; token < kPageTokens; ++token) sum += (mask >> token & 1) != 0 ? 0.0F : mass[token];
  return sum;
}

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
                     std::span<float> skipped_log_mass) noexcept {
  const auto heads = static_cast<int>(skipped_log_mass.size());
  const int pages = always.selectable_pages();
  std::size_t candidate = 0;
  for (const SelectedPage& entry : selected) {
    while (candidates[candidate] != entry.page) ++candidate;
    const bool marked = shares.share[entry.page] == select::kInfinity;
    for (int head = 0; head < heads; ++head) {
      shares.head_share(head, entry.page) =
          entry.mask == kWholePage || marked
              ? 0.0F
              : unselected_share(logits.at(candidate, head), shares.log_norm[head], entry.mask);
    }
    shares.share[entry.page] = combine(config.combine, shares, heads, entry.page);
  }
  float* const combined = shares.share.data() + always.sink_pages;
  for (int i = 0; i < pages; ++i) combined[i] = combined[i] < select::kInfinity ? combined[i] : 0.0F;
  for (int head = 0; head < heads; ++head) {
    float* const own = shares.head_share.at(head, always.sink_pages);
    for (int i = 0; i < pages; ++i) own[i] = own[i] < select::kInfinity ? own[i] : 0.0F;
    const float skipped = select::reduce(pages, 0.0F, [own](int i) { return own[i]; }, [](float a, float b) { return a + b; });
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
  int entries = 0;
  std::size_t next = 0;
  for (std::int32_t page = always.sink_pages; taken < count; ++page) {
    while (next < selected.size() && selected[next].page < page) ++next;
    if (!threshold.takes(share[page])) continue;
    ++taken;
    const bool partly = next < selected.size() && selected[next].page == page;
    if (share[page] > 0.0F) {
      completed[entries++] = {page, static_cast<std::uint16_t>(partly ? ~selected[next].mask : kWholePage)};
    }
  }
  return entries;
}

}  // namespace locks
