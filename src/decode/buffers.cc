#include "decode/buffers.h"

#include <algorithm>

#include "locks/score.h"

namespace locks::decode {
namespace {

constexpr std::size_t kAlignment = 64;

/// Hands out aligned pieces of memory one behind the other. With null memory it only counts.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}

  template <class T>
  std::span<T> take(std::size_t count) noexcept {
    auto* const data = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return {data, data == nullptr ? 0 : count};
  }
  void skip(std::size_t bytes) noexcept { used_ += bytes; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

/// The largest numbers that the plan's limits allow.
struct Sizes {
  std::size_t requests, query_heads, group, lists, pages, always_entries, candidates, completed, parts, longer;

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
    pages = selects ? static_cast<std::size_t>(context / kPageTokens) : 0;
    // A context that selects attends less than its budget, and so fewer entries than one that is attended whole.
    always_entries = static_cast<std::size_t>(whole / kPageTokens + 1);
    candidates = static_cast<std::size_t>(limits.candidate_pages);
    completed = static_cast<std::size_t>(limits.completed_pages);
    parts = candidates * static_cast<std::size_t>(kPageTokens / config.select.part_tokens);
    longer = std::max(candidates, completed);
  }
};

/// One thread's own part.
void cut_thread(const DecodePlan& plan, const Sizes& sizes, Cutter& cut, Buffers& out) noexcept {
  out.pages = cut.take<std::int32_t>(sizes.longer);
  out.completed = cut.take<SelectedPage>(sizes.completed);
  out.share = cut.take<float>(sizes.pages);
  out.order = cut.take<std::int32_t>(std::max(sizes.pages, sizes.parts));
  out.part_share = cut.take<float>(sizes.parts);
  out.logits = cut.take<float>(sizes.longer * sizes.group * kPageTokens);
  out.log_norm = cut.take<float>(sizes.group);
  out.always_log_mass = cut.take<float>(sizes.group);
  out.skipped_log_mass = cut.take<float>(sizes.group);
  out.complete_scratch =
      cut.take<float>(complete_scratch_floats(plan.geometry().head_dim, static_cast<int>(sizes.group)));
}

std::size_t cut_all(const DecodePlan& plan, std::byte* memory, int thread, Buffers& out) noexcept {
  const Sizes sizes(plan);
  const Geometry& geometry = plan.geometry();
  const auto requests = static_cast<int>(sizes.requests);
  Cutter cut(memory);
  out.score_workspace = cut.take<std::byte>(score_workspace_bytes(geometry, requests));
  const auto attend_bytes = [&](int lists) {
    return attend_workspace_bytes(geometry, requests, lists, plan.limits().max_threads);
  };
  out.attend_workspace = cut.take<std::byte>(std::max(attend_bytes(geometry.kv_heads), attend_bytes(num_lists(plan))));
  out.log_mass = contiguous(cut.take<float>(sizes.requests * sizes.query_heads * sizes.pages).data(), sizes.requests,
                            sizes.query_heads, sizes.pages);
  const auto state_floats = static_cast<std::size_t>(2 + geometry.head_dim);
  out.states = contiguous(cut.take<float>(sizes.requests * sizes.query_heads * state_floats).data(), sizes.requests,
                          sizes.query_heads, state_floats);
  out.always_lists = contiguous(cut.take<SelectedPage>(sizes.requests * sizes.always_entries).data(), sizes.requests,
                                sizes.always_entries);
  out.num_always = cut.take<std::int32_t>(sizes.requests);
  out.scored_tokens = cut.take<std::int32_t>(sizes.requests);
  out.selected = contiguous(cut.take<SelectedPage>(sizes.requests * sizes.lists * sizes.candidates).data(), sizes.requests,
                            sizes.lists, sizes.candidates);
  out.num_selected =
      contiguous(cut.take<std::int32_t>(sizes.requests * sizes.lists).data(), sizes.requests, sizes.lists);
  out.totals = contiguous(cut.take<ListTotals>(sizes.requests * sizes.lists).data(), sizes.requests, sizes.lists);

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

int num_lists(const DecodePlan& plan) noexcept {
  const bool per_query_head = plan.config().select.combine == GroupCombine::kPerQueryHead;
  return per_query_head ? plan.geometry().query_heads : plan.geometry().kv_heads;
}

AlwaysAttended always_of(const DecodePlan& plan, int context_tokens) noexcept {
  SelectConfig config = plan.config().select;
  if (context_tokens < plan.config().min_context_tokens) config.budget_tokens = context_tokens;
  return always_attended(config, context_tokens);
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
