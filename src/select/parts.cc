#include <algorithm>

#include "locks/select.h"
#include "select/counts.h"
#include "select/kernels.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {

int select_parts(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 View<const float, 3> logits, const ListShares& shares, std::span<float> part_shares,
                 std::span<std::int32_t> order_scratch, std::span<SelectedPage> selected, Target target) noexcept {
  if (candidates.empty()) return 0;
  if (config.part_tokens == kPageTokens) {
    for (std::size_t i = 0; i < candidates.size(); ++i) selected[i] = {candidates[i], kWholePage};
    return static_cast<int>(candidates.size());
  }
  const select::Kernels& kernels = select::kernels(target);
  const int num_parts = kPageTokens / config.part_tokens;
  const auto all = part_shares.first(candidates.size() * num_parts);
  kernels.part_shares({logits.data, logits.stride[0], logits.stride[1], static_cast<int>(candidates.size()), shares.log_norm,
                       config.part_tokens, config.combine == GroupCombine::kMax},
                      all.data(), part_shares.data() + all.size());
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (shares.share[candidates[i]] == select::kInfinity) std::fill_n(&all[i * num_parts], num_parts, select::kInfinity);
  }
  const int count = std::min(select::remaining_tokens(config, always) / config.part_tokens, static_cast<int>(all.size()));
  select::Threshold threshold = select::largest(all, count, order_scratch);
  const unsigned part_mask = (1U << config.part_tokens) - 1U;
  int entries = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    unsigned mask = 0;
    for (int part = 0; part < num_parts; ++part) {
      if (threshold.takes(all[i * num_parts + part])) mask |= part_mask << (part * config.part_tokens);
    }
    if (mask != 0) selected[entries++] = {candidates[i], static_cast<std::uint16_t>(mask)};
  }
  return entries;
}

}  // namespace locks
