#include <algorithm>
#include <cmath>

#include "locks/select.h"
#include "select/counts.h"
#include "select/largest.h"
#include "select/share.h"

namespace locks {
namespace {

using select::kInfinity;
using select::reduce;
using select::share_exp;

float larger(float a, float b) noexcept { return a > b ? a : b; }
float sum(float a, float b) noexcept { return a + b; }
/// What has no finite mass takes no part in a head's norm.
float mass_or_none(float log_mass) noexcept { return log_mass < kInfinity ? log_mass : -kInfinity; }

/// shares[i] = exp(log_mass[i]) / whole mass, +infinity where log_mass is. Returns the logarithm of the whole mass.
float share_of_head(const float* log_mass, float always_log_mass, int pages, float* shares) noexcept {
  const float always = always_log_mass >= -kInfinity ? always_log_mass : -kInfinity;
  const float peak = std::max(always, reduce(pages, -kInfinity, [=](int i) { return mass_or_none(log_mass[i]); }, larger));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  for (int i = 0; i < pages; ++i) {
    const float value = log_mass[i];
    const float mass = share_exp(mass_or_none(value) - origin);
    shares[i] = value == kInfinity ? kInfinity : mass;
  }
  const float whole = share_exp(always - origin) +
                      reduce(pages, 0.0F, [=](int i) { return shares[i] < kInfinity ? shares[i] : 0.0F; }, sum);
  if (!(whole > 0.0F)) return kInfinity;
  const float scale = 1.0F / whole;
  for (int i = 0; i < pages; ++i) shares[i] *= scale;
  return origin + std::log(whole);
}

}  // namespace

int select_pages(const SelectConfig& config, const AlwaysAttended& always, const ListScores& scores,
                 const ListShares& shares, std::span<std::int32_t> order_scratch,
                 std::span<std::int32_t> candidates) noexcept {
  const int pages = always.selectable_pages();
  const auto heads = static_cast<int>(scores.always_log_mass.size());
  const bool by_maximum = config.combine == GroupCombine::kMax;
  float* const combined = shares.share.data() + always.sink_pages;
  for (int head = 0; head < heads; ++head) {
    float* const own = shares.head_share.at(head, always.sink_pages);
    shares.log_norm[head] =
        share_of_head(scores.log_mass.at(head, always.sink_pages), scores.always_log_mass[head], pages, own);
    if (head == 0) {
      std::copy_n(own, pages, combined);
    } else if (by_maximum) {
      for (int i = 0; i < pages; ++i) combined[i] = larger(own[i], combined[i]);
    } else {
      for (int i = 0; i < pages; ++i) combined[i] += own[i];
    }
  }
  const int count = std::min(select::candidate_pages(config, always), static_cast<int>(candidates.size()));
  if (count == 0) return 0;
  const std::span<const float> all(combined, static_cast<std::size_t>(pages));
  select::Threshold threshold = select::largest(all, count, order_scratch);
  int taken = 0;
  for (int i = 0; taken < count; ++i) {
    if (threshold.takes(combined[i])) candidates[taken++] = always.sink_pages + i;
  }
  return taken;
}

}  // namespace locks
