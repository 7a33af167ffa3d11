#include <algorithm>
#include <array>

#include "locks/select.h"
#include "select/counts.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

/// parts[i] = combined share of part i of one page. Sums run over the part's tokens, then over the heads.
void share_of_parts(const SelectConfig& config, const View<const float, 3>& logits, std::int64_t candidate,
                    std::span<const float> log_norm, float* parts) noexcept {
  const int num_parts = kPageTokens / config.part_tokens;
  for (std::size_t head = 0; head < log_norm.size(); ++head) {
    const float* const logit = logits.at(candidate, head);
    std::array<float, kPageTokens> mass;
    for (int token = 0; token < kPageTokens; ++token) mass[token] = select::share_exp(logit[token] - log_norm[head]);
    for (int part = 0; part < num_parts; ++part) {
      float own = mass[part * config.part_tokens];
      for (int i = 1; i < config.part_tokens; ++i) own += mass[part * config.part_tokens + i];
      if (head == 0) {
        parts[part] = own;
      } else if (config.combine == GroupCombine::kMax) {
        parts[part] = std::max(parts[part], own);
      } else {
        parts[part] += own;
      }
    }
  }
}

}  // namespace

int select_parts(const SelectConfig& config, const AlwaysAttended& always, std::span<const std::int32_t> candidates,
                 View<const float, 3> logits, const ListShares& shares, std::span<float> part_share_scratch,
                 std::span<std::int32_t> order_scratch, std::span<SelectedPage> selected) noexcept {
  if (candidates.empty()) return 0;
  if (config.part_tokens == kPageTokens) {
    for (std::size_t i = 0; i < candidates.size(); ++i) selected[i] = {candidates[i], kWholePage};
    return static_cast<int>(candidates.size());
  }
  const int num_parts = kPageTokens / config.part_tokens;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    float* const parts = &part_share_scratch[i * num_parts];
    if (shares.share[candidates[i]] == select::kInfinity) {
      std::fill_n(parts, num_parts, select::kInfinity);
    } else {
      share_of_parts(config, logits, static_cast<std::int64_t>(i), shares.log_norm, parts);
    }
  }
  const auto all = part_share_scratch.first(candidates.size() * num_parts);
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
