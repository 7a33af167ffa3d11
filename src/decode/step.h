// One decode step in the hands of one thread: what all phases read, and the arguments of the stages.
#pragma once

#include <span>

#include "decode/buffers.h"
#include "locks/score.h"

namespace locks::decode {

struct Step {
  const DecodePlan& plan;
  const DecodeInputs& inputs;
  Buffers buffers;
  Team team;
  Target target;
  int num_requests;
  int num_lists;
  bool selects;  // does any request; if not, all are attended whole

  Step(const DecodePlan& plan, const DecodeInputs& inputs, std::span<std::byte> workspace, Team team,
       Target target) noexcept;

  [[nodiscard]] const Geometry& geometry() const noexcept { return plan.geometry(); }
  [[nodiscard]] const SelectConfig& config() const noexcept { return plan.config().select; }
  [[nodiscard]] bool has_parts() const noexcept { return config().part_tokens < kPageTokens; }
  [[nodiscard]] AlwaysAttended always(int request) const noexcept {
    return always_of(plan, inputs.table.context_tokens[request]);
  }
  [[nodiscard]] int heads_per_list() const noexcept { return geometry().query_heads / num_lists; }
  [[nodiscard]] int kv_head_of(int list) const noexcept { return list * geometry().kv_heads / num_lists; }
  /// Of the list's first head in the group of its KV head.
  [[nodiscard]] int offset_in_group(int list) const noexcept {
    return list * heads_per_list() - kv_head_of(list) * geometry().group_size();
  }

  /// Pages that are always attended are not scored, but for the sink.
  [[nodiscard]] ScoreArgs score_args() const noexcept;
  /// All KV heads of a request share one list. If nothing selects, there is none: dense attention reads in a better order.
  [[nodiscard]] AttendArgs always_args() const noexcept;
  [[nodiscard]] AttendArgs selected_args() const noexcept;

  [[nodiscard]] std::span<const std::int32_t> candidates(int request, int list) const noexcept {
    return {buffers.candidates.at(request, list), static_cast<std::size_t>(buffers.num_candidates(request, list))};
  }
  [[nodiscard]] std::span<const SelectedPage> selected(int request, int list) const noexcept {
    return {buffers.selected.at(request, list), static_cast<std::size_t>(buffers.num_selected(request, list))};
  }
  [[nodiscard]] std::span<const SelectedPage> completed(int request, int list) const noexcept {
    return {buffers.completed.at(request, list), static_cast<std::size_t>(buffers.totals(request, list).completed_pages)};
  }
  [[nodiscard]] ListShares shares(int request, int list) const noexcept;

  /// Calls work(request, index) for this thread's share of [requests, per_request].
  template <class Work>
  void for_each(int per_request, const Work& work) const {
    const auto [first, last] = team.share(std::int64_t{num_requests} * per_request);
    for (std::int64_t i = first; i < last; ++i) work(static_cast<int>(i / per_request), static_cast<int>(i % per_request));
  }
};

// What is done for one list, or for a share of all; in choice.cc.

/// The candidates of one list, from the scores and the states of what is always attended.
void choose_candidates(const Step& step, int request, int list) noexcept;
/// Token logits of this thread's share of all candidates.
void score_candidates(const Step& step);
/// What one list attends and completes.
void choose_tokens(const Step& step, int request, int list) noexcept;
/// The completion, into the states of this thread's share of the query heads.
void complete_heads(const Step& step);

}  // namespace locks::decode
