#include <algorithm>

#include "locks/select.h"
#include "select/counts.h"
#include "select/kernels.h"
#include "select/largest.h"

namespace locks {

int select_pages(const SelectConfig& config, const AlwaysAttended& always, const ListScores& scores,
                 const ListShares& shares, std::span<std::int32_t> order_scratch, std::span<std::int32_t> candidates,
                 Target target) noexcept {
  const select::Kernels& kernels = select::kernels(target);
  const int pages = always.selectable_pages();
  float* const combined = shares.share.data() + always.sink_pages;
  for (std::size_t head = 0; head < scores.always_log_mass.size(); ++head) {
    float* const own = shares.head_share.at(head, always.sink_pages);
    const select::WholeMass whole = kernels.head_shares(
        {scores.log_mass.at(head, always.sink_pages), scores.always_log_mass[head], pages, own, order_scratch.data()});
    shares.log_norm[head] = whole.log_norm;
    shares.selectable[head] = whole.block_share;
    if (head == 0) {
      std::copy_n(own, pages, combined);
    } else {
      kernels.combine(own, pages, config.combine == GroupCombine::kMax, combined);
    }
  }
  const int count = std::min(select::candidate_pages(config, always), static_cast<int>(candidates.size()));
  if (count == 0) return 0;
  select::Threshold threshold = select::largest({combined, static_cast<std::size_t>(pages)}, count, order_scratch);
  int taken = 0;
  for (int i = 0; taken < count; ++i) {
    candidates[taken] = always.sink_pages + i;  // without a branch: which entries pass cannot be predicted
    taken += threshold.takes(combined[i]) ? 1 : 0;
  }
  return taken;
}

}  // namespace locks
