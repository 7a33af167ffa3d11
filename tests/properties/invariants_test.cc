// What must hold whatever the data: order, shifts, budgets, and what is always attended.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "support/step.h"

namespace locks {
namespace {

struct Choice {
  std::vector<std::int32_t> candidates;
  std::vector<SelectedPage> selected;
  std::vector<SelectedPage> completed;
  std::vector<float> share;
  double coverage = 0.0;
};

constexpr int kHeads = 3;
constexpr int kPages = 200;

struct Scores {
  std::vector<float> token_logits;  // [pages, heads, 16]
  std::vector<float> always = std::vector<float>(kHeads, 3.0F);
};

Scores random_scores(std::uint64_t seed) {
  Scores scores;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int page = 0; page < kPages; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      const float mean = 2.0F * normal(random);
      for (int token = 0; token < kPageTokens; ++token) scores.token_logits.push_back(mean + normal(random));
    }
  }
  return scores;
}

Choice choose(const SelectConfig& config, const Scores& scores) {
  const AlwaysAttended always = always_attended(config, kPages * kPageTokens);
  std::vector<float> log_mass(kHeads * kPages), log_norm(kHeads), selectable(kHeads), skipped(kHeads);
  for (int page = 0; page < kPages; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      const float* logits = &scores.token_logits[(page * kHeads + head) * kPageTokens];
      const float peak = *std::max_element(logits, logits + kPageTokens);
      double sum = 0.0;
      for (int token = 0; token < kPageTokens; ++token) sum += std::exp(double{logits[token]} - peak);
      log_mass[head * kPages + page] = static_cast<float>(peak + std::log(sum));
    }
  }
  Choice choice;
  choice.share.resize(kPages);
  choice.candidates.resize(kPages);
  choice.completed.resize(kPages);
  std::vector<std::int32_t> order(kPages * kPageTokens);
  const auto view = contiguous(log_mass.data(), kHeads, kPages);
  const ListShares shares{view, log_norm, choice.share, selectable};
  const Target target = supported_targets().back();
  choice.candidates.resize(select_pages(config, always, {view, scores.always}, shares, order, choice.candidates, target));
  std::vector<float> logits, parts((1 + kHeads) * kPages * kPageTokens);
  for (const std::int32_t page : choice.candidates) {
    const auto first = scores.token_logits.begin() + page * kHeads * kPageTokens;
    logits.insert(logits.end(), first, first + kHeads * kPageTokens);
  }
  const auto by_token = contiguous<const float>(logits.data(), choice.candidates.size(), kHeads, kPageTokens);
  choice.selected.resize(choice.candidates.size());
  choice.selected.resize(
      select_parts(config, always, choice.candidates, by_token, shares, parts, order, choice.selected, target));
  sum_skipped(config, always, choice.candidates, parts, choice.selected, shares, skipped);
  choice.completed.resize(select_completion(config, always, choice.selected, choice.share, order, choice.completed));
  for (int head = 0; head < kHeads; ++head)
    choice.coverage += (1.0 - std::exp(double{skipped[head]} - log_norm[head])) / kHeads;
  return choice;
}

SelectConfig config_of(int budget, int part) {
  SelectConfig config;
  config.budget_tokens = budget;
  config.part_tokens = part;
  return config;
}

TEST(Invariants, AddingAConstantToAllLogitsChangesNoSelection) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Scores scores = random_scores(seed);
    for (const float shift : {-60.0F, -1.5F, 0.25F, 40.0F}) {
      Scores shifted = scores;
      for (float& logit : shifted.token_logits) logit += shift;
      for (float& mass : shifted.always) mass += shift;
      const Choice a = choose(config_of(256, 4), scores);
      const Choice b = choose(config_of(256, 4), shifted);
      EXPECT_EQ(a.candidates, b.candidates);
      EXPECT_EQ(a.selected, b.selected);
      EXPECT_EQ(a.completed, b.completed);
    }
  }
}

TEST(Invariants, PermutingThePagesPermutesTheSelection) {
  std::mt19937_64 random(7);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Scores scores = random_scores(seed);
    const SelectConfig config = config_of(256, 4);
    const AlwaysAttended always = always_attended(config, kPages * kPageTokens);
    std::vector<std::int32_t> moved(kPages);  // page i goes to moved[i]
    std::iota(moved.begin(), moved.end(), 0);
    std::shuffle(moved.begin() + always.sink_pages, moved.begin() + always.first_recent_page, random);
    Scores permuted = scores;
    for (int page = 0; page < kPages; ++page) {
      std::copy_n(scores.token_logits.begin() + page * kHeads * kPageTokens, kHeads * kPageTokens,
                  permuted.token_logits.begin() + moved[page] * kHeads * kPageTokens);
    }
    const auto sorted = [&](std::vector<SelectedPage> list, bool move) {
      for (SelectedPage& entry : list) entry.page = move ? moved[entry.page] : entry.page;
      std::sort(list.begin(), list.end(), [](const SelectedPage& a, const SelectedPage& b) { return a.page < b.page; });
      return list;
    };
    const Choice a = choose(config, scores);
    const Choice b = choose(config, permuted);
    EXPECT_EQ(sorted(a.selected, true), b.selected);
    EXPECT_EQ(sorted(a.completed, true), b.completed);
  }
}

TEST(Invariants, ALargerBudgetSelectsMore) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Scores scores = random_scores(seed);
    std::set<std::int32_t> smaller;
    double coverage = 0.0;
    for (int budget = 128; budget < kPages * kPageTokens; budget += 112) {
      const Choice choice = choose(config_of(budget, kPageTokens), scores);
      const std::set<std::int32_t> larger(choice.candidates.begin(), choice.candidates.end());
      EXPECT_TRUE(std::includes(larger.begin(), larger.end(), smaller.begin(), smaller.end())) << budget;
      EXPECT_GE(choice.coverage, coverage) << budget;
      smaller = larger;
      coverage = choice.coverage;
    }
  }
}

/// Smaller parts hold at least as much mass: a selection of coarse parts is also one of fine parts.
TEST(Invariants, SmallerPartsCoverMore) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Scores scores = random_scores(seed);
    double coarser = 0.0;
    for (const int part : {8, 4, 2, 1}) {
      SelectConfig config = config_of(256, part);
      config.candidate_factor = 1e6F;  // every page is a candidate
      const double coverage = choose(config, scores).coverage;
      EXPECT_GE(coverage, coarser - 1e-6) << part;
      coarser = coverage;
    }
  }
}

/// With keys of zero every attended token has the same weight, so a marked value shows in the output.
TEST(Invariants, SinkRecentTokensAndTailAreAlwaysAttended) {
  test::StepSpec spec;
  spec.content = test::Content::kZero;
  spec.dtype = DType::kF32;
  spec.kv_heads = 1;
  spec.group = 1;
  constexpr int kContext = 1003;
  spec.lengths = {kContext};
  DecodeConfig config;
  config.select.budget_tokens = 160;
  config.select.completion_fraction = 0.0F;
  config.min_context_tokens = 0;
  test::StepData data(spec);
  for (std::int64_t page = 0; page < data.values.view().num_pages; ++page) {
    for (int token = 0; token < kPageTokens; ++token) data.values.set_value(page, token, 0, 0, 0.0F);
  }
  for (const int part : {4, 16}) {
    config.select.part_tokens = part;
    for (const int token : {0, 7, 15, kContext - 64, kContext - 20, kContext - 12, kContext - 11, kContext - 1}) {
      const std::int64_t page = data.table.table.page(0, token / kPageTokens);
      data.values.set_value(page, token % kPageTokens, 0, 0, 1000.0F);
      EXPECT_GT(test::run_step(config, data, supported_targets().back(), 1).out[0], 1000.0F / 161) << token;
      data.values.set_value(page, token % kPageTokens, 0, 0, 0.0F);
    }
  }
}

TEST(Invariants, AnUnreachableBudgetGivesDenseAttention) {
  test::StepSpec spec;
  spec.lengths = {1500, 333};
  const test::StepData data(spec);
  DecodeConfig config;
  config.min_context_tokens = 0;
  for (const int budget : {1500, 100000}) {
    config.select.budget_tokens = budget;
    const test::StepResult whole = test::run_step(config, data, supported_targets().back(), 2);
    const test::ExpectedStep dense = test::expected_step(config, data, Target::kReference);
    for (std::size_t i = 0; i < whole.out.size(); ++i) ASSERT_NEAR(whole.out[i], dense.out[i], dense.bound[i]) << i;
  }
}

std::vector<float> state_of(std::mt19937_64& random, int head_dim, int tokens) {
  std::normal_distribution<float> normal;
  std::vector<float> state(2 + head_dim);
  state[0] = -std::numeric_limits<float>::infinity();
  for (int token = 0; token < tokens; ++token) {
    std::vector<float> one(2 + head_dim, 1.0F);
    one[0] = 20.0F * normal(random);
    for (int dim = 0; dim < head_dim; ++dim) one[2 + dim] = normal(random);
    merge_state(state, one);
  }
  return state;
}

TEST(Invariants, StatesMergeInAnyOrderAndGrouping) {
  std::mt19937_64 random(8);
  constexpr int kDim = 16;
  for (int round = 0; round < 100; ++round) {
    const auto a = state_of(random, kDim, 3);
    const auto b = state_of(random, kDim, static_cast<int>(random() % 3));
    const auto c = state_of(random, kDim, 2);
    const auto merged = [](std::vector<float> into, const std::vector<float>& from) {
      merge_state(into, from);
      return into;
    };
    EXPECT_EQ(merged(a, b), merged(b, a));
    EXPECT_EQ(merged(a, state_of(random, kDim, 0)), a);
    const auto left = merged(merged(a, b), c);
    const auto right = merged(a, merged(b, c));
    EXPECT_EQ(left[0], right[0]);
    // Three merges: each rescales once and adds once, with an exp of error 1e-7.
    for (int i = 1; i < 2 + kDim; ++i) EXPECT_NEAR(left[i], right[i], 1e-6F * (left[1] * 4.0F));
  }
}

}  // namespace
}  // namespace locks
