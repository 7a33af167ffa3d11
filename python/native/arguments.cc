#include "arguments.h"

#include <algorithm>
#include <cmath>

namespace locks::python {

const SummaryFormat& format_of(nb::handle value) {
  const SummaryFormat* out = nullptr;
  with_our_names([&] { out = &find_format(cast<std::string>(value, "format", "a string")); });
  return *out;
}

int head_dim_of(nb::handle value) {
  const int out = integer(value, "head_dim", 1, kMaxHeadDim);
  if (!is_supported_head_dim(out)) fail("head_dim", "64, 80, 96, 128, 192 or 256", std::to_string(out));
  return out;
}

float scale_of(nb::handle value) {
  const auto out = cast<float>(value, "softmax_scale", "a number");
  if (!(out > 0.0F && std::isfinite(out))) fail("softmax_scale", "more than 0, and finite", std::to_string(out));
  return out;
}

DecodeConfig decode_config(nb::handle config) {
  const auto tokens = [&](const char* name) { return integer(config.attr(name), name, 0, (1 << 30) - 1); };
  const auto number = [&](const char* name) { return cast<float>(config.attr(name), name, "a number"); };
  DecodeConfig out;
  out.format = &format_of(config.attr("format"));
  out.select = {tokens("budget_tokens"),    tokens("sink_tokens"),         tokens("recent_tokens"), tokens("part_tokens"),
                number("candidate_factor"), number("completion_fraction"), GroupCombine::kSum};
  out.min_context_tokens = tokens("min_context_tokens");
  const auto combine = cast<std::string>(config.attr("combine"), "combine", "a string");
  const auto found = std::find(kCombines.begin(), kCombines.end(), combine);
  if (found == kCombines.end()) fail("combine", "'sum', 'max' or 'per_query_head'", "'" + combine + "'");
  out.select.combine = static_cast<GroupCombine>(found - kCombines.begin());
  check_select_config(out.select);
  return out;
}

DecodePlan decode_plan(nb::handle config, nb::handle query_heads, nb::handle kv_heads, nb::handle head_dim,
                       nb::handle softmax_scale, nb::handle max_requests, nb::handle max_context_tokens, int threads) {
  return {decode_config(config),
          {head_dim_of(head_dim), integer(kv_heads, "kv_heads", 1, kMostHeads),
           integer(query_heads, "query_heads", 1, kMostHeads), scale_of(softmax_scale)},
          {integer(max_requests, "max_requests", 1, kMostRequests),
           integer(max_context_tokens, "max_context_tokens", 1, kMostContextTokens), threads}};
}

Array head_rows(nb::handle object, const char* argument, const char* rows, const std::vector<std::int64_t>& shape,
                Access access, Memory memory) {
  return array(object, argument, {Element::kFloat32}, "[" + std::string(rows) + ", query_heads, head_dim]", shape, access,
               memory);
}

std::int64_t page_bytes(nb::handle format, nb::handle head_dim, nb::handle kv_heads, nb::handle values,
                        SummaryRows::Bytes* bytes) {
  return bytes(format_of(format), head_dim_of(head_dim), integer(kv_heads, "kv_heads", 1, kMostHeads), 1,
               cast<bool>(values, "values", "True or False"));
}

SummaryRows::SummaryRows(nb::handle object, nb::handle format, nb::handle head_dim, nb::handle heads, nb::handle values,
                         Bytes* bytes, Layout* layout, Memory where)
    : kv_heads(integer(heads, "kv_heads", 1, kMostHeads)) {
  const std::int64_t row_bytes = page_bytes(format, head_dim, heads, values, bytes);
  memory = array(object, "memory", {Element::kUInt8}, "[pages, page_bytes or more]", {-1, -1}, Access::kWrite, where);
  if (memory.shape[1] < row_bytes)
    fail("memory", std::to_string(row_bytes) + " bytes a page", std::to_string(memory.shape[1]));
  if (memory.stride[0] < 0) fail("memory", "ascending pages", "a stride of " + std::to_string(memory.stride[0]));
  store = layout(format_of(format), head_dim_of(head_dim), kv_heads, memory.shape[0], nb::cast<bool>(values), memory.data);
  if (store.value_data != nullptr) store.value_data = memory.data + store.page_stride;
  store.page_stride = store.value_page_stride = memory.stride[0];
}

void check_planned(const DecodePlan& plan, const SummaryRows& summaries) {
  const auto text = [](const SummaryFormat* format, int head_dim, int kv_heads, bool values) {
    return std::string(format->name) + ", head_dim " + std::to_string(head_dim) + ", kv_heads " + std::to_string(kv_heads) +
           (values ? ", with values" : "");
  };
  const bool completes = plan.config().select.completion_fraction > 0.0F;
  const std::string expected = text(plan.config().format, plan.geometry().head_dim, plan.geometry().kv_heads, completes);
  const SummaryStore& store = summaries.store;
  const std::string got = text(store.format, store.head_dim, summaries.kv_heads, completes && store.value_data != nullptr);
  if (got != expected) fail("summaries", expected, got);
}

}  // namespace locks::python
