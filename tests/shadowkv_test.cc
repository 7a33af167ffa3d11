// ShadowKV against its formulas: the rotary embedding and the factorisation by keys that have the rank, the landmarks and
// outliers by the index sets.
#include <array>
#include <limits>

#include <gtest/gtest.h>

#include "selectors/rotary.h"
#include "support/selectors.h"

namespace locks::test {
namespace {

double bf16(double value) {
  if (value == 0.0) return 0.0;
  const double unit = std::ldexp(1.0, std::ilogb(value) - 7);
  return std::nearbyint(value / unit) * unit;
}

TEST(Rotary, TurnsPairsByThePositionAndBack) {
  for (const bool interleaved : {true, false}) {
    const selectors::Rotary rotary({.base = 100.0, .dims = 4, .interleaved = interleaved}, 6);
    std::array<float, 6> row{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
    rotary.turn(3, row.data());
    const double first = 3.0;          // radians
    const double second = 3.0 / 10.0;  // 100^(-2/4)
    const std::array<int, 4> at = interleaved ? std::array{0, 1, 2, 3} : std::array{0, 2, 1, 3};
    const std::array<double, 4> before{static_cast<double>(at[0] + 1), static_cast<double>(at[1] + 1),
                                       static_cast<double>(at[2] + 1), static_cast<double>(at[3] + 1)};
    EXPECT_NEAR(row[static_cast<std::size_t>(at[0])], before[0] * std::cos(first) - before[1] * std::sin(first), 1e-5);
    EXPECT_NEAR(row[static_cast<std::size_t>(at[1])], before[0] * std::sin(first) + before[1] * std::cos(first), 1e-5);
    EXPECT_NEAR(row[static_cast<std::size_t>(at[2])], before[2] * std::cos(second) - before[3] * std::sin(second), 1e-5);
    EXPECT_NEAR(row[static_cast<std::size_t>(at[3])], before[2] * std::sin(second) + before[3] * std::cos(second), 1e-5);
    EXPECT_EQ(row[4], 5.0F) << "dimensions beyond those that turn";
    rotary.turn(-3, row.data());
    for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], static_cast<float>(i + 1), 1e-5F);
  }
}

class ShadowKvTest : public testing::Test {
 protected:
  static constexpr int kTokens = 811;  // 810 of prompt: 97 chunks, and a tail of 34 tokens
  static constexpr int kChunks = 97;
  ShadowKvTest() : data({.head_dim = 64, .kv_heads = 2, .group = 2, .dtype = DType::kF32, .lengths = {kTokens}}) {
    // Keys of rank 12 over both heads, then turned by their positions.
    const auto basis = normal_floats(12 * 128, 5, 0.5F);
    const auto factors = normal_floats(12 * kTokens, 6, 0.5F);
    const selectors::Rotary rotary(rope(), 64);
    for (int token = 0; token < kTokens; ++token) {
      for (int kv_head = 0; kv_head < 2; ++kv_head) {
        std::array<float, 64> row{};
        for (int r = 0; r < 12; ++r) {
          for (std::size_t dim = 0; dim < 64; ++dim) {
            row[dim] += factors[static_cast<std::size_t>(token * 12 + r)] *
                        basis[static_cast<std::size_t>(r * 128 + kv_head * 64) + dim];
          }
        }
        rotary.turn(token, row.data());
        const auto page = data.table.table.page(0, token / 16);
        for (int dim = 0; dim < 64; ++dim)
          data.keys.set_value(page, token % 16, kv_head, dim, row[static_cast<std::size_t>(dim)]);
      }
    }
  }
  [[nodiscard]] static RopeConfig rope() { return {.base = 500.0, .interleaved = true}; }
  [[nodiscard]] Selection select(int budget, int rank, int outliers, int kv_head, const RopeConfig& with) const {
    SelectorConfig config = config_of("shadowkv", budget);
    config.rank = rank;
    config.outlier_chunks = outliers;
    config.rope = with;
    const View1 view(data, 0, kTokens);
    const auto selector = make_selector(config, data.geometry);
    selector->begin_step(view.sequence);
    selector->append(view.sequence, kv_head);
    return selector->select(view.sequence, kv_head, queries_of(data, 0, kv_head));
  }
  /// Attention over what is selected: the listed tokens exactly, and what stands in.
  [[nodiscard]] double largest_error(const Selection& selection, int kv_head) const {
    const Plain plain(data, 0, kv_head);
    double worst = 0.0;
    for (int head = 0; head < 2; ++head) {
      std::vector<double> sum(64);
      const std::vector<float>& state = selection.stand_in[static_cast<std::size_t>(head)];
      const double stand_in = state[1] > 0.0F ? std::exp(static_cast<double>(state[0])) : 0.0;
      double total = stand_in * static_cast<double>(state[1]);
      for (int dim = 0; dim < 64; ++dim) {
        sum[static_cast<std::size_t>(dim)] = stand_in * static_cast<double>(state[static_cast<std::size_t>(2 + dim)]);
      }
      for (const int token : tokens_in(selection.lists[0])) {
        const double weight = std::exp(plain.logit(head, token));
        total += weight;
        for (int dim = 0; dim < 64; ++dim) sum[static_cast<std::size_t>(dim)] += weight * plain.value(token, dim);
      }
      const Vector weights = plain.weights(head);
      for (int dim = 0; dim < 64; ++dim) {
        double expected = 0.0;
        for (int token = 0; token < kTokens; ++token)
          expected += weights[static_cast<std::size_t>(token)] * plain.value(token, dim);
        worst = std::max(worst, std::abs(sum[static_cast<std::size_t>(dim)] / total - expected));
      }
    }
    return worst;
  }
  StepData data;
};

TEST_F(ShadowKvTest, AllChunksWithEnoughRankAreDenseAttention) {
  // Both factors are rounded to bf16: 2^-9 of each of 12 products in a key, and keys of size 1 make logits of size 1.
  EXPECT_LT(largest_error(select(8 * kChunks, 12, 5, 1, rope()), 1), 0.02);
  EXPECT_GT(largest_error(select(8 * kChunks, 4, 5, 1, rope()), 1), 0.05) << "rank 4 is not enough";
  RopeConfig other = rope();
  other.interleaved = false;
  EXPECT_GT(largest_error(select(8 * kChunks, 12, 5, 1, other), 1), 0.05) << "the embedding of another model";
}

TEST_F(ShadowKvTest, TakesTheChunksWhoseLandmarksAnyQueryHeadLooksAt) {
  constexpr int kOutliers = 6;
  constexpr int kBudget = 160;
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    const Plain plain(data, 0, kv_head);
    std::vector<Vector> landmarks;
    Vector unlike;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Vector& landmark = landmarks.emplace_back(64);
      for (int dim = 0; dim < 64; ++dim) {
        for (int i = 0; i < 8; ++i) landmark[static_cast<std::size_t>(dim)] += plain.key(chunk * 8 + i, dim) / 8.0;
        landmark[static_cast<std::size_t>(dim)] = bf16(landmark[static_cast<std::size_t>(dim)]);
      }
      double least = 2.0;
      for (int i = 0; i < 8; ++i) {
        double product = 0.0;
        double key = 0.0;
        double mark = 0.0;
        for (int dim = 0; dim < 64; ++dim) {
          product += plain.key(chunk * 8 + i, dim) * landmark[static_cast<std::size_t>(dim)];
          key += std::pow(plain.key(chunk * 8 + i, dim), 2.0);
          mark += std::pow(landmark[static_cast<std::size_t>(dim)], 2.0);
        }
        least = std::min(least, product / std::sqrt(key * mark));
      }
      unlike.push_back(-least);
    }
    const std::vector<int> outliers = best(unlike, kOutliers);
    std::vector<int> others;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!std::binary_search(outliers.begin(), outliers.end(), chunk)) others.push_back(chunk);
    }
    Vector most(others.size());
    for (int head = 0; head < 2; ++head) {
      Vector weights;
      double total = 0.0;
      for (const int chunk : others) {
        double logit = 0.0;
        for (int dim = 0; dim < 64; ++dim)
          logit += plain.query(head, dim) * landmarks[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(dim)];
        weights.push_back(std::exp(logit * static_cast<double>(data.geometry.softmax_scale)));
        total += weights.back();
      }
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], bf16(weights[i] / total));
    }
    const Selection got = select(kBudget, 12, kOutliers, kv_head, rope());
    std::vector<int> exact;
    for (const int chunk : outliers) {
      for (int i = 0; i < 8; ++i) exact.push_back(chunk * 8 + i);
    }
    for (int token = kChunks * 8; token < kTokens; ++token) exact.push_back(token);
    EXPECT_EQ(tokens_in(got.lists[0]), exact);
    EXPECT_EQ(got.stand_in_tokens, kBudget);

    // What stands in is the attention over the chunks chosen.
    for (int head = 0; head < 2; ++head) {
      double total = 0.0;
      Vector sum(64);
      for (const int i : best(most, kBudget / 8)) {
        for (int token = others[static_cast<std::size_t>(i)] * 8; token < others[static_cast<std::size_t>(i)] * 8 + 8;
             ++token) {
          const double weight = std::exp(plain.logit(head, token));
          total += weight;
          for (int dim = 0; dim < 64; ++dim) sum[static_cast<std::size_t>(dim)] += weight * plain.value(token, dim);
        }
      }
      const std::vector<float>& state = got.stand_in[static_cast<std::size_t>(head)];
      EXPECT_NEAR(std::log(static_cast<double>(state[1])) + static_cast<double>(state[0]), std::log(total), 0.02);
      for (std::size_t dim = 0; dim < 64; ++dim) EXPECT_NEAR(state[2 + dim] / state[1], sum[dim] / total, 0.02);
    }
  }
}

TEST_F(ShadowKvTest, AKeyThatIsNotFiniteSpoilsNoOtherHead) {
  data.keys.set_value(data.table.table.page(0, 3), 2, 0, 7, std::numeric_limits<float>::quiet_NaN());
  const Selection got = select(160, 12, 6, 1, rope());
  for (const std::vector<float>& state : got.stand_in) {
    EXPECT_GT(state[1], 0.0F);
    EXPECT_TRUE(std::ranges::all_of(state, [](float number) { return std::isfinite(number); }));
  }
}

TEST_F(ShadowKvTest, TokensBehindThePromptAreAttendedAndNeverIndexed) {
  SelectorConfig config = config_of("shadowkv", 160);
  config.outlier_chunks = 0;
  const auto selector = make_selector(config, data.geometry);
  const std::vector<float> queries = normal_floats(2 * 64, 9);
  const View1 prompt(data, 0, 500);
  for (int kv_head = 0; kv_head < 2; ++kv_head)
    selector->read_prompt(prompt.sequence, kv_head, contiguous(queries.data(), 1, 2, 64));
  const View1 now(data, 0, kTokens);
  selector->begin_step(now.sequence);
  selector->append(now.sequence, 0);
  const Selection got = selector->select(now.sequence, 0, queries_of(data, 0, 0));
  const int first_exact = (500 / 8 - 4) * 8;
  std::vector<int> expected(static_cast<std::size_t>(kTokens - first_exact));
  std::iota(expected.begin(), expected.end(), first_exact);
  EXPECT_EQ(tokens_in(got.lists[0]), expected);
}

}  // namespace
}  // namespace locks::test
