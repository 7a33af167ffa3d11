// What a selection by ranks must give: the pages with the largest scores, as the selectors on the CPU take them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "locks/cuda.h"
#include "selectors/support.h"

namespace locks::test::ranks {

/// What the scores are.
enum class Scores { kNormal, kTies, kNoNumbers, kNearlyEqual, kAllSame, kAnySize };
inline constexpr Scores kAllScores[] = {Scores::kNormal,      Scores::kTies,    Scores::kNoNumbers,
                                        Scores::kNearlyEqual, Scores::kAllSame, Scores::kAnySize};

inline std::vector<float> make_scores(Scores kind, std::size_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0F, -0.0F};
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal(-20.0F, 100.0F);
  std::vector<float> scores(count);
  for (float& score : scores) {
    score = normal(random);
    if (kind == Scores::kTies) score = std::round(score / 50.0F);
    if (kind == Scores::kNoNumbers && random() % 3 != 0) score = kSpecial[random() % 5];
    if (kind == Scores::kNearlyEqual) score = -300.0F + std::round(score) * 0x1p-15F;
    if (kind == Scores::kAllSame) score = 7.0F;
    if (kind == Scores::kAnySize) score = std::ldexp(score, static_cast<int>(random() % 200) - 100);
  }
  return scores;
}

/// Selects with the rule of Quest, by `select(args)`, over memory that `Array` has where that works.
template <template <class> class Array, class Select>
void check_ranks(Scores kind, const std::vector<std::int32_t>& contexts, int budget, const Select& select) {
  constexpr int kLists = 3;
  SelectConfig config;
  config.budget_tokens = budget;
  config.sink_tokens = 0;
  config.recent_tokens = 1;
  config.part_tokens = kPageTokens;
  config.completion_fraction = 0.0F;
  const auto requests = static_cast<std::int64_t>(contexts.size());
  const int longest = *std::max_element(contexts.begin(), contexts.end());
  const int pages = longest / kPageTokens;
  const int capacity = select_limits(config, longest).candidate_pages;
  const std::vector<float> host = make_scores(kind, static_cast<std::size_t>(requests * kLists * pages));
  const auto lists = static_cast<std::size_t>(requests * kLists);
  const Array<std::int32_t> lengths(contexts);
  const Array<float> scores(host);
  const Array<float> states(2 * lists);
  const Array<std::int32_t> candidates(lists * static_cast<std::size_t>(capacity));
  const Array<SelectedPage> selected(lists * static_cast<std::size_t>(capacity));
  const Array<std::int32_t> num_candidates(lists);
  const Array<std::int32_t> num_selected(lists);
  const Array<std::int32_t> num_completed(lists);
  const Array<float> skipped(lists);
  const Array<float> coverage(lists);
  const Array<std::byte> workspace(
      cuda::select_workspace_bytes(config, {64, kLists, kLists, 0.125F}, static_cast<int>(requests), kLists, longest));
  cuda::SelectArgs args;
  args.config = config;
  args.context_tokens = lengths.span();
  args.num_lists = kLists;
  args.log_mass = contiguous<const float>(scores.data(), requests, kLists, pages);
  args.states = contiguous(states.data(), requests, kLists, 2);
  args.candidates = contiguous(candidates.data(), requests, kLists, capacity);
  args.num_candidates = contiguous(num_candidates.data(), requests, kLists);
  args.selected = contiguous(selected.data(), requests, kLists, capacity);
  args.num_selected = contiguous(num_selected.data(), requests, kLists);
  args.num_completed = contiguous(num_completed.data(), requests, kLists);
  args.skipped_log_mass = contiguous(skipped.data(), requests, kLists);
  args.coverage = contiguous(coverage.data(), requests, kLists);
  args.workspace = workspace.span();
  select(args);
  const auto got = selected.read();
  const auto counts = num_selected.read();
  for (std::size_t list = 0; list < lists; ++list) {
    SCOPED_TRACE(testing::Message() << "scores " << static_cast<int>(kind) << " list " << list);
    const int tokens = contexts[list / kLists];
    std::vector<std::int32_t> want;
    if (tokens > budget) {
      const auto selectable = static_cast<std::size_t>((tokens - 1) / kPageTokens);
      want =
          selectors::largest({host.data() + list * static_cast<std::size_t>(pages), selectable}, budget / kPageTokens - 1);
    }
    ASSERT_EQ(counts[list], static_cast<std::int32_t>(want.size()));
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[list * static_cast<std::size_t>(capacity) + i], (SelectedPage{want[i], kWholePage})) << i;
    }
  }
}

}  // namespace locks::test::ranks
