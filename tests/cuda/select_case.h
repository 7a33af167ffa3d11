// What a selection on the GPU must give: the bits of the CPU's, list by list, whatever else is in the batch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "locks/cuda.h"
#include "locks/select.h"
#include "select/share.h"

namespace locks::test::selection {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int part;
  int budget;
  float completion;
  GroupCombine combine;
  // 0 plain, 1 many ties, 2 marked pages and NaN, 3 everything marked, 4 no mass at all, 5 nearly equal, 6 tokens above
  // their page's mass
  int special;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << "part " << c.part << " budget " << c.budget << " completion " << c.completion << " combine "
       << static_cast<int>(c.combine) << " special " << c.special;
}

/// A batch of requests with random scores; two lists of three heads each.
struct Batch {
  static constexpr int kLists = 2;
  static constexpr int kHeads = 3;  // of a list
  SelectConfig config;
  std::vector<std::int32_t> context_tokens;
  int pages = 0;
  std::vector<float> log_mass, states, logits;
  int candidates = 0;
  int completed = 0;

  Batch(const Case& c, std::vector<std::int32_t> contexts) : context_tokens(std::move(contexts)) {
    config.budget_tokens = c.budget;
    config.recent_tokens = 40;
    config.part_tokens = c.part;
    config.completion_fraction = c.completion;
    config.combine = c.combine;
    const int longest = *std::max_element(context_tokens.begin(), context_tokens.end());
    pages = longest / kPageTokens;
    const SelectLimits limits = select_limits(config, longest);
    candidates = limits.candidate_pages;
    completed = limits.completed_pages;
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal(3.0F, 2.5F);
    const auto rows = context_tokens.size() * kLists * kHeads;
    log_mass.resize(rows * static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < log_mass.size(); ++i) {
      const auto page = i % static_cast<std::size_t>(pages);
      float& value = log_mass[i];
      value = c.special == 1 ? std::round(normal(random) / 3) : normal(random);
      if (c.special == 2 && page % 7 == 3) value = kNaN;
      if (c.special == 3 || (c.special == 2 && page % 20 == 5)) value = kInfinity;
      if (c.special == 4) value = -kInfinity;
      if (c.special == 5) value = 1.0F + 1e-4F * value;
    }
    states.assign(rows * 2, 1.0F);
    for (std::size_t i = 0; i < rows; ++i) {
      states[2 * i] = c.special == 4 ? -kInfinity : normal(random);
      if (c.special == 4) states[2 * i + 1] = 0.0F;
    }
    logits.resize(context_tokens.size() * kLists * static_cast<std::size_t>(candidates) * kHeads * kPageTokens);
    for (float& value : logits) {
      value = c.special == 1 ? std::round(normal(random)) : normal(random);
      if (c.special == 6 && value > 4.0F) value = 1000.0F;
    }
  }
};

struct Chosen {
  std::vector<std::int32_t> candidates;
  std::vector<SelectedPage> selected, completed;
  std::vector<float> skipped;
};

/// One list by the CPU's reference.
inline Chosen expected(const Batch& batch, int request, int list) {
  constexpr int kHeads = Batch::kHeads;
  const AlwaysAttended always = always_attended(batch.config, batch.context_tokens[static_cast<std::size_t>(request)]);
  const int first_head = (request * Batch::kLists + list) * kHeads;
  std::vector<float> head_share(static_cast<std::size_t>(kHeads) * batch.pages);
  std::vector<float> log_norm(kHeads);
  std::vector<float> selectable(kHeads);
  std::vector<float> share(static_cast<std::size_t>(batch.pages));
  std::vector<float> always_log_mass(kHeads);
  for (int head = 0; head < kHeads; ++head) {
    const float* state = &batch.states[static_cast<std::size_t>(first_head + head) * 2];
    always_log_mass[static_cast<std::size_t>(head)] = state[1] > 0.0F ? state[0] : -kInfinity;
  }
  const ListShares shares{contiguous(head_share.data(), kHeads, batch.pages), log_norm, share, selectable};
  std::vector<std::int32_t> order(static_cast<std::size_t>(std::max(batch.pages, batch.candidates * kPageTokens)));
  Chosen out;
  out.candidates.resize(static_cast<std::size_t>(batch.candidates));
  out.candidates.resize(static_cast<std::size_t>(
      select_pages(batch.config, always,
                   {contiguous(&batch.log_mass[static_cast<std::size_t>(first_head) * batch.pages], kHeads, batch.pages),
                    always_log_mass},
                   shares, order, out.candidates, Target::kReference)));
  std::vector<float> part_shares(out.candidates.size() * (1 + kHeads) * kPageTokens);
  out.selected.resize(out.candidates.size());
  const auto row = static_cast<std::size_t>(request * Batch::kLists + list) * static_cast<std::size_t>(batch.candidates);
  const auto logits =
      contiguous(batch.logits.data() + row * kHeads * kPageTokens, out.candidates.size(), kHeads, kPageTokens);
  out.selected.resize(static_cast<std::size_t>(select_parts(batch.config, always, out.candidates, logits, shares,
                                                            part_shares, order, out.selected, Target::kReference)));
  out.skipped.resize(kHeads);
  sum_skipped(batch.config, always, out.candidates, part_shares, out.selected, shares, out.skipped);
  out.completed.resize(static_cast<std::size_t>(batch.completed));
  out.completed.resize(
      static_cast<std::size_t>(select_completion(batch.config, always, out.selected, share, order, out.completed)));
  return out;
}

/// Selects twice for a batch, by `select(args)`, over memory that `Array` has where that works.
template <template <class> class Array, class Select>
void check_selection(const Case& c, const std::vector<std::int32_t>& contexts, const Select& select) {
  constexpr int kHeads = Batch::kHeads;
  constexpr int kLists = Batch::kLists;
  const Batch batch(c, contexts);
  const auto requests = static_cast<int>(batch.context_tokens.size());
  const int query_heads = kLists * kHeads;
  const Geometry geometry{64, kLists, query_heads, 0.125F};
  const int longest = *std::max_element(contexts.begin(), contexts.end());

  const Array<std::int32_t> lengths(batch.context_tokens);
  const Array<float> log_mass(batch.log_mass);
  const Array<float> states(batch.states);
  const Array<float> logits(batch.logits);
  const auto capacity = static_cast<std::size_t>(batch.candidates);
  const auto most_completed = static_cast<std::size_t>(batch.completed);
  const auto lists = static_cast<std::size_t>(requests * kLists);
  const Array<std::int32_t> candidates(lists * capacity);
  const Array<std::int32_t> num_candidates(lists);
  const Array<SelectedPage> selected(lists * capacity);
  const Array<std::int32_t> num_selected(lists);
  const Array<SelectedPage> completed(lists * most_completed);
  const Array<std::int32_t> num_completed(lists);
  const Array<float> skipped(static_cast<std::size_t>(requests * query_heads));
  const Array<float> coverage(static_cast<std::size_t>(requests * query_heads));
  const Array<std::byte> workspace(cuda::select_workspace_bytes(batch.config, geometry, requests, kLists, longest));

  cuda::SelectArgs args;
  args.config = batch.config;
  args.context_tokens = lengths.span();
  args.num_lists = kLists;
  args.log_mass = contiguous<const float>(log_mass.data(), requests, query_heads, batch.pages);
  args.states = contiguous(states.data(), requests, query_heads, 2);
  args.logits = contiguous<const float>(logits.data(), requests, kLists, batch.candidates, kHeads, kPageTokens);
  args.candidates = contiguous(candidates.data(), requests, kLists, batch.candidates);
  args.num_candidates = contiguous(num_candidates.data(), requests, kLists);
  args.selected = contiguous(selected.data(), requests, kLists, batch.candidates);
  args.num_selected = contiguous(num_selected.data(), requests, kLists);
  args.completed = contiguous(completed.data(), requests, kLists, batch.completed);
  args.num_completed = contiguous(num_completed.data(), requests, kLists);
  args.skipped_log_mass = contiguous(skipped.data(), requests, query_heads);
  args.coverage = contiguous(coverage.data(), requests, query_heads);
  args.workspace = workspace.span();

  for (int round = 0; round < 2; ++round) {  // the second finds what the first left in the workspace
    select(args);
    const auto got_candidates = candidates.read();
    const auto got_num_candidates = num_candidates.read();
    const auto got_selected = selected.read();
    const auto got_num_selected = num_selected.read();
    const auto got_completed = completed.read();
    const auto got_num_completed = num_completed.read();
    const auto got_skipped = skipped.read();
    for (int request = 0; request < requests; ++request) {
      for (int list = 0; list < kLists; ++list) {
        SCOPED_TRACE(testing::Message() << "round " << round << " request " << request << " list " << list);
        const Chosen want = expected(batch, request, list);
        const auto at = static_cast<std::size_t>(request * kLists + list);
        const auto row = [&](const auto& all, std::size_t stride, std::int32_t count) {
          return std::vector(all.begin() + static_cast<std::ptrdiff_t>(at * stride),
                             all.begin() + static_cast<std::ptrdiff_t>(at * stride) + count);
        };
        ASSERT_EQ(got_num_candidates[at], static_cast<std::int32_t>(want.candidates.size()));
        ASSERT_EQ(row(got_candidates, capacity, got_num_candidates[at]), want.candidates);
        ASSERT_EQ(got_num_selected[at], static_cast<std::int32_t>(want.selected.size()));
        ASSERT_EQ(row(got_selected, capacity, got_num_selected[at]), want.selected);
        ASSERT_EQ(got_num_completed[at], static_cast<std::int32_t>(want.completed.size()));
        ASSERT_EQ(row(got_completed, most_completed, got_num_completed[at]), want.completed);
        for (std::size_t head = 0; head < want.skipped.size(); ++head) {
          const float got = got_skipped[at * kHeads + head];
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want.skipped[head])) << got;
        }
      }
    }
  }
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int part : {1, 2, 4, 8, 16}) {
    for (const int special : {0, 1, 2, 3, 4, 5, 6}) {
      all.push_back({part, 128, 0.1F, GroupCombine::kSum, special});
      all.push_back({part, 1000, 0.0F, GroupCombine::kMax, special});
      all.push_back({part, 4096, 1.0F, GroupCombine::kSum, special});
    }
  }
  return all;
}

}  // namespace locks::test::selection
