// One decode step by selectors: every thread chooses for its share of the KV heads, one packs the lists, all attend.
#include <algorithm>
#include <bit>
#include <limits>

#include "locks/attend.h"
#include "selectors/support.h"

namespace locks {
namespace {

constexpr std::size_t kAlignment = 64;

Sequence sequence_of(const DecodeInputs& inputs, int request, const std::vector<std::int32_t>& pages) {
  return {inputs.keys, inputs.values, pages, inputs.table.context_tokens[static_cast<std::size_t>(request)]};
}

std::int64_t tokens_in(std::span<const SelectedPage> list) noexcept {
  std::int64_t tokens = 0;
  for (const SelectedPage& entry : list) tokens += std::popcount(entry.mask);
  return tokens;
}

}  // namespace

SelectorStep::SelectorStep(const SelectorConfig& config, const Geometry& geometry, int min_context_tokens)
    : config_(config),
      geometry_(geometry),
      min_context_tokens_(min_context_tokens),
      num_lists_(config.combine == GroupCombine::kPerQueryHead ? geometry.query_heads : geometry.kv_heads) {
  check_selector_config(config);
}

bool SelectorStep::is_whole(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request) const {
  const int tokens = inputs.table.context_tokens[static_cast<std::size_t>(request)];
  return selectors[static_cast<std::size_t>(request)] == nullptr || tokens < min_context_tokens_ ||
         tokens <= config_.budget_tokens;
}

void SelectorStep::prepare(const DecodeInputs& inputs, std::span<Selector* const> selectors, int num_threads) {
  const int requests = inputs.table.num_requests();
  const auto heads = static_cast<std::size_t>(geometry_.kv_heads);
  selections_.resize(static_cast<std::size_t>(requests) * heads);
  pages_.resize(static_cast<std::size_t>(requests));
  for (int request = 0; request < requests; ++request) {
    const int tokens = inputs.table.context_tokens[static_cast<std::size_t>(request)];
    std::vector<std::int32_t>& pages = pages_[static_cast<std::size_t>(request)];
    pages.resize(static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens));
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pages[i] = static_cast<std::int32_t>(inputs.table.page(request, static_cast<int>(i)));
    }
    if (!is_whole(inputs, selectors, request)) {
      selectors[static_cast<std::size_t>(request)]->begin_step(sequence_of(inputs, request, pages));
    }
  }
  num_selected_.assign(static_cast<std::size_t>(requests * num_lists_), 0);
  states_.assign(static_cast<std::size_t>(requests * geometry_.query_heads * (2 + geometry_.head_dim)), 0.0F);
  const std::size_t bytes = attend_workspace_bytes(geometry_, requests, num_lists_, num_threads);
  if (bytes > workspace_bytes_) {
    workspace_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kAlignment);
    workspace_bytes_ = bytes;
  }
}

void SelectorStep::select(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request, int kv_head) {
  Selection& selection = selections_[static_cast<std::size_t>(request) * static_cast<std::size_t>(geometry_.kv_heads) +
                                     static_cast<std::size_t>(kv_head)];
  const Sequence sequence = sequence_of(inputs, request, pages_[static_cast<std::size_t>(request)]);
  Selector* const selector = selectors[static_cast<std::size_t>(request)];
  if (!is_whole(inputs, selectors, request)) {
    selector->append(sequence, kv_head);
    const int group = geometry_.group_size();
    const View<const float, 2> queries{inputs.queries.at(request, kv_head * group),
                                       {group, geometry_.head_dim},
                                       {inputs.queries.stride[1], inputs.queries.stride[2]}};
    selection = selector->select(sequence, kv_head, queries);
    return;
  }
  selectors::ListBuilder everything;
  everything.add(0, sequence.tokens);
  selection = {};
  selection.lists.assign(static_cast<std::size_t>(num_lists_ / geometry_.kv_heads), everything.take());
  selection.coverage = 1.0;
}

void SelectorStep::pack(const DecodeInputs& inputs) {
  std::size_t longest = 1;
  for (const Selection& selection : selections_) {
    for (const SelectedList& list : selection.lists) longest = std::max(longest, list.size());
  }
  capacity_ = static_cast<std::int64_t>(longest);
  const auto rows = static_cast<std::size_t>(inputs.table.num_requests() * num_lists_);
  selected_.resize(rows * longest);
  std::size_t row = 0;
  for (const Selection& selection : selections_) {
    for (const SelectedList& list : selection.lists) {
      std::copy(list.begin(), list.end(), selected_.begin() + static_cast<std::ptrdiff_t>(row * longest));
      num_selected_[row++] = static_cast<std::int32_t>(list.size());
    }
  }
}

bool SelectorStep::run(const DecodeInputs& inputs, std::span<Selector* const> selectors, View<float, 3> out,
                       std::span<DecodeReport> reports, Team team, Target target, View<float, 2> coverage) {
  const int requests = inputs.table.num_requests();
  if (requests == 0) return true;
  const int kv_heads = geometry_.kv_heads;
  // No thread may leave the others at a barrier.
  const auto guarded = [this](const auto& work) {
    try {
      if (!failed_) work();
    } catch (...) {
      failed_ = true;
    }
  };
  if (team.index == 0) {
    failed_ = false;
    guarded([&] { prepare(inputs, selectors, team.count); });
  }
  team.sync();
  // A KV head is one thread's, for all requests in order: those of one sequence share what a selector knows of it.
  const auto [first, last] = team.share(kv_heads);
  guarded([&] {
    for (auto kv_head = static_cast<int>(first); kv_head < last; ++kv_head) {
      for (int request = 0; request < requests; ++request) select(inputs, selectors, request, kv_head);
    }
  });
  team.sync();
  if (team.index == 0) guarded([&] { pack(inputs); });
  team.sync();
  if (failed_) {
    team.sync();  // nobody begins the next step before all have seen it
    return false;
  }

  const AttendArgs args = attend_args(inputs);
  attend(args, team, target);
  team.sync();
  const auto [from, to] = team.share(std::int64_t{requests} * kv_heads);
  for (std::int64_t i = from; i < to; ++i) {
    finish_heads(args, static_cast<int>(i / kv_heads), static_cast<int>(i % kv_heads), team.count, out);
    if (coverage.data != nullptr) {
      coverage(i / kv_heads, i % kv_heads) = static_cast<float>(selections_[static_cast<std::size_t>(i)].coverage);
    }
  }
  const auto [first_report, last_report] =
      team.share(std::min<std::int64_t>(static_cast<std::int64_t>(reports.size()), requests));
  for (auto request = static_cast<int>(first_report); request < last_report; ++request) {
    report(inputs, selectors, request, reports[static_cast<std::size_t>(request)]);
  }
  team.sync();
  return true;
}

AttendArgs SelectorStep::attend_args(const DecodeInputs& inputs) const {
  const int requests = inputs.table.num_requests();
  void* aligned = workspace_.get();
  std::size_t space = workspace_bytes_ + kAlignment;
  std::align(kAlignment, workspace_bytes_, aligned, space);
  return {geometry_,
          inputs.queries,
          inputs.keys,
          inputs.values,
          inputs.table,
          num_lists_,
          contiguous(selected_.data(), requests, num_lists_, capacity_),
          contiguous(num_selected_.data(), requests, num_lists_),
          {static_cast<std::byte*>(aligned), workspace_bytes_}};
}

void SelectorStep::finish_heads(const AttendArgs& args, int request, int kv_head, int num_threads,
                                const View<float, 3>& out) {
  const int group = geometry_.group_size();
  const auto floats = static_cast<std::size_t>(2 + geometry_.head_dim);
  const SoftmaxStates states =
      contiguous(states_.data(), args.table.num_requests(), geometry_.query_heads, 2 + geometry_.head_dim);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    states(request, head, 0) = -std::numeric_limits<float>::infinity();
  }
  const int lists = num_lists_ / geometry_.kv_heads;
  for (int list = kv_head * lists; list < (kv_head + 1) * lists; ++list) {
    merge_partials(args, request, list, num_threads, states);
  }
  const Selection& selection = selections_[static_cast<std::size_t>(request * geometry_.kv_heads + kv_head)];
  for (int head = 0; head < group; ++head) {
    const int query_head = kv_head * group + head;
    if (!selection.stand_in.empty()) {
      merge_state({states.at(request, query_head), floats}, selection.stand_in[static_cast<std::size_t>(head)]);
    }
    finish(states, request, query_head, {out.at(request, query_head), floats - 2});
  }
}

void SelectorStep::report(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request,
                          DecodeReport& out) const {
  const Sequence sequence = sequence_of(inputs, request, pages_[static_cast<std::size_t>(request)]);
  const std::int64_t token_bytes =
      row_bytes(inputs.keys.dtype, geometry_.head_dim) + row_bytes(inputs.values.dtype, geometry_.head_dim);
  std::int64_t tokens = 0;
  std::int64_t stand_in_tokens = 0;
  std::int64_t stand_in_bytes = 0;
  double coverage = 0.0;
  for (int kv_head = 0; kv_head < geometry_.kv_heads; ++kv_head) {
    const Selection& selection = selections_[static_cast<std::size_t>(request * geometry_.kv_heads + kv_head)];
    for (const SelectedList& list : selection.lists) tokens += tokens_in(list);
    coverage += selection.coverage;
    stand_in_tokens += selection.stand_in_tokens;
    stand_in_bytes += selection.stand_in_bytes;
  }
  out = {};
  out.context_tokens = sequence.tokens;
  out.dense = is_whole(inputs, selectors, request);
  out.dense_bytes = token_bytes * geometry_.kv_heads * sequence.tokens;
  out.attended_tokens = static_cast<float>(tokens) / static_cast<float>(num_lists_) +
                        static_cast<float>(stand_in_tokens) / static_cast<float>(geometry_.kv_heads);
  out.complete_bytes = stand_in_bytes;
  out.attend_bytes = out.dense ? out.dense_bytes : token_bytes * tokens;
  out.coverage = static_cast<float>(coverage / geometry_.kv_heads);
  if (!out.dense) {
    out.score_bytes = selectors[static_cast<std::size_t>(request)]->score_bytes(sequence) * geometry_.kv_heads;
  }
}

}  // namespace locks
