// RocketKV against its formulas: the division of its budget, what it evicts, and what it selects.
#include <set>

#include <gtest/gtest.h>

#include "selectors/rocketkv.h"
#include "support/selectors.h"

namespace locks::test {
namespace {

TEST(RocketKv, DividesItsBudgetAsWorkedByHand) {
  struct Worked {
    int budget, all, kept, page, channels;  // all: prompt and new tokens
  };
  // With 128 new tokens and 128 dimensions.
  for (const Worked& row :
       {Worked{256, 16384, 1467, 3, 61}, Worked{256, 131072, 1168, 3, 75}, Worked{512, 32768, 3063, 3, 61},
        Worked{1024, 32768, 5664, 3, 67}, Worked{1024, 131072, 6344, 3, 60}, Worked{2048, 32768, 9546, 3, 81},
        Worked{2048, 131072, 12637, 3, 61}, Worked{4096, 131072, 23042, 3, 67}}) {
    const auto sizes = selectors::rocket_sizes(row.budget, row.all - 128, 128, 128);
    EXPECT_EQ(sizes.kept_tokens, row.kept) << row.budget << " of " << row.all;
    EXPECT_EQ(sizes.page_tokens, row.page) << row.budget << " of " << row.all;
    EXPECT_EQ(sizes.channels, row.channels) << row.budget << " of " << row.all;
    EXPECT_EQ(sizes.attended_tokens, row.budget / 2);
  }
  // A budget for everything: nothing is evicted, every token and channel is scored.
  const auto everything = selectors::rocket_sizes(2 * 1128, 1000, 128, 64);
  EXPECT_EQ(everything.kept_tokens, 1000);
  EXPECT_EQ(everything.page_tokens, 1);
  EXPECT_EQ(everything.channels, 64);
  EXPECT_EQ(everything.attended_tokens, 1128);
}

/// A prompt read in two pieces, then some steps.
class RocketKvAtWork : public testing::Test {
 protected:
  static constexpr int kPrompt = 900;
  static constexpr int kTokens = 905;
  static constexpr int kBudget = 128;
  RocketKvAtWork()
      : data({.head_dim = 64, .kv_heads = 2, .group = 3, .lengths = {kTokens}}),
        prompt_queries(normal_floats(40 * 3 * 64, 77, 2.0F)) {}

  [[nodiscard]] std::unique_ptr<Selector> read(int kv_head, bool multi_turn = false) const {
    SelectorConfig config = config_of("rocketkv", kBudget);
    config.multi_turn = multi_turn;
    auto selector = make_selector(config, data.geometry);
    const auto piece = [&](int tokens, int first_row, int rows) {
      const View1 view(data, 0, tokens);
      selector->read_prompt(view.sequence, kv_head, contiguous(prompt_queries.data() + first_row * 3 * 64, rows, 3, 64));
    };
    piece(kPrompt - 10, 0, 30);
    piece(kPrompt, 30, 10);
    return selector;
  }
  [[nodiscard]] Vector softmax(Vector logits) const {
    const double most = *std::max_element(logits.begin(), logits.end());
    double total = 0.0;
    for (double& logit : logits) total += logit = std::exp(logit - most);
    for (double& logit : logits) logit /= total;
    return logits;
  }
  /// The tokens kept of the prompt: watched by its last 32 queries, pooled over 63.
  [[nodiscard]] std::vector<int> kept(const Plain& plain, int keep) const {
    Vector sum(kPrompt);
    for (int row = 8; row < 40; ++row) {
      for (int head = 0; head < 3; ++head) {
        Vector logits;
        for (int token = 0; token < kPrompt - 40 + row + 1; ++token) {
          double dot = 0.0;
          for (int dim = 0; dim < 64; ++dim) {
            dot += static_cast<double>(prompt_queries[static_cast<std::size_t>((row * 3 + head) * 64 + dim)]) *
                   plain.key(token, dim);
          }
          logits.push_back(dot * static_cast<double>(data.geometry.softmax_scale));
        }
        const Vector weights = softmax(logits);
        for (std::size_t token = 0; token < weights.size(); ++token) sum[token] += weights[token];
      }
    }
    Vector pooled;
    for (int token = 0; token < kPrompt - 32; ++token) {
      double most = 0.0;
      for (int near = std::max(0, token - 31); near <= std::min(kPrompt - 33, token + 31); ++near) {
        most = std::max(most, sum[static_cast<std::size_t>(near)]);
      }
      pooled.push_back(most);
    }
    std::vector<int> out = best(pooled, keep - 32);
    for (int token = kPrompt - 32; token < kPrompt; ++token) out.push_back(token);
    return out;
  }
  StepData data;
  std::vector<float> prompt_queries;
};

TEST_F(RocketKvAtWork, KeepsWhatThePromptsEndLooksAtAndScoresTheRestByChannels) {
  const auto sizes = selectors::rocket_sizes(kBudget, kPrompt, 128, 64);
  ASSERT_LT(sizes.kept_tokens, kPrompt);
  ASSERT_LT(sizes.channels, 64);
  ASSERT_GT(sizes.page_tokens, 1);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    const Plain plain(data, 0, kv_head);
    std::vector<int> left = kept(plain, sizes.kept_tokens);
    for (int token = kPrompt; token < kTokens; ++token) left.push_back(token);

    Vector strength(64);
    Vector sum(64);
    for (int head = 0; head < 3; ++head) {
      for (int dim = 0; dim < 64; ++dim) {
        strength[static_cast<std::size_t>(dim)] += std::abs(plain.query(head, dim));
        sum[static_cast<std::size_t>(dim)] += plain.query(head, dim);
      }
    }
    const std::vector<int> channels = best(strength, sizes.channels);
    Vector share(left.size());
    for (int head = 0; head < 3; ++head) {
      double inside = 0.0;
      double all = 0.0;
      for (const int dim : channels) inside += std::abs(plain.query(head, dim));
      for (int dim = 0; dim < 64; ++dim) all += std::abs(plain.query(head, dim));
      Vector logits;
      for (std::size_t i = 0; i < left.size(); ++i) {
        const std::size_t first = i - i % static_cast<std::size_t>(sizes.page_tokens);
        double score = 0.0;
        for (const int dim : channels) {
          double bound = plain.key(left[first], dim);
          for (std::size_t j = first; j < std::min(left.size(), first + static_cast<std::size_t>(sizes.page_tokens)); ++j) {
            bound = sum[static_cast<std::size_t>(dim)] > 0 ? std::max(bound, plain.key(left[j], dim))
                                                           : std::min(bound, plain.key(left[j], dim));
          }
          score += plain.query(head, dim) * bound;
        }
        logits.push_back(score / std::sqrt(64.0 * inside / all));
      }
      const Vector weights = softmax(logits);
      for (std::size_t i = 0; i < share.size(); ++i) share[i] += weights[i];
    }
    // Tokens of a page tie in exact arithmetic; in double they might not.
    for (std::size_t i = 0; i < share.size(); ++i) share[i] = share[i - i % static_cast<std::size_t>(sizes.page_tokens)];
    std::vector<int> expected;
    for (const int i : best(share, kBudget / 2)) expected.push_back(left[static_cast<std::size_t>(i)]);

    const auto selector = read(kv_head);
    for (int tokens = kPrompt + 1; tokens <= kTokens; ++tokens) {
      const View1 view(data, 0, tokens);
      selector->append(view.sequence, kv_head);
    }
    const View1 view(data, 0, kTokens);
    EXPECT_EQ(tokens_in(selector->select(view.sequence, kv_head, queries_of(data, 0, kv_head)).lists[0]), expected);
  }
}

TEST_F(RocketKvAtWork, QueriesOfAnEarlierTurnJudgeNoLaterOne) {
  SelectorConfig config = config_of("rocketkv", kBudget);
  const View1 first_turn(data, 0, 50);
  const View1 end(data, 0, kTokens);
  const auto two_turns = make_selector(config, data.geometry);
  const auto one_turn = make_selector(config, data.geometry);
  // Short enough to be kept whole; its last queries are of no use to the next turn, which is shorter than the window.
  two_turns->read_prompt(first_turn.sequence, 0, contiguous(prompt_queries.data(), 30, 3, 64));
  two_turns->append(first_turn.sequence, 0);
  EXPECT_TRUE(one_turn->lacks_prompt());
  for (Selector* const selector : {two_turns.get(), one_turn.get()}) {
    selector->read_prompt(end.sequence, 0, contiguous(prompt_queries.data() + 30 * 3 * 64, 10, 3, 64));
    EXPECT_FALSE(selector->lacks_prompt());
    selector->append(end.sequence, 0);
  }
  const auto queries = queries_of(data, 0, 0);
  EXPECT_EQ(two_turns->select(end.sequence, 0, queries).lists, one_turn->select(end.sequence, 0, queries).lists);
}

TEST_F(RocketKvAtWork, WhatWasEvictedStaysGoneButForTheMultiTurnVariant) {
  const View1 end(data, 0, kTokens);
  for (const bool multi_turn : {false, true}) {
    const auto selector = read(0, multi_turn);
    const View1 first_turn(data, 0, kPrompt);
    selector->append(first_turn.sequence, 0);
    std::set<int> before;
    for (int i = 0; i < 30; ++i) {  // queries of many kinds show what is left
      const auto queries = normal_floats(3 * 64, static_cast<std::uint64_t>(i), 2.0F);
      for (const int token :
           tokens_in(selector->select(first_turn.sequence, 0, contiguous(queries.data(), 3, 64)).lists[0])) {
        before.insert(token);
      }
    }
    selector->read_prompt(end.sequence, 0, contiguous(prompt_queries.data() + 100, 5, 3, 64));
    selector->append(end.sequence, 0);
    bool back = false;
    const auto sizes = selectors::rocket_sizes(kBudget, kPrompt, 128, 64);
    const Plain plain(data, 0, 0);
    const std::vector<int> kept_first = kept(plain, sizes.kept_tokens);
    for (int i = 0; i < 30; ++i) {
      const auto queries = normal_floats(3 * 64, static_cast<std::uint64_t>(i), 2.0F);
      for (const int token : tokens_in(selector->select(end.sequence, 0, contiguous(queries.data(), 3, 64)).lists[0])) {
        back = back || (token < kPrompt && !std::binary_search(kept_first.begin(), kept_first.end(), token));
      }
    }
    EXPECT_EQ(back, multi_turn);
    for (const int token : before) EXPECT_TRUE(std::binary_search(kept_first.begin(), kept_first.end(), token));
  }
}

}  // namespace
}  // namespace locks::test
