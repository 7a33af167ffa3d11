// One decode step on the GPU: the stages in a row, over one workspace.
#include <algorithm>
#include <string>

#include "cpu/check.h"
#include "cpu/cutter.h"
#include "cuda/rank.h"
#include "cuda/step.h"
#include "decode/always_cuda.h"
#include "decode/buffers.h"
#include "decode/report_cuda.h"
#include "decode/step_cuda.h"
#include "locks/cuda.h"

namespace locks::cuda {
namespace {

/// The workspace, cut for the plan's limits.
struct Buffers {
  SoftmaxStates states;
  std::span<std::byte> attend_workspace;
  std::span<std::byte> select_workspace;
  std::span<std::byte> completion_workspace;
  View<float, 3> log_mass;
  View<std::int32_t, 3> candidates;
  View<std::int32_t, 2> num_candidates;
  View<float, 5> logits;
  int always_entries = 0;          // in front of the selection
  View<SelectedPage, 3> attended;  // both
  View<std::int32_t, 2> num_attended;
  View<SelectedPage, 3> selected;
  View<std::int32_t, 2> num_selected;
  View<SelectedPage, 3> completed;
  View<std::int32_t, 2> num_completed;
  View<float, 2> skipped_log_mass;
  View<float, 2> coverage;
  std::size_t bytes = 0;
};

/// Whether any context that the plan allows is not attended whole.
bool selects(const DecodePlan& plan) noexcept {
  return !decode::always_of(plan, plan.limits().max_context_tokens).everything;
}

/// Tokens of the longest context that is attended whole.
int most_whole(const DecodePlan& plan) noexcept {
  return std::max(plan.config().select.budget_tokens, plan.config().min_context_tokens - 1);
}

/// What attention needs for any number of requests up to `most`: fewer rows are cut finer and may need more.
std::size_t attend_bytes(const Geometry& geometry, int most, int lists) noexcept {
  std::size_t bytes = 0;
  for (int requests = 1; requests <= most; ++requests) {
    bytes = std::max(bytes, attend_workspace_bytes(geometry, requests, lists));
  }
  return bytes;
}

Buffers cut(const DecodePlan& plan, std::byte* memory) noexcept {
  const Geometry& geometry = plan.geometry();
  const SelectConfig& select = plan.config().select;
  const int requests = plan.limits().max_requests;
  const int lists = num_lists(plan);
  const int context = plan.limits().max_context_tokens;
  Buffers out;
  Cutter cutter(memory);
  const auto take_bytes = [&](std::size_t bytes) {
    return std::span(cutter.take<std::byte>(static_cast<std::int64_t>(bytes)), bytes);
  };
  out.states = cutter.take_view<float>(requests, geometry.query_heads, 2 + geometry.head_dim);
  out.attend_workspace =
      take_bytes(std::max(attend_bytes(geometry, requests, geometry.kv_heads), attend_bytes(geometry, requests, lists)));
  if (selects(plan)) {
    const SelectLimits limits = select_limits(select, context);
    const int pages = context / kPageTokens;
    const bool parts = select.part_tokens < kPageTokens;
    out.select_workspace = take_bytes(select_workspace_bytes(select, geometry, requests, lists, context));
    out.completion_workspace = take_bytes(completion_workspace_bytes(geometry, requests, lists));
    // Rows in which the first selectable page is aligned to 64 bytes: the selection reads 16 pages at once.
    constexpr int kRow = 16;
    out.log_mass = cutter.take_view<float>(requests, geometry.query_heads, (pages + 2 * kRow - 1) / kRow * kRow);
    out.log_mass.data += (kRow - pages_for(select.sink_tokens) % kRow) % kRow;
    out.log_mass.shape[2] = pages;
    out.candidates = cutter.take_view<std::int32_t>(requests, lists, limits.candidate_pages);
    out.num_candidates = cutter.take_view<std::int32_t>(requests, lists);
    out.logits = cutter.take_view<float>(requests, lists, parts ? limits.candidate_pages : 0, geometry.query_heads / lists,
                                         kPageTokens);
    out.always_entries = select.budget_tokens / kPageTokens + 1;  // none for a context that is attended whole
    out.attended = cutter.take_view<SelectedPage>(requests, lists, out.always_entries + limits.candidate_pages);
    out.selected = out.attended;
    out.selected.data += out.always_entries;
    out.selected.shape[2] = limits.candidate_pages;
    out.num_attended = cutter.take_view<std::int32_t>(requests, lists);
    out.num_selected = cutter.take_view<std::int32_t>(requests, lists);
    out.completed = cutter.take_view<SelectedPage>(requests, lists, limits.completed_pages);
    out.num_completed = cutter.take_view<std::int32_t>(requests, lists);
    out.skipped_log_mass = cutter.take_view<float>(requests, geometry.query_heads);
    out.coverage = cutter.take_view<float>(requests, geometry.query_heads);
  }
  out.bytes = cutter.used();
  return out;
}

/// Of the plan's requests, those that this step has.
template <class T, int N>
View<T, N> first_requests(View<T, N> view, std::size_t requests) noexcept {
  view.shape[0] = static_cast<std::int64_t>(requests);
  return view;
}

void require(bool fits, const std::string& argument, const std::string& expected, const std::string& got) {
  if (!fits) check::fail(argument, expected, got);
}

/// What the stages do not check themselves: that the step fits the plan.
void check_step(const DecodePlan& plan, const DecodeInputs& inputs, const HeadRows& out,
                std::span<const DecodeReport> reports, std::size_t workspace_bytes, const Buffers& buffers,
                bool by_records) {
  const int requests = inputs.table.num_requests();
  require(requests <= plan.limits().max_requests, "table.context_tokens.size()",
          "at most max_requests = " + std::to_string(plan.limits().max_requests), std::to_string(requests));
  const Geometry& geometry = plan.geometry();
  check::view("queries", inputs.queries, {requests, geometry.query_heads, geometry.head_dim},
              "[requests, query_heads, head_dim]");
  check_out({requests, geometry.query_heads, geometry.head_dim}, out);
  require(reports.empty() || reports.size() >= static_cast<std::size_t>(requests), "reports",
          "none, or one for each of " + std::to_string(requests) + " requests", std::to_string(reports.size()));
  require(workspace_bytes >= buffers.bytes, "workspace", std::to_string(buffers.bytes) + " bytes",
          std::to_string(workspace_bytes));
  if (!selects(plan) || !by_records) return;
  const SummaryFormat* const format = inputs.summaries.format;
  require(format != nullptr && format->id == plan.config().format->id, "summaries.format",
          std::string(plan.config().format->name) + " as planned",
          format == nullptr ? "a null pointer" : std::string(format->name));
  require(!(plan.config().select.completion_fraction > 0.0F) || inputs.summaries.value_data != nullptr,
          "summaries.value_data", "the value part, for completion", "a null pointer");
}

class Step {
 public:
  /// `scorer`: null for LOCKS.
  Step(const DecodePlan& plan, const DecodeInputs& inputs, const Buffers& buffers, const PageScorer* scorer, Stream stream)
      : plan_(plan), inputs_(inputs), buffers_(buffers), scorer_(scorer), stream_(stream), lists_(num_lists(plan)) {}

  void attend_whole(const HeadRows& out) const {
    attend(attend_args(plan_.geometry().kv_heads, {}, {}), states(), false, out, stream_);
  }

  void select_and_attend(const HeadRows& out, bool wants_coverage) const {
    const DecodeConfig& config = plan_.config();
    const auto requests = inputs_.table.context_tokens.size();
    const AttendArgs attended =
        attend_args(lists_, first_requests(buffers_.attended, requests), first_requests(buffers_.num_attended, requests));
    check_attend(attended, states());
    score_pages();
    launch_always({config.select, config.min_context_tokens, plan_.geometry(), inputs_.queries, inputs_.keys, inputs_.table,
                   lists_, first_requests(buffers_.attended, requests), states()},
                  stream_);
    const SelectArgs select = select_args();
    const bool parts = config.select.part_tokens < kPageTokens;
    if (scorer_ != nullptr) {
      choose_scored(select, parts, wants_coverage);
      return attend_in_step(attended, most_whole(plan_), nullptr, states(), out, stream_);
    }
    const bool completes = buffers_.completed.shape[2] > 0;
    const bool wants_rest = completes || wants_coverage;
    select_pages_in_step(select, wants_rest, stream_);
    if (parts) {
      score_tokens_in_step({plan_.geometry(), inputs_.queries, inputs_.summaries, inputs_.table, lists_, select.candidates,
                            select.num_candidates, first_requests(buffers_.logits, requests)},
                           most_whole(plan_), stream_);
      select_tokens_in_step(select, wants_rest, stream_);
    }
    const CompletionArgs completion{plan_.geometry(),
                                    inputs_.queries,
                                    inputs_.summaries,
                                    inputs_.table,
                                    lists_,
                                    select.completed,
                                    select.num_completed,
                                    select.skipped_log_mass,
                                    buffers_.completion_workspace};
    attend_in_step(attended, most_whole(plan_), completes ? &completion : nullptr, states(), out, stream_);
  }

  void report(std::span<DecodeReport> reports, bool any_selects) const {
    const Geometry& geometry = plan_.geometry();
    ReportArgs args;
    args.select = plan_.config().select;
    args.min_context_tokens = plan_.config().min_context_tokens;
    args.context_tokens = inputs_.table.context_tokens;
    args.num_lists = lists_;
    args.kv_heads = geometry.kv_heads;
    args.selects = any_selects;
    args.selected = buffers_.selected;
    args.num_selected = buffers_.num_selected;
    args.num_completed = buffers_.num_completed;
    if (scorer_ == nullptr || !scorer_->ranks) args.coverage = buffers_.coverage;
    args.token_bytes = row_bytes(inputs_.keys.dtype, geometry.head_dim) + row_bytes(inputs_.values.dtype, geometry.head_dim);
    args.record_bytes =
        scorer_ != nullptr ? scorer_->page_bytes : record_layout(*plan_.config().format, geometry.head_dim).record_bytes;
    args.value_record_bytes = value_layout(*plan_.config().format, geometry.head_dim).record_bytes;
    args.reports = reports;
    launch_report(args, stream_);
  }

 private:
  void score_pages() const {
    const auto requests = inputs_.table.context_tokens.size();
    const View<float, 3> log_mass = first_requests(buffers_.log_mass, requests);
    if (scorer_ != nullptr) return scorer_->score(log_mass, first_requests(buffers_.logits, requests), stream_);
    score_in_step({plan_.geometry(), inputs_.queries, inputs_.summaries, inputs_.table, log_mass, {}},
                  {plan_.config().select, plan_.config().min_context_tokens}, stream_);
  }
  void choose_scored(SelectArgs select, bool parts, bool wants_coverage) const {
    if (scorer_->ranks) {
      select.log_mass.shape[1] = lists_;
      return rank_pages(select, Start::kEarly, stream_);
    }
    select_pages_in_step(select, wants_coverage, stream_);
    // No kernel between the two makes the second one wait for the candidates.
    if (parts) select_tokens(select, stream_);
  }
  [[nodiscard]] SoftmaxStates states() const { return first_requests(buffers_.states, inputs_.table.context_tokens.size()); }
  [[nodiscard]] AttendArgs attend_args(int num_lists, View<const SelectedPage, 3> selected,
                                       View<const std::int32_t, 2> num_selected) const {
    return {plan_.geometry(),
            inputs_.queries,
            inputs_.keys,
            inputs_.values,
            inputs_.table,
            num_lists,
            selected,
            num_selected,
            buffers_.attend_workspace,
            plan_.config().select.budget_tokens};
  }
  [[nodiscard]] SelectArgs select_args() const {
    const auto requests = inputs_.table.context_tokens.size();
    SelectArgs args;
    args.config = plan_.config().select;
    args.min_context_tokens = plan_.config().min_context_tokens;
    args.context_tokens = inputs_.table.context_tokens;
    args.num_lists = lists_;
    args.log_mass = first_requests(buffers_.log_mass, requests);
    args.states = states();
    args.logits = first_requests(buffers_.logits, requests);
    args.candidates = first_requests(buffers_.candidates, requests);
    args.num_candidates = first_requests(buffers_.num_candidates, requests);
    args.selected = first_requests(buffers_.selected, requests);
    args.num_selected = first_requests(buffers_.num_selected, requests);
    args.num_attended = first_requests(buffers_.num_attended, requests);
    args.always_entries = buffers_.always_entries;
    args.completed = first_requests(buffers_.completed, requests);
    args.num_completed = first_requests(buffers_.num_completed, requests);
    args.skipped_log_mass = first_requests(buffers_.skipped_log_mass, requests);
    args.coverage = first_requests(buffers_.coverage, requests);
    args.workspace = buffers_.select_workspace;
    return args;
  }

  const DecodePlan& plan_;
  const DecodeInputs& inputs_;
  const Buffers& buffers_;
  const PageScorer* scorer_;
  Stream stream_;
  int lists_;
};

void run_step(const DecodePlan& plan, const DecodeInputs& inputs, const PageScorer* scorer, const HeadRows& out,
              std::span<DecodeReport> reports, std::span<std::byte> workspace, Stream stream) {
  if (inputs.table.num_requests() == 0) return;
  const Buffers buffers = cut(plan, workspace.data());
  check_step(plan, inputs, out, reports, workspace.size(), buffers, scorer == nullptr);
  const Step step(plan, inputs, buffers, scorer, stream);
  const std::int64_t num_pages = scorer == nullptr ? inputs.summaries.num_pages : inputs.keys.num_pages;
  const bool any_selects = selects(plan) && num_pages > 0;  // no page, no context beyond a page
  if (any_selects) {
    step.select_and_attend(out, !reports.empty());
  } else {
    step.attend_whole(out);
  }
  if (!reports.empty()) step.report(reports, any_selects);
}

}  // namespace

std::size_t decode_workspace_bytes(const DecodePlan& plan) noexcept { return cut(plan, nullptr).bytes; }

void run(const DecodePlan& plan, const DecodeInputs& inputs, const HeadRows& out, std::span<DecodeReport> reports,
         std::span<std::byte> workspace, Stream stream) {
  run_step(plan, inputs, nullptr, out, reports, workspace, stream);
}
void run(const DecodePlan& plan, const DecodeInputs& inputs, const PageScorer& scorer, const HeadRows& out,
         std::span<DecodeReport> reports, std::span<std::byte> workspace, Stream stream) {
  run_step(plan, inputs, &scorer, out, reports, workspace, stream);
}

}  // namespace locks::cuda
