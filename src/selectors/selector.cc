// What selectors there are, and their settings.
#include "locks/selector.h"

#include <array>
#include <stdexcept>
#include <string>

#include "cpu/check.h"
#include "selectors/support.h"

namespace locks {
namespace {

constexpr std::array kInfos{
    SelectorInfo{SelectorId::kOracle, "oracle"},
    SelectorInfo{SelectorId::kRandom, "random"},
    SelectorInfo{SelectorId::kRecency, "recency"},
    SelectorInfo{SelectorId::kQuest, "quest"},
    SelectorInfo{SelectorId::kUnique, "unique"},
    SelectorInfo{SelectorId::kCompkv, "compkv"},
    SelectorInfo{SelectorId::kRocketKv, "rocketkv"},
    SelectorInfo{SelectorId::kShadowKv, "shadowkv"},
    SelectorInfo{SelectorId::kSharedBasis, "shared_basis"},
    SelectorInfo{SelectorId::kTwoBit, "two_bit"},
};

void require(bool fits, std::string_view setting, const std::string& expected, const std::string& got) {
  if (!fits) check::fail(setting, expected, got);
}

}  // namespace

std::span<const SelectorInfo> selector_infos() noexcept { return kInfos; }

SelectorConfig selector_config(std::string_view name) {
  std::string known;
  for (const SelectorInfo& info : kInfos) {
    if (info.name != name) {
      known += (known.empty() ? "" : ", ") + std::string(info.name);
      continue;
    }
    SelectorConfig config;
    config.id = info.id;
    if (info.id == SelectorId::kQuest || info.id == SelectorId::kUnique) {
      config.budget_tokens = 2048;
      config.sink_tokens = 0;
      config.recent_tokens = 0;
      config.combine = GroupCombine::kPerQueryHead;
      config.dense_layers = 2;
    }
    if (info.id == SelectorId::kRecency) config.recent_tokens = 0;
    if (info.id == SelectorId::kShadowKv) config.budget_tokens = 2048;
    if (info.id == SelectorId::kRocketKv || info.id == SelectorId::kShadowKv) {
      config.sink_tokens = 0;
      config.recent_tokens = 0;
    }
    if (info.id == SelectorId::kCompkv) config.recent_tokens = 2 * kPageTokens;
    return config;
  }
  throw std::invalid_argument("selector '" + std::string(name) + "' is unknown; it may be " + known);
}

void check_selector_config(const SelectorConfig& config) {
  const bool knows_keys =
      config.id == SelectorId::kOracle || config.id == SelectorId::kSharedBasis || config.id == SelectorId::kTwoBit;
  const bool page_scores = config.id == SelectorId::kQuest || config.id == SelectorId::kUnique;
  constexpr int kMost = 1000000000;
  require(config.sink_tokens >= 0 && config.sink_tokens <= kMost, "sink_tokens", "0 to 1000000000",
          std::to_string(config.sink_tokens));
  require(config.recent_tokens >= 0 && config.recent_tokens <= kMost, "recent_tokens", "0 to 1000000000",
          std::to_string(config.recent_tokens));
  require(config.dense_layers >= 0, "dense_layers", "at least 0", std::to_string(config.dense_layers));
  const int part = config.part_tokens;
  require(part == 1 || part == 2 || part == 4 || part == 8 || part == kPageTokens, "part_tokens", "1, 2, 4, 8 or 16",
          std::to_string(part));
  require(part == kPageTokens || knows_keys || config.id == SelectorId::kRandom, "part_tokens",
          "16: this selector takes whole pages", std::to_string(part));
  require(config.combine <= GroupCombine::kPerQueryHead, "combine", "kSum, kMax or kPerQueryHead",
          std::to_string(static_cast<int>(config.combine)));
  require(config.combine == GroupCombine::kSum || page_scores || knows_keys, "combine",
          "kSum: this selector has one list for a KV head", std::to_string(static_cast<int>(config.combine)));
  require(config.deviation_weight >= 0.0F && config.deviation_weight <= 1e6F, "deviation_weight", "0 to 1000000",
          std::to_string(config.deviation_weight));
  require(config.rank >= 1 && config.rank <= kMost, "rank", "1 to 1000000000", std::to_string(config.rank));
  require(config.outlier_chunks >= 0 && config.outlier_chunks <= kMost, "outlier_chunks", "0 to 1000000000",
          std::to_string(config.outlier_chunks));
  require(config.rope.base > 1.0 && config.rope.base <= 1e12, "rope.base", "a number above 1, up to 1e12",
          std::to_string(config.rope.base));
  require(config.rope.dims >= 0 && config.rope.dims % 2 == 0, "rope.dims", "an even number, or 0 for all",
          std::to_string(config.rope.dims));
  require(config.variance_groups >= 1 && config.variance_groups <= 32, "variance_groups", "1 to 32",
          std::to_string(config.variance_groups));
  require(config.new_tokens >= 0 && config.new_tokens <= kMost, "new_tokens", "0 to 1000000000",
          std::to_string(config.new_tokens));
  if (page_scores || config.id == SelectorId::kRocketKv || config.id == SelectorId::kShadowKv) {
    require(config.sink_tokens == 0 && config.recent_tokens == 0, "sink_tokens and recent_tokens",
            "0: what this selector forces is not theirs to set",
            std::to_string(config.sink_tokens) + " and " + std::to_string(config.recent_tokens));
  }
  if (config.id == SelectorId::kRecency) {
    require(config.recent_tokens == 0, "recent_tokens", "0: all of the budget but the sink is recent tokens",
            std::to_string(config.recent_tokens));
  }
  if (config.id == SelectorId::kCompkv) {
    require(config.recent_tokens == 2 * kPageTokens, "recent_tokens", "32: this selector forces the last two pages",
            std::to_string(config.recent_tokens));
  }
  // Forced tokens, a page that is being filled, and a page to choose.
  const std::int64_t least =
      std::int64_t{pages_for(config.sink_tokens)} * kPageTokens + config.recent_tokens + 2 * kPageTokens;
  require(config.budget_tokens >= least && config.budget_tokens <= kMost, "budget_tokens",
          "at least " + std::to_string(least) + " (forced tokens, and a page to choose)",
          std::to_string(config.budget_tokens));
}

std::unique_ptr<Selector> make_selector(const SelectorConfig& config, const Geometry& geometry) {
  check_selector_config(config);
  check::geometry(geometry);
  require(config.rope.dims <= geometry.head_dim, "rope.dims", "at most head_dim = " + std::to_string(geometry.head_dim),
          std::to_string(config.rope.dims));
  switch (config.id) {
    case SelectorId::kOracle:
      return selectors::make_oracle(config, geometry);
    case SelectorId::kRandom:
      return selectors::make_random(config, geometry);
    case SelectorId::kRecency:
      return selectors::make_recency(config, geometry);
    case SelectorId::kQuest:
      return selectors::make_quest(config, geometry);
    case SelectorId::kUnique:
      return selectors::make_unique_selector(config, geometry);
    case SelectorId::kCompkv:
      return selectors::make_compkv(config, geometry);
    case SelectorId::kRocketKv:
      return selectors::make_rocketkv(config, geometry);
    case SelectorId::kShadowKv:
      return selectors::make_shadowkv(config, geometry);
    case SelectorId::kSharedBasis:
      return selectors::make_shared_basis(config, geometry);
    case SelectorId::kTwoBit:
      return selectors::make_two_bit(config, geometry);
  }
  check::fail("id", "one of the library's selectors", std::to_string(static_cast<int>(config.id)));
}

}  // namespace locks
