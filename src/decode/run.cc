// The phases of a step, each a share of work for every thread and then a barrier:
//   A  quantise the queries, list what is always attended
//   B  score the pages, attend what is always attended
//   C  for every request and KV head: select, and complete what is skipped
//   D  attend what is selected
//   E  merge, and divide by the sum of weights
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "decode/buffers.h"
#include "locks/score.h"

namespace locks {
namespace {

using decode::Buffers;
using decode::ListTotals;

class Step {
 public:
  Step(const DecodePlan& plan, const DecodeInputs& inputs, View<float, 3> out, std::span<std::byte> workspace, Team team,
       Target target)
      : plan_(plan),
        geometry_(plan.geometry()),
        inputs_(inputs),
        out_(out),
        team_(team),
        target_(target),
        buffers_(decode::buffers(plan, workspace.data(), team.index)),
        requests_(inputs.table.num_requests()) {
    for (const std::int32_t tokens : inputs.table.context_tokens) selects_ = selects_ || !always_of(tokens).everything;
  }

  void run(std::span<DecodeReport> reports) {
    if (selects_) {
      list_always();
      prepare_queries(score_args(), team_, target_);
      team_.sync();
      score(score_args(), team_, target_);
    }
    attend(always_args(), team_, target_);
    team_.sync();
    for_each_unit([this](int request, int kv_head) { choose(request, kv_head); });
    if (selects_) {
      team_.sync();
      attend(selected_args(), team_, target_);
      team_.sync();
      for_each_unit([this](int request, int kv_head) { merge_selected(request, kv_head); });
    }
    const auto [first, last] = team_.share(static_cast<std::int64_t>(std::min<std::size_t>(reports.size(), requests_)));
    for (auto request = static_cast<int>(first); request < last; ++request) reports[request] = report(request);
  }

 private:
  [[nodiscard]] AlwaysAttended always_of(std::int32_t context_tokens) const noexcept {
    return decode::always_of(plan_, context_tokens);
  }
  [[nodiscard]] AlwaysAttended always_of_request(int request) const noexcept {
    return always_of(inputs_.table.context_tokens[request]);
  }

  /// The same threads get the same units in every phase, whose states they then have in their caches.
  template <class Work>
  void for_each_unit(const Work& work) {
    const auto [first, last] = team_.share(std::int64_t{requests_} * geometry_.kv_heads);
    for (std::int64_t unit = first; unit < last; ++unit) {
      work(static_cast<int>(unit / geometry_.kv_heads), static_cast<int>(unit % geometry_.kv_heads));
    }
  }

  void list_always() noexcept {
    const auto [first, last] = team_.share(requests_);
    for (auto request = static_cast<int>(first); request < last; ++request) {
      const AlwaysAttended always = always_of_request(request);
      int entries = 0;
      const auto add = [&](int page, std::uint16_t mask) { buffers_.always_lists(request, entries++) = {page, mask}; };
      for (int page = 0; page < always.sink_pages; ++page) add(page, kWholePage);
      for (int page = always.first_recent_page; page < always.filled_pages; ++page) add(page, kWholePage);
      if (always.tail_tokens > 0) add(always.filled_pages, static_cast<std::uint16_t>((1U << always.tail_tokens) - 1U));
      buffers_.num_always[request] = entries;
      buffers_.scored_tokens[request] = always.everything ? 0 : always.first_recent_page * kPageTokens;
    }
  }

  /// Pages that are always attended are not scored, but for the sink.
  [[nodiscard]] ScoreArgs score_args() const noexcept {
    PageTable table = inputs_.table;
    table.context_tokens = buffers_.scored_tokens.first(static_cast<std::size_t>(requests_));
    return {geometry_, inputs_.queries, inputs_.summaries, table, buffers_.log_mass, buffers_.score_workspace};
  }

  [[nodiscard]] AttendArgs attend_args(int num_lists) const noexcept {
    AttendArgs args{geometry_, inputs_.queries, inputs_.keys, inputs_.values, inputs_.table, num_lists, {}, {}, {}};
    args.workspace = buffers_.attend_workspace;
    return args;
  }
  /// All KV heads of a request share one list. If nothing selects, there is none: dense attention reads in a better order.
  [[nodiscard]] AttendArgs always_args() const noexcept {
    AttendArgs args = attend_args(geometry_.kv_heads);
    if (!selects_) return args;
    const View<SelectedPage, 2>& lists = buffers_.always_lists;
    args.selected = {lists.data, {requests_, geometry_.kv_heads, lists.shape[1]}, {lists.stride[0], 0, 1}};
    args.num_selected = {buffers_.num_always.data(), {requests_, geometry_.kv_heads}, {1, 0}};
    return args;
  }
  [[nodiscard]] AttendArgs selected_args() const noexcept {
    AttendArgs args = attend_args(num_lists_);
    args.selected = buffers_.selected;
    args.num_selected = buffers_.num_selected;
    return args;
  }

  void choose(int request, int kv_head) {
    const int group = geometry_.group_size();
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      float* const state = buffers_.states.at(request, head);
      std::fill_n(state, buffers_.states.shape[2], 0.0F);
      *state = -std::numeric_limits<float>::infinity();
    }
    merge_partials(always_args(), request, kv_head, team_.count, buffers_.states);
    const AlwaysAttended always = always_of_request(request);
    for (int list = kv_head * lists_per_kv_head_; list < (kv_head + 1) * lists_per_kv_head_; ++list) {
      buffers_.num_selected(request, list) = 0;
      if (!always.everything) choose_list(always, request, kv_head, list);
    }
    if (!selects_) finish_heads(request, kv_head);
  }

  void choose_list(const AlwaysAttended& always, int request, int kv_head, int list) {
    const SelectConfig& config = plan_.config().select;
    const int heads = geometry_.query_heads / num_lists_;
    const int first_head = list * heads;
    const auto of_heads = [heads](std::span<float> all) { return all.first(static_cast<std::size_t>(heads)); };
    const auto log_sum = of_heads(buffers_.always_log_mass);
    for (int head = 0; head < heads; ++head) {
      const float* const state = buffers_.states.at(request, first_head + head);
      log_sum[head] = state[0] + std::log(state[1]);
    }
    const View<float, 3>& all = buffers_.log_mass;
    const View<float, 2> log_mass{all.at(request, first_head), {heads, all.shape[2]}, {all.stride[1], 1}};
    const ListShares shares{log_mass, of_heads(buffers_.log_norm), buffers_.share};
    const int num_candidates =
        select_pages(config, always, {log_mass, log_sum}, shares, buffers_.order, buffers_.pages, target_);
    const auto candidates = buffers_.pages.first(static_cast<std::size_t>(num_candidates));

    const bool parts = config.part_tokens < kPageTokens;
    const View<const float, 3> logits = parts ? token_logits(request, kv_head, first_head, candidates) : View<const float, 3>{};
    const std::span<SelectedPage> list_out(buffers_.selected.at(request, list), static_cast<std::size_t>(buffers_.selected.shape[2]));
    const int num_selected =
        select_parts(config, always, candidates, logits, shares, buffers_.part_share, buffers_.order, list_out, target_);
    const std::span<const SelectedPage> selected = list_out.first(static_cast<std::size_t>(num_selected));
    const auto skipped = of_heads(buffers_.skipped_log_mass);
    remove_selected(config, always, candidates, logits, selected, shares, skipped, target_);
    const int num_completed = select_completion(config, always, selected, shares.share, buffers_.order, buffers_.completed);
    complete_pages(request, kv_head, first_head, static_cast<std::size_t>(num_completed), skipped);

    buffers_.num_selected(request, list) = num_selected;
    ListTotals& totals = buffers_.totals(request, list) = {0, num_completed, 0.0F};
    for (const SelectedPage& entry : selected) totals.selected_tokens += std::popcount(entry.mask);
    for (int head = 0; head < heads; ++head) totals.coverage += 1.0F - std::exp(skipped[head] - shares.log_norm[head]);
  }

  /// Of the list's heads only; they are a slice of the KV head's.
  [[nodiscard]] View<const float, 3> token_logits(int request, int kv_head, int first_head, std::span<const std::int32_t> pages) {
    const int group = geometry_.group_size();
    const auto logits = contiguous(buffers_.logits.data(), pages.size(), group, kPageTokens);
    score_tokens(score_args(), request, kv_head, pages, logits, target_);
    return {logits.at(0, first_head - kv_head * group), {logits.shape[0], geometry_.query_heads / num_lists_, kPageTokens}, logits.stride};
  }

  void complete_pages(int request, int kv_head, int first_head, std::size_t num_completed, std::span<const float> skipped) {
    if (num_completed == 0) return;
    const auto completed = buffers_.completed.first(num_completed);
    const auto pages = buffers_.pages.first(num_completed);
    std::transform(completed.begin(), completed.end(), pages.begin(), [](const SelectedPage& entry) { return entry.page; });
    CompleteArgs args{geometry_.head_dim, inputs_.summaries, inputs_.table, request, kv_head, first_head, completed, {}, skipped, {}};
    args.logits = token_logits(request, kv_head, first_head, pages);
    args.scratch = buffers_.complete_scratch;
    complete(args, buffers_.states, target_);
  }

  void merge_selected(int request, int kv_head) {
    for (int list = kv_head * lists_per_kv_head_; list < (kv_head + 1) * lists_per_kv_head_; ++list) {
      merge_partials(selected_args(), request, list, team_.count, buffers_.states);
    }
    finish_heads(request, kv_head);
  }

  void finish_heads(int request, int kv_head) {
    const int group = geometry_.group_size();
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      finish(buffers_.states, request, head, {out_.at(request, head), static_cast<std::size_t>(geometry_.head_dim)});
    }
  }

  [[nodiscard]] DecodeReport report(int request) const noexcept {
    const AlwaysAttended always = always_of_request(request);
    const std::int64_t token_bytes =
        row_bytes(inputs_.keys.dtype, geometry_.head_dim) + row_bytes(inputs_.values.dtype, geometry_.head_dim);
    DecodeReport out;
    out.context_tokens = inputs_.table.context_tokens[request];
    out.dense = always.everything;
    out.attended_tokens = static_cast<float>(always.tokens);
    out.dense_bytes = token_bytes * geometry_.kv_heads * out.context_tokens;
    out.attend_bytes = token_bytes * geometry_.kv_heads * always.tokens;
    if (always.everything) return out;
    std::int64_t tokens = 0;
    std::int64_t completed = 0;
    float coverage = 0.0F;
    for (int list = 0; list < num_lists_; ++list) {
      const ListTotals& totals = buffers_.totals(request, list);
      tokens += totals.selected_tokens;
      completed += totals.completed_pages;
      coverage += totals.coverage;
    }
    const auto lists = static_cast<float>(num_lists_);
    out.attended_tokens += static_cast<float>(tokens) / lists;
    out.completed_pages = static_cast<float>(completed) / lists;
    out.coverage = coverage / static_cast<float>(geometry_.query_heads);
    out.attend_bytes += token_bytes * tokens;
    // Records that are read again for parts and completion come from the caches and do not count twice.
    out.score_bytes = std::int64_t{always.first_recent_page} * geometry_.kv_heads *
                      record_layout(*inputs_.summaries.format, geometry_.head_dim).record_bytes;
    if (completed > 0) out.complete_bytes = completed * value_layout(*inputs_.summaries.format, geometry_.head_dim).record_bytes;
    return out;
  }

  const DecodePlan& plan_;
  const Geometry& geometry_;
  const DecodeInputs& inputs_;
  const View<float, 3> out_;
  const Team team_;
  const Target target_;
  const Buffers buffers_;
  const int requests_;
  const int num_lists_ = decode::num_lists(plan_);
  const int lists_per_kv_head_ = num_lists_ / geometry_.kv_heads;
  bool selects_ = false;  // does any request
};

}  // namespace

void run(const DecodePlan& plan, const DecodeInputs& inputs, View<float, 3> out, std::span<DecodeReport> reports,
         std::span<std::byte> workspace, Team team, Target target) {
  Step(plan, inputs, out, workspace, team, target).run(reports);
}

}  // namespace locks
