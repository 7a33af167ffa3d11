#include "locks/select.h"

#include <algorithm>

#include "cpu/check.h"
#include "select/counts.h"

namespace locks {

void check_select_config(const SelectConfig& config) {
  const auto require = [](bool fits, std::string_view setting, const std::string& expected, const std::string& got) {
    if (!fits) check::fail(setting, expected, got);
  };
  constexpr int kMost = 1 << 30;  // sums of two settings stay in an int
  require(config.sink_tokens >= 0 && config.sink_tokens < kMost, "sink_tokens", "0 or more",
          std::to_string(config.sink_tokens));
  require(config.recent_tokens >= 0 && config.recent_tokens < kMost, "recent_tokens", "0 or more",
          std::to_string(config.recent_tokens));
  const int part = config.part_tokens;
  require(part == 1 || part == 2 || part == 4 || part == 8 || part == kPageTokens, "part_tokens", "1, 2, 4, 8 or 16",
          std::to_string(part));
  require(config.candidate_factor >= 1.0F && config.candidate_factor <= 1e6F, "candidate_factor", "1 to 1000000",
          std::to_string(config.candidate_factor));
  require(config.completion_fraction >= 0.0F && config.completion_fraction <= 1.0F, "completion_fraction", "0 to 1",
          std::to_string(config.completion_fraction));
  require(config.combine <= GroupCombine::kPerQueryHead, "combine", "kSum, kMax or kPerQueryHead",
          std::to_string(static_cast<int>(config.combine)));
  const std::int64_t sink = std::int64_t{pages_for(config.sink_tokens)} * kPageTokens;
  const std::int64_t least = sink + config.recent_tokens + 2 * kPageTokens;
  require(config.budget_tokens >= least, "budget_tokens",
          "at least " + std::to_string(least) + " (" + std::to_string(sink) + " sink and " +
              std::to_string(config.recent_tokens) + " recent tokens are always attended, a page more while one is being " +
              "filled, and a page must be left to select)",
          std::to_string(config.budget_tokens));
}

SelectLimits select_limits(const SelectConfig& config, int max_context_tokens) noexcept {
  SelectLimits limits;
  // What is always attended depends on the context only through its last page, once the context exceeds the budget.
  for (int less = 0; less < kPageTokens && less <= max_context_tokens; ++less) {
    const AlwaysAttended always = always_attended(config, max_context_tokens - less);
    limits.completed_pages = std::max(limits.completed_pages, select::completed_pages(config, always));
    limits.candidate_pages = std::max(limits.candidate_pages, select::candidate_pages(config, always));
  }
  return limits;
}

}  // namespace locks
