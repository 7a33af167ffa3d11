#include "decode/buffers.h"

#include <algorithm>

#include "cpu/cutter.h"
#include "locks/score.h"

namespace locks::decode {
namespace {

/// The largest numbers that the plan's limits allow.
struct Sizes {
  std::size_t requests, query_heads, group, lists, heads, pages, always_entries, candidates, completed, parts;

  explicit Sizes(const DecodePlan& plan) noexcept {
    const DecodeConfig& config = plan.config();
    const int context = plan.limits().max_context_tokens;
    const int whole = std::min(context, std::max(config.select.budget_tokens, config.min_context_tokens - 1));
    const bool selects = context > whole;
    const SelectLimits limits = selects ? select_limits(config.select, context) : SelectLimits{};
    requests = static_cast<std::size_t>(plan.limits().max_requests);
    query_heads = static_cast<std::size_t>(plan.geometry().query_heads);
    group = static_cast<std::size_t>(plan.geometry().group_size());
    lists = static_cast<std::size_t>(num_lists(plan));
    heads = query_heads / lists;
    pages = selects ? static_cast<std::size_t>(context / kPageTokens) : 0;
    // A context that selects attends less than its budget, and so fewer entries than one that is attended whole.
    always_entries = static_cast<std::size_t>(whole / kPageTokens + 1);
    candidates = static_cast<std::size_t>(limits.candidate_pages);
    completed = static_cast<std::size_t>(limits.completed_pages);
    parts = candidates * static_cast<std::size_t>(kPageTokens / config.select.part_tokens);
    if (config.select.part_tokens == kPageTokens) parts = 0;
  }
};

/// One thread's own part.
void cut_thread(const DecodePlan& plan, const Sizes& sizes, Cutter& cut, Buffers& out) noexcept {
  out.always_log_mass = cut.take_span<float>(sizes.heads);
  out.order = cut.take_span<std::int32_t>(std::max(sizes.pages, sizes.parts));
  out.part_shares = cut.take_span<float>(sizes.parts * (1 + sizes.heads));
  out.pages = cut.take_span<std::int32_t>(sizes.completed);
  out.completed_logits = cut.take_span<float>(sizes.completed * sizes.group * kPageTokens);
  out.complete_scratch =
      cut.take_span<float>(complete_scratch_floats(plan.geometry().head_dim, static_cast<int>(sizes.group)));
}

std::size_t cut_all(const DecodePlan& plan, std::byte* memory, int thread, Buffers& out) noexcept {
  const Sizes sizes(plan);
  const Geometry& geometry = plan.geometry();
  const auto requests = static_cast<int>(sizes.requests);
  Cutter cut(memory);
  out.score_workspace = cut.take_span<std::byte>(score_workspace_bytes(geometry, requests));
  const auto attend_bytes = [&](int lists) {
    return attend_workspace_bytes(geometry, requests, lists, plan.limits().max_threads);
  };
  out.attend_workspace = cut.take_span<std::byte>(std::max(attend_bytes(geometry.kv_heads), attend_bytes(num_lists(plan))));
  const auto state_floats = static_cast<std::size_t>(2 + geometry.head_dim);
  const bool parts = sizes.parts > 0;
  out.log_mass = cut.take_view<float>(sizes.requests, sizes.query_heads, sizes.pages);
  out.states = cut.take_view<float>(sizes.requests, sizes.query_heads, state_floats);
  out.always_lists = cut.take_view<SelectedPage>(sizes.requests, sizes.always_entries);
  out.num_always = cut.take_span<std::int32_t>(sizes.requests);
  out.scored_tokens = cut.take_span<std::int32_t>(sizes.requests);
  out.share = cut.take_view<float>(sizes.requests, sizes.lists, sizes.pages);
  out.log_norm = cut.take_view<float>(sizes.requests, sizes.query_heads);
  out.selectable = cut.take_view<float>(sizes.requests, sizes.query_heads);
  out.skipped_log_mass = cut.take_view<float>(sizes.requests, sizes.query_heads);
  out.candidates = cut.take_view<std::int32_t>(sizes.requests, sizes.lists, sizes.candidates);
  out.num_candidates = cut.take_view<std::int32_t>(sizes.requests, sizes.lists);
  out.logits = cut.take_view<float>(sizes.requests, sizes.lists, parts ? sizes.candidates : std::size_t{0}, sizes.group,
                                    std::size_t{kPageTokens});
  out.selected = cut.take_view<SelectedPage>(sizes.requests, sizes.lists, sizes.candidates);
  out.num_selected = cut.take_view<std::int32_t>(sizes.requests, sizes.lists);
  out.completed = cut.take_view<SelectedPage>(sizes.requests, sizes.lists, sizes.completed);
  out.totals = cut.take_view<ListTotals>(sizes.requests, sizes.lists);

  Cutter count(nullptr);
  Buffers uncut;
  cut_thread(plan, sizes, count, uncut);
  const auto threads = static_cast<std::size_t>(plan.limits().max_threads);
  const std::size_t shared_bytes = cut.used();
  cut.skip(static_cast<std::size_t>(thread) * count.used());
  cut_thread(plan, sizes, cut, out);
  return shared_bytes + threads * count.used();
}

}  // namespace

AlwaysAttended always_of(const DecodePlan& plan, int context_tokens) noexcept {
  return always_attended(plan.config().select, context_tokens, plan.config().min_context_tokens);
}

Buffers buffers(const DecodePlan& plan, std::byte* memory, int thread) noexcept {
  Buffers out;
  cut_all(plan, memory, thread, out);
  return out;
}

std::size_t buffers_bytes(const DecodePlan& plan) noexcept {
  Buffers uncut;
  return cut_all(plan, nullptr, 0, uncut);
}

}  // namespace locks::decode
