#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "decode/step.h"

namespace locks::decode {
namespace {

/// [pages, group_size, 16] logits of the list's heads only, a slice of them.
View<const float, 3> of_list(const Step& step, int list, const float* logits, std::size_t num_pages) noexcept {
  const int group = step.geometry().group_size();
  const auto all = contiguous(logits, num_pages, group, kPageTokens);
  return {all.at(0, step.offset_in_group(list)), {all.shape[0], step.heads_per_list(), kPageTokens}, all.stride};
}

/// Logits of the completed pages: copied for those that are candidates, computed for the others.
void score_completed(const Step& step, int request, int list) {
  const std::span<const SelectedPage> completed = step.completed(request, list);
  const std::span<const std::int32_t> candidates =
      step.has_parts() ? step.candidates(request, list) : std::span<const std::int32_t>{};
  const std::size_t row = static_cast<std::size_t>(step.geometry().group_size()) * kPageTokens;
  const Buffers& buffers = step.buffers;
  std::size_t missing = 0;
  auto candidate = candidates.begin();
  for (const SelectedPage& entry : completed) {
    while (candidate != candidates.end() && *candidate < entry.page) ++candidate;
    if (candidate == candidates.end() || *candidate != entry.page) buffers.pages[missing++] = entry.page;
  }
  score_tokens(step.score_args(), request, step.kv_head_of(list), buffers.pages.first(missing),
               contiguous(buffers.completed_logits.data(), missing, step.geometry().group_size(), kPageTokens), step.target);
  // The computed rows stand in front; from the last one on, each row moves to its place, which is never before its own.
  candidate = candidates.end();
  for (std::size_t i = completed.size(); i-- > 0;) {
    const float* from = nullptr;
    if (missing > 0 && buffers.pages[missing - 1] == completed[i].page) {
      from = &buffers.completed_logits[--missing * row];
    } else {
      while (*std::prev(candidate) != completed[i].page) --candidate;
      from = buffers.logits.at(request, list, std::prev(candidate) - candidates.begin());
    }
    std::copy_n(from, row, &buffers.completed_logits[i * row]);
  }
}

}  // namespace

void choose_candidates(const Step& step, int request, int list) noexcept {
  const Buffers& buffers = step.buffers;
  const int heads = step.heads_per_list();
  const auto always_log_mass = buffers.always_log_mass.first(static_cast<std::size_t>(heads));
  for (int head = 0; head < heads; ++head) {
    const float* const state = buffers.states.at(request, list * heads + head);
    always_log_mass[head] = state[0] + std::log(state[1]);
  }
  const ListShares shares = step.shares(request, list);
  const std::span<std::int32_t> candidates(buffers.candidates.at(request, list),
                                           static_cast<std::size_t>(buffers.candidates.shape[2]));
  buffers.num_candidates(request, list) =
      select_pages(step.config(), step.always(request), {shares.head_share, always_log_mass}, shares, buffers.order,
                   candidates, step.target);
}

void score_candidates(const Step& step) {
  std::int64_t total = 0;
  const auto count = [&](std::int64_t row) {
    return std::int64_t{step.buffers.num_candidates(row / step.num_lists, row % step.num_lists)};
  };
  const std::int64_t rows = std::int64_t{step.num_requests} * step.num_lists;
  for (std::int64_t row = 0; row < rows; ++row) total += count(row);
  const auto [first, last] = step.team.share(total);
  std::int64_t before = 0;  // candidates of the lists already passed
  for (std::int64_t row = 0; row < rows && before < last; before += count(row++)) {
    const auto from = static_cast<std::size_t>(std::clamp<std::int64_t>(first - before, 0, count(row)));
    const auto to = static_cast<std::size_t>(std::clamp<std::int64_t>(last - before, 0, count(row)));
    if (from == to) continue;
    const auto request = static_cast<int>(row / step.num_lists);
    const auto list = static_cast<int>(row % step.num_lists);
    score_tokens(
        step.score_args(), request, step.kv_head_of(list), step.candidates(request, list).subspan(from, to - from),
        contiguous(step.buffers.logits.at(request, list, from), to - from, step.geometry().group_size(), kPageTokens),
        step.target);
  }
}

void choose_tokens(const Step& step, int request, int list) noexcept {
  const Buffers& buffers = step.buffers;
  const SelectConfig& config = step.config();
  const AlwaysAttended always = step.always(request);
  const std::span<const std::int32_t> candidates = step.candidates(request, list);
  const ListShares shares = step.shares(request, list);
  const std::span<SelectedPage> list_out(buffers.selected.at(request, list),
                                         static_cast<std::size_t>(buffers.selected.shape[2]));
  buffers.num_selected(request, list) =
      select_parts(config, always, candidates, of_list(step, list, buffers.logits.at(request, list), candidates.size()),
                   shares, buffers.part_shares, buffers.order, list_out, step.target);
  const std::span<const SelectedPage> selected = step.selected(request, list);

  const int heads = step.heads_per_list();
  const std::span<float> skipped(buffers.skipped_log_mass.at(request, list * heads), static_cast<std::size_t>(heads));
  sum_skipped(config, always, candidates, buffers.part_shares, selected, shares, skipped);
  const std::span<SelectedPage> completed(buffers.completed.at(request, list),
                                          static_cast<std::size_t>(buffers.completed.shape[2]));
  ListTotals totals;
  totals.completed_pages = select_completion(config, always, selected, shares.share, buffers.order, completed);
  for (const SelectedPage& entry : selected) totals.selected_tokens += std::popcount(entry.mask);
  for (int head = 0; head < heads; ++head) totals.coverage += 1.0F - std::exp(skipped[head] - shares.log_norm[head]);
  buffers.totals(request, list) = totals;
}

void complete_heads(const Step& step) {
  const int heads = step.heads_per_list();
  const std::int64_t lists = std::int64_t{step.num_requests} * step.num_lists;
  const auto [first, last] = step.team.share(lists * heads);
  for (std::int64_t at = first; at < last;) {
    const auto request = static_cast<int>(at / heads / step.num_lists);
    const auto list = static_cast<int>(at / heads % step.num_lists);
    const auto from = static_cast<int>(at % heads);
    const auto to = static_cast<int>(std::min<std::int64_t>(heads, from + last - at));
    at += to - from;
    const std::size_t num_completed = step.completed(request, list).size();
    if (num_completed == 0) continue;
    score_completed(step, request, list);
    const View<const float, 3> logits = of_list(step, list, step.buffers.completed_logits.data(), num_completed);
    CompleteArgs args{step.geometry().head_dim,
                      step.inputs.summaries,
                      step.inputs.table,
                      request,
                      step.kv_head_of(list),
                      0,
                      {},
                      {},
                      {},
                      {}};
    args.first_query_head = list * heads + from;
    args.completed = step.completed(request, list);
    args.logits = {logits.at(0, from), {logits.shape[0], to - from, kPageTokens}, logits.stride};
    args.skipped_log_mass = {step.buffers.skipped_log_mass.at(request, args.first_query_head),
                             static_cast<std::size_t>(to - from)};
    args.scratch = step.buffers.complete_scratch;
    complete(args, step.buffers.states, step.target);
  }
}

}  // namespace locks::decode
