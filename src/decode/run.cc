// The phases of a step, each a share of work for every thread and then a barrier:
//   A  quantise the queries, list what is always attended
//   B  score the pages, attend what is always attended
//   C  for every list, choose the candidate pages
//   D  score the candidates' tokens (not with whole pages)
//   E  for every list, choose what is attended and what is completed
//   F  attend it, complete it
//   G  merge, and divide by the sum of weights
#include <algorithm>
#include <limits>

#include "decode/step.h"

namespace locks {
namespace {

using decode::Step;

void list_always(const Step& step, int request) noexcept {
  const decode::Buffers& buffers = step.buffers;
  const AlwaysAttended always = step.always(request);
  int entries = 0;
  const auto add = [&](int page, std::uint16_t mask) { buffers.always_lists(request, entries++) = {page, mask}; };
  for (int page = 0; page < always.sink_pages; ++page) add(page, kWholePage);
  for (int page = always.first_recent_page; page < always.filled_pages; ++page) add(page, kWholePage);
  if (always.tail_tokens > 0) add(always.filled_pages, static_cast<std::uint16_t>((1U << always.tail_tokens) - 1U));
  buffers.num_always[request] = entries;
  buffers.scored_tokens[request] = always.everything ? 0 : always.first_recent_page * kPageTokens;
}

/// The states of one KV head's query heads, holding what is always attended.
void begin_states(const Step& step, int request, int kv_head) noexcept {
  const SoftmaxStates& states = step.buffers.states;
  const int group = step.geometry().group_size();
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::fill_n(states.at(request, head), states.shape[2], 0.0F);
    states(request, head, 0) = -std::numeric_limits<float>::infinity();
  }
  merge_partials(step.always_args(), request, kv_head, step.team.count, states);
}

/// Calls work(list) for the lists of one KV head; a request that is attended whole has none.
template <class Work>
void for_each_list(const Step& step, int request, int kv_head, const Work& work) {
  if (step.always(request).everything) return;
  const int lists = step.num_lists / step.geometry().kv_heads;
  for (int list = kv_head * lists; list < (kv_head + 1) * lists; ++list) work(list);
}

void finish_heads(const Step& step, int request, int kv_head, const View<float, 3>& out) noexcept {
  const int group = step.geometry().group_size();
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    finish(step.buffers.states, request, head, {out.at(request, head), static_cast<std::size_t>(step.geometry().head_dim)});
  }
}

/// A request that is attended whole has nothing in its lists.
void clear_lists(const Step& step, int request) noexcept {
  if (!step.always(request).everything) return;
  for (int list = 0; list < step.num_lists; ++list) {
    step.buffers.num_candidates(request, list) = 0;
    step.buffers.num_selected(request, list) = 0;
    step.buffers.totals(request, list) = {};
  }
}

DecodeReport report(const Step& step, int request) noexcept {
  const Geometry& geometry = step.geometry();
  const DecodeInputs& inputs = step.inputs;
  const AlwaysAttended always = step.always(request);
  const std::int64_t token_bytes =
      row_bytes(inputs.keys.dtype, geometry.head_dim) + row_bytes(inputs.values.dtype, geometry.head_dim);
  DecodeReport out;
  out.context_tokens = inputs.table.context_tokens[request];
  out.dense = always.everything;
  out.attended_tokens = static_cast<float>(always.tokens);
  out.dense_bytes = token_bytes * geometry.kv_heads * out.context_tokens;
  out.attend_bytes = token_bytes * geometry.kv_heads * always.tokens;
  if (always.everything) return out;
  std::int64_t tokens = 0;
  std::int64_t completed = 0;
  float coverage = 0.0F;
  for (int list = 0; list < step.num_lists; ++list) {
    const decode::ListTotals& totals = step.buffers.totals(request, list);
    tokens += totals.selected_tokens;
    completed += totals.completed_pages;
    coverage += totals.coverage;
  }
  const auto lists = static_cast<float>(step.num_lists);
  out.attended_tokens += static_cast<float>(tokens) / lists;
  out.completed_pages = static_cast<float>(completed) / lists;
  out.coverage = coverage / static_cast<float>(geometry.query_heads);
  out.attend_bytes += token_bytes * tokens;
  // Records that are read again for parts and completion come from the caches and do not count twice.
  const SummaryFormat& format = *inputs.summaries.format;
  out.score_bytes =
      std::int64_t{always.first_recent_page} * geometry.kv_heads * record_layout(format, geometry.head_dim).record_bytes;
  out.complete_bytes = completed * value_layout(format, geometry.head_dim).record_bytes;
  return out;
}

float coverage_of(const Step& step, int request, int kv_head) noexcept {
  if (step.always(request).everything) return 1.0F;
  float sum = 0.0F;
  for_each_list(step, request, kv_head, [&](int list) { sum += step.buffers.totals(request, list).coverage; });
  return sum / static_cast<float>(step.geometry().group_size());
}

/// Phases A to E, and F but for its barrier.
void select_and_attend(const Step& step) {
  const int kv_heads = step.geometry().kv_heads;
  step.for_each(1, [&](int request, int) {
    list_always(step, request);
    clear_lists(step, request);
  });
  prepare_queries(step.score_args(), step.team, step.target);
  step.team.sync();
  score(step.score_args(), step.team, step.target);
  attend(step.always_args(), step.team, step.target);
  step.team.sync();
  step.for_each(kv_heads, [&](int request, int kv_head) {
    begin_states(step, request, kv_head);
    for_each_list(step, request, kv_head, [&](int list) { decode::choose_candidates(step, request, list); });
  });
  step.team.sync();
  if (step.has_parts()) {
    decode::score_candidates(step);
    step.team.sync();
  }
  step.for_each(kv_heads, [&](int request, int kv_head) {
    for_each_list(step, request, kv_head, [&](int list) { decode::choose_tokens(step, request, list); });
  });
  step.team.sync();
  attend(step.selected_args(), step.team, step.target);
  decode::complete_heads(step);
}

}  // namespace

void run(const DecodePlan& plan, const DecodeInputs& inputs, View<float, 3> out, std::span<DecodeReport> reports,
         std::span<std::byte> workspace, Team team, Target target, View<float, 2> coverage) {
  const Step step(plan, inputs, workspace, team, target);
  const int kv_heads = step.geometry().kv_heads;
  if (step.selects) {
    select_and_attend(step);
  } else {
    attend(step.always_args(), team, target);
  }
  team.sync();
  step.for_each(kv_heads, [&](int request, int kv_head) {
    if (!step.selects) begin_states(step, request, kv_head);
    for_each_list(step, request, kv_head,
                  [&](int list) { merge_partials(step.selected_args(), request, list, team.count, step.buffers.states); });
    finish_heads(step, request, kv_head, out);
    if (coverage.data != nullptr) coverage(request, kv_head) = coverage_of(step, request, kv_head);
  });
  const auto [first, last] =
      team.share(std::min<std::int64_t>(static_cast<std::int64_t>(reports.size()), step.num_requests));
  for (auto request = static_cast<int>(first); request < last; ++request) reports[request] = report(step, request);
}

}  // namespace locks
