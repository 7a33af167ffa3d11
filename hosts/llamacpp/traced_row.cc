#include "traced_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cpu/element.h"

namespace locks::llamacpp {
namespace {

/// Of all tokens of a request, for the query heads of one KV head: [group_size, tokens].
void compute_logits(const DecodePlan& plan, const DecodeInputs& inputs, int request, int kv_head,
                    std::vector<double>& logits) {
  const Geometry& geometry = plan.geometry();
  const int group = geometry.group_size();
  const int tokens = inputs.table.context_tokens[request];
  logits.resize(static_cast<std::size_t>(group) * static_cast<std::size_t>(tokens));
  std::array<float, kMaxHeadDim> key;
  for (int token = 0; token < tokens; ++token) {
    const std::int64_t page = inputs.table.page(request, token / kPageTokens);
    load_row(inputs.keys.dtype, inputs.keys.token(page, token % kPageTokens, kv_head), geometry.head_dim, key.data());
    for (int head = 0; head < group; ++head) {
      const float* const query = inputs.queries.at(request, kv_head * group + head);
      double dot = 0.0;
      for (int dim = 0; dim < geometry.head_dim; ++dim) dot += double{query[dim]} * double{key[dim]};
      logits[static_cast<std::size_t>(head) * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(token)] =
          dot * double{geometry.softmax_scale};
    }
  }
}

/// The pages of one list: views into a TracedRow.
struct TracedList {
  std::span<float> true_mass;
  std::span<float> covered_mass;
  std::span<float> estimated_mass;
  std::span<std::uint16_t> attended;
  std::span<std::uint16_t> completed;
};

void mark(const DecodeChoice& choice, int tokens, TracedList& out) noexcept {
  const auto whole = [&](int page) {
    return static_cast<std::uint16_t>((1U << std::min(kPageTokens, tokens - page * kPageTokens)) - 1U);
  };
  for (int page = 0; page < static_cast<int>(out.attended.size()); ++page) {
    const bool selectable =
        !choice.always.everything && page >= choice.always.sink_pages && page < choice.always.first_recent_page;
    out.attended[page] = selectable ? std::uint16_t{0} : whole(page);
  }
  for (const SelectedPage& entry : choice.selected) out.attended[entry.page] = entry.mask;
  for (const SelectedPage& entry : choice.completed) out.completed[entry.page] = entry.mask;
}

/// Adds one query head's part of the means.
void add_head(const DecodeChoice& choice, int head, std::span<const double> logits, TracedList& out) noexcept {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double logit : logits) {
    if (std::isfinite(logit)) largest = std::max(largest, logit);
  }
  const auto weight = [&](std::size_t token) {
    return std::isfinite(logits[token]) ? std::exp(logits[token] - largest) : 0.0;
  };
  double sum = 0.0;
  for (std::size_t token = 0; token < logits.size(); ++token) sum += weight(token);
  const double part = 1.0 / choice.num_query_heads;
  for (std::size_t page = 0; page < out.attended.size(); ++page) {
    double all = 0.0;
    double covered = 0.0;
    const std::size_t first = page * kPageTokens;
    for (std::size_t token = first; token < std::min(first + kPageTokens, logits.size()); ++token) {
      all += weight(token);
      if ((out.attended[page] >> (token - first) & 1U) != 0) covered += weight(token);
    }
    const double share = sum > 0.0 ? all / sum : 0.0;
    out.true_mass[page] += static_cast<float>(part * share);
    out.covered_mass[page] += static_cast<float>(sum > 0.0 ? part * covered / sum : 0.0);
    double estimate = share;
    if (!choice.always.everything) {
      const bool selectable =
          static_cast<int>(page) >= choice.always.sink_pages && static_cast<int>(page) < choice.always.first_recent_page;
      const double estimated = selectable ? double{choice.head_share(head, static_cast<std::int64_t>(page))} : 0.0;
      // What is always attended, marked pages too, has no estimate: its exact mass is part of the estimated whole.
      const bool exact = !selectable || std::isinf(estimated);
      estimate = exact ? (all > 0.0 ? std::exp(largest + std::log(all) - double{choice.log_norm[head]}) : 0.0) : estimated;
    }
    out.estimated_mass[page] += static_cast<float>(part * std::clamp(estimate, 0.0, 1.0));
  }
}

}  // namespace

void trace_row(const DecodePlan& plan, const DecodeInputs& inputs, std::span<std::byte> workspace, int request,
               TracedRow& out) {
  const int tokens = inputs.table.context_tokens[request];
  out.lists = num_lists(plan);
  out.pages = pages_for(tokens);
  const auto pages = static_cast<std::size_t>(out.pages);
  const std::size_t entries = static_cast<std::size_t>(out.lists) * pages;
  for (std::vector<float>* masses : {&out.true_mass, &out.covered_mass, &out.estimated_mass}) masses->assign(entries, 0.0F);
  out.attended.assign(entries, 0);
  out.completed.assign(entries, 0);
  std::vector<double> logits;
  int kv_head = -1;
  for (int list = 0; list < out.lists; ++list) {
    const DecodeChoice chosen = choice(plan, inputs, workspace, request, list);
    if (chosen.kv_head != kv_head) compute_logits(plan, inputs, request, kv_head = chosen.kv_head, logits);
    const std::size_t at = static_cast<std::size_t>(list) * pages;
    TracedList of_list{std::span(out.true_mass).subspan(at, pages), std::span(out.covered_mass).subspan(at, pages),
                       std::span(out.estimated_mass).subspan(at, pages), std::span(out.attended).subspan(at, pages),
                       std::span(out.completed).subspan(at, pages)};
    mark(chosen, tokens, of_list);
    for (int head = 0; head < chosen.num_query_heads; ++head) {
      const int in_group = chosen.first_query_head + head - kv_head * plan.geometry().group_size();
      const std::span<const double> own = std::span(logits).subspan(
          static_cast<std::size_t>(in_group) * static_cast<std::size_t>(tokens), static_cast<std::size_t>(tokens));
      add_head(chosen, head, own, of_list);
    }
  }
}

}  // namespace locks::llamacpp
