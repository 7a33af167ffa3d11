// Decode steps by Quest or the oracle on the GPU: LOCKS's, with another scorer.
#include <algorithm>
#include <string>

#include "cuda/door.h"
#include "decode/step_cuda.h"
#include "selectors/kernels_cuda.h"

namespace locks::cuda {
namespace {

bool is_quest(const SelectorConfig& config) noexcept { return config.id == SelectorId::kQuest; }

/// The same rules as settings of LOCKS's.
DecodeConfig step_config(const SelectorConfig& config, int min_context_tokens) {
  check_selector_config(config);
  DecodeConfig step;
  step.min_context_tokens = min_context_tokens;
  SelectConfig& select = step.select;
  select.part_tokens = config.part_tokens;
  select.combine = config.combine;
  select.completion_fraction = 0.0F;
  if (is_quest(config)) {
    // The page of the last token is attended, full or not, and counts as one of the budget's pages.
    constexpr int kFewestPages = 3;
    door::require(config.budget_tokens >= kFewestPages * kPageTokens, "budget_tokens", "at least 48 (quest on the GPU)",
                  std::to_string(config.budget_tokens));
    select.budget_tokens = config.budget_tokens / kPageTokens * kPageTokens;
    select.sink_tokens = 0;
    select.recent_tokens = 1;
    step.min_context_tokens = std::max(min_context_tokens, config.budget_tokens + 1);
    return step;
  }
  door::require(config.id == SelectorId::kOracle, "id", "quest or oracle (on the GPU)",
                "selector " + std::to_string(static_cast<int>(config.id)));
  constexpr float kEveryPage = 1e6F;  // is a candidate
  select.budget_tokens = config.budget_tokens;
  select.sink_tokens = config.sink_tokens;
  select.recent_tokens = config.recent_tokens;
  select.candidate_factor = kEveryPage;
  return step;
}

rivals::ScoredPages in_step(const DecodePlan& plan) noexcept {
  return {true, {plan.config().select, plan.config().min_context_tokens}};
}

class QuestScorer final : public PageScorer {
 public:
  QuestScorer(const SelectorPlan& plan, const DecodeInputs& inputs, const PageBounds& bounds)
      : plan_(plan), inputs_(inputs), bounds_(bounds) {
    ranks = true;
    page_bytes = 2 * row_bytes(bounds.dtype, bounds.head_dim);
  }
  void score(View<float, 3> scores, View<float, 5> /*logits*/, Stream stream) const override {
    rivals::score_bounds({plan_.step().geometry(), inputs_.queries, bounds_, inputs_.keys.scale, inputs_.table,
                          plan_.config().combine, scores},
                         in_step(plan_.step()), stream);
  }

 private:
  const SelectorPlan& plan_;
  const DecodeInputs& inputs_;
  const PageBounds& bounds_;
};

class OracleScorer final : public PageScorer {
 public:
  OracleScorer(const SelectorPlan& plan, const DecodeInputs& inputs) : plan_(plan), inputs_(inputs) {
    page_bytes = kPageTokens * row_bytes(inputs.keys.dtype, plan.step().geometry().head_dim);
  }
  void score(View<float, 3> log_mass, View<float, 5> logits, Stream stream) const override {
    const SelectConfig& select = plan_.step().config().select;
    if (select.part_tokens == kPageTokens) logits = {};
    rivals::key_masses({plan_.step().geometry(), inputs_.queries, inputs_.keys, inputs_.table, log_mass, logits,
                        pages_for(select.sink_tokens)},
                       in_step(plan_.step()), stream);
  }

 private:
  const SelectorPlan& plan_;
  const DecodeInputs& inputs_;
};

}  // namespace

SelectorPlan::SelectorPlan(const SelectorConfig& config, const Geometry& geometry, const DecodeLimits& limits,
                           int min_context_tokens)
    : config_(config), step_(step_config(config, min_context_tokens), geometry, limits) {}

std::size_t decode_workspace_bytes(const SelectorPlan& plan) noexcept { return decode_workspace_bytes(plan.step()); }

void run(const SelectorPlan& plan, const DecodeInputs& inputs, const PageBounds& bounds, const HeadRows& out,
         std::span<DecodeReport> reports, std::span<std::byte> workspace, Stream stream) {
  if (!is_quest(plan.config())) return run(plan.step(), inputs, OracleScorer(plan, inputs), out, reports, workspace, stream);
  rivals::check_bounds("bounds", bounds, plan.step().geometry().head_dim, plan.step().geometry().kv_heads);
  door::require(bounds.dtype == inputs.keys.dtype, "bounds.dtype",
                "that of the keys (" + std::string(dtype_name(inputs.keys.dtype)) + ")",
                std::string(dtype_name(bounds.dtype)));
  door::require(bounds.num_pages >= inputs.keys.num_pages, "bounds.num_pages",
                "at least " + std::to_string(inputs.keys.num_pages) + ", the cache's", std::to_string(bounds.num_pages));
  run(plan.step(), inputs, QuestScorer(plan, inputs, bounds), out, reports, workspace, stream);
}

}  // namespace locks::cuda
