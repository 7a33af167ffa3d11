#include "locks/decode.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpu/check.h"
#include "decode/buffers.h"

namespace locks {
namespace {

void at_least(std::string_view setting, std::int64_t value, std::int64_t least) {
  if (value < least) check::fail(setting, "at least " + std::to_string(least), std::to_string(value));
}

void at_most(const std::string& what, std::int64_t value, std::int64_t most, std::string_view limit) {
  if (value > most) check::fail(what, "at most " + std::string(limit) + " = " + std::to_string(most), std::to_string(value));
}

void check_values(const DecodePlan& plan, const SummaryStore& summaries) {
  if (!(plan.config().select.completion_fraction > 0.0F)) return;
  const std::string needed =
      "the value part, for completion_fraction = " + std::to_string(plan.config().select.completion_fraction);
  if (summaries.value_data == nullptr && summaries.num_pages > 0)
    check::fail("summaries.value_data", needed, "a null pointer");
  const int record = value_layout(*summaries.format, summaries.head_dim).record_bytes;
  if (summaries.num_pages > 1) at_least("summaries.value_page_stride", summaries.value_page_stride, record);
  if (plan.geometry().kv_heads > 1) at_least("summaries.value_head_stride", summaries.value_head_stride, record);
}

}  // namespace

DecodeConfig DecodeConfig::paper() noexcept {
  DecodeConfig config;
  config.format = &kPaper;
  config.select.budget_tokens = 2048;
  config.select.part_tokens = kPageTokens;
  config.select.completion_fraction = 0.0F;
  return config;
}

DecodePlan::DecodePlan(const DecodeConfig& config, const Geometry& geometry, const DecodeLimits& limits)
    : config_(config), geometry_(geometry), limits_(limits) {
  if (config.format == nullptr) check::fail("format", "a summary format", "a null pointer");
  check::geometry(geometry);
  check_select_config(config.select);
  at_least("min_context_tokens", config.min_context_tokens, 0);
  at_least("max_requests", limits.max_requests, 1);
  at_least("max_context_tokens", limits.max_context_tokens, 1);
  at_least("max_threads", limits.max_threads, 1);
  workspace_bytes_ = decode::buffers_bytes(*this);
}

void check_decode(const DecodePlan& plan, const DecodeInputs& inputs, bool check_tables) {
  const Geometry& geometry = plan.geometry();
  const PageTable& table = inputs.table;
  at_most("table.context_tokens.size()", table.num_requests(), plan.limits().max_requests, "max_requests");
  check::cpu_cache("keys", inputs.keys, geometry.head_dim, geometry.kv_heads);
  check::cpu_cache("values", inputs.values, geometry.head_dim, geometry.kv_heads);
  for (const auto& [name, tokens] : {std::pair{"keys.block_tokens", inputs.keys.block_tokens},
                                     std::pair{"values.block_tokens", inputs.values.block_tokens}}) {
    if (tokens != table.block_tokens) {
      check::fail(name, "table.block_tokens = " + std::to_string(table.block_tokens), std::to_string(tokens));
    }
  }
  check::table(table, std::min(inputs.keys.num_pages, inputs.values.num_pages), check_tables);
  if (table.num_requests() > 0) {
    check::view("queries", inputs.queries, {table.num_requests(), geometry.query_heads, geometry.head_dim},
                "[requests, query_heads, head_dim]");
  }
  bool selects = false;
  for (int request = 0; request < table.num_requests(); ++request) {
    const int tokens = table.context_tokens[request];
    at_most("table.context_tokens[" + std::to_string(request) + "]", tokens, plan.limits().max_context_tokens,
            "max_context_tokens");
    selects = selects || !decode::always_of(plan, tokens).everything;
  }
  if (!selects) return;  // no summary is read
  check::store("summaries", inputs.summaries, geometry.head_dim, geometry.kv_heads);
  if (inputs.summaries.format->id != plan.config().format->id) {
    check::fail("summaries.format", std::string(plan.config().format->name) + " as planned",
                std::string(inputs.summaries.format->name));
  }
  at_least("summaries.num_pages", inputs.summaries.num_pages, inputs.keys.num_pages);
  check_values(plan, inputs.summaries);
}

}  // namespace locks
