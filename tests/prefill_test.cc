#include "locks/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "locks/thread_pool.h"
#include "support/data.h"

namespace locks {
namespace {

constexpr double kUnit = 0x1p-24;  // of float rounding

struct Shape {
  int head_dim = 64;
  int kv_heads = 2;
  int group = 3;
  DType keys = DType::kF16;
  DType values = DType::kF16;
  test::Layout layout = test::Layout::kTokenMajor;
  int block_tokens = 16;
  test::Content content = test::Content::kNormal;
  float query_deviation = 1.0F;
};

/// A prompt over its own cache; queries and outputs have gaps between rows and heads.
class Prompt {
 public:
  Prompt(const Shape& shape, std::vector<std::int32_t> row_tokens)
      : shape_(shape),
        row_tokens_(std::move(row_tokens)),
        context_(row_tokens_.empty() ? 1 : *std::max_element(row_tokens_.begin(), row_tokens_.end())),
        pages_((context_ + 63) / 64 * 4 + 8),
        keys_(shape.keys, shape.layout, pages_, shape.kv_heads, shape.head_dim, shape.block_tokens, shape.content, 11),
        values_(shape.values, shape.layout, pages_, shape.kv_heads, shape.head_dim, shape.block_tokens, shape.content, 12),
        table_({context_}, pages_, shape.block_tokens, 13),
        rows_(static_cast<int>(row_tokens_.size())),
        heads_(shape.kv_heads * shape.group),
        head_stride_(shape.head_dim + 3),
        row_stride_(heads_ * head_stride_ + 5),
        queries_(test::normal_floats(static_cast<std::size_t>(rows_) * row_stride_ + 1, 14, shape.query_deviation)) {}

  [[nodiscard]] PrefillArgs args(std::vector<float>& out, std::span<std::byte> workspace) const {
    PrefillArgs args;
    args.geometry = {shape_.head_dim, shape_.kv_heads, heads_, 1.0F / std::sqrt(static_cast<float>(shape_.head_dim))};
    args.queries = {queries_.data(), {rows_, heads_, shape_.head_dim}, {row_stride_, head_stride_, 1}};
    args.keys = keys_.view();
    args.values = values_.view();
    args.blocks = table_.blocks;
    args.row_tokens = row_tokens_;
    args.out = {out.data(), {rows_, heads_, shape_.head_dim}, {row_stride_, head_stride_, 1}};
    args.workspace = workspace;
    return args;
  }
  [[nodiscard]] std::vector<float> run(Target target, int threads = 1) const {
    std::vector<float> out(queries_.size(), kUntouched);
    const Geometry geometry{shape_.head_dim, shape_.kv_heads, heads_, 1.0F};
    test::Workspace workspace(prefill_workspace_bytes(geometry, threads));
    const PrefillArgs arguments = args(out, workspace.span());
    check_prefill(arguments);
    ThreadPool pool(threads);
    pool.run([&](Team team) { prefill(arguments, team, target); });
    return out;
  }
  [[nodiscard]] std::int64_t page(int token) const { return table_.table.page(0, token / kPageTokens); }
  [[nodiscard]] std::size_t at(int row, int head, int dim) const {
    return static_cast<std::size_t>(row) * row_stride_ + static_cast<std::size_t>(head) * head_stride_ + dim;
  }
  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] int heads() const { return heads_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] float query(int row, int head, int dim) const { return queries_[at(row, head, dim)]; }
  test::CacheData& keys() { return keys_; }
  test::CacheData& values() { return values_; }

  /// Compares with the reference within what float arithmetic earns. The result is sum w v / sum w, so weights w (1 + e)
  /// move it by at most sum w |e| |v - result| / sum w (1 - |e|). A weight's e is that of its logit (a sum of head_dim
  /// products of rounded factors, less the reference) and of the exponential (2e-7); a weight below 2^-126 may become 0.
  /// Sums over the context add rounding in proportion to their length.
  void expect_matches(const std::vector<float>& got, const std::vector<float>& want) const {
    double worst = 0.0;
    std::string report;
    std::vector<float> keys;
    std::vector<float> values;
    for (int head = 0; head < heads_; ++head) {
      if (head % shape_.group == 0) {
        keys = gathered(keys_, head / shape_.group);
        values = gathered(values_, head / shape_.group);
      }
      for (int row = 0; row < rows_; ++row) {
        // Bounds cost as much as the reference itself: of long prompts take every seventh row and the last ones.
        if (rows_ > 50 && row % 7 != 0 && row + 3 < rows_) continue;
        const Weights weights = weigh(row, head, keys);
        for (int dim = 0; dim < shape_.head_dim; ++dim) {
          const double wanted = want[at(row, head, dim)];
          // The reference shares its paging with the code under test, but not with this; else it is the same arithmetic.
          ASSERT_NEAR(wanted, mean(weights, values, dim), 0x1p-23 * std::abs(wanted) + 1e-44)
              << "the reference at row " << row << " head " << head << " dim " << dim;
          const double bound = error_bound(weights, values, dim, wanted);
          const double error = std::abs(got[at(row, head, dim)] - wanted);
          if (error <= worst * bound) continue;
          worst = error / bound >= 0.0 ? error / bound : std::numeric_limits<double>::infinity();
          report = "row " + std::to_string(row) + " head " + std::to_string(head) + " dim " + std::to_string(dim) +
                   ": got " + std::to_string(got[at(row, head, dim)]) + ", want " + std::to_string(wanted) + ", bound " +
                   std::to_string(bound);
        }
      }
    }
    EXPECT_LE(worst, 1.0) << report;
  }

  static constexpr float kUntouched = -77.0F;

 private:
  struct Weights {
    std::vector<double> weight;  // exp(logit - largest), of every token that the row sees
    std::vector<double> error;   // of the weight, absolute
    double total = 0.0;
    double least_total = 0.0;  // with every weight as small as its error allows
  };

  /// [context, head_dim] of one KV head.
  [[nodiscard]] std::vector<float> gathered(const test::CacheData& cache, int kv_head) const {
    std::vector<float> all;
    for (int token = 0; token < context_; ++token) {
      for (int dim = 0; dim < shape_.head_dim; ++dim) {
        all.push_back(cache.value(page(token), token % kPageTokens, kv_head, dim));
      }
    }
    return all;
  }

  [[nodiscard]] Weights weigh(int row, int head, const std::vector<float>& keys) const {
    const int tokens = row_tokens_[row];
    const auto scale = static_cast<double>(1.0F / std::sqrt(static_cast<float>(shape_.head_dim)));
    std::vector<double> logits(tokens);
    std::vector<double> sizes(tokens);
    double largest = -std::numeric_limits<double>::infinity();
    double largest_size = 0.0;
    for (int token = 0; token < tokens; ++token) {
      for (int dim = 0; dim < shape_.head_dim; ++dim) {
        const double product = static_cast<double>(queries_[at(row, head, dim)]) * keys[token * shape_.head_dim + dim];
        logits[token] += product;
        sizes[token] += std::abs(product) * scale;
      }
      logits[token] *= scale;
      largest = std::max(largest, logits[token]);
      largest_size = std::max(largest_size, std::abs(logits[token]));
    }
    Weights weights;
    for (int token = 0; token < tokens; ++token) {
      const double exponent_error = (shape_.head_dim + 6) * kUnit * sizes[token] + 4 * kUnit * largest_size + 2e-7;
      const double weight = std::exp(logits[token] - largest);
      const double most = std::exp(std::min(logits[token] - largest + exponent_error, 700.0));
      weights.weight.push_back(weight);
      weights.error.push_back(most - weight + 0x1p-126);
      weights.total += weight;
      weights.least_total += std::max(0.0, weight - weights.error.back());
    }
    return weights;
  }
  [[nodiscard]] double mean(const Weights& weights, const std::vector<float>& values, int dim) const {
    double sum = 0.0;
    for (std::size_t token = 0; token < weights.weight.size(); ++token) {
      sum += weights.weight[token] * values[token * shape_.head_dim + dim];
    }
    return sum / weights.total;
  }
  [[nodiscard]] double error_bound(const Weights& weights, const std::vector<float>& values, int dim, double wanted) const {
    double moved = 0.0;
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    double sizes = 0.0;
    const auto tokens = static_cast<int>(weights.weight.size());
    for (int token = 0; token < tokens; ++token) {
      const double value = values[token * shape_.head_dim + dim];
      moved += weights.error[token] * std::abs(value - wanted);
      sizes += weights.weight[token] * std::abs(value);
      low = std::min(low, value);
      high = std::max(high, value);
    }
    // Whatever the weights are, the result is among the values.
    const bool any_weights = moved >= (high - low) * weights.least_total;
    const double largest_size = any_weights ? std::max(std::abs(low), std::abs(high)) : sizes / weights.total;
    return (any_weights ? high - low : moved / weights.least_total) + (2.0 * tokens + 4) * kUnit * largest_size + 1e-44;
  }

  Shape shape_;
  std::vector<std::int32_t> row_tokens_;
  std::int32_t context_;
  int pages_;
  test::CacheData keys_;
  test::CacheData values_;
  test::TableData table_;
  int rows_;
  int heads_;
  std::int64_t head_stride_;
  std::int64_t row_stride_;
  std::vector<float> queries_;
};

/// Rows of a prompt whose first token is preceded by `before` others.
std::vector<std::int32_t> ascending(int rows, int before) {
  std::vector<std::int32_t> tokens(rows);
  for (int row = 0; row < rows; ++row) tokens[row] = before + row + 1;
  return tokens;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class PrefillTest : public testing::TestWithParam<Target> {
 protected:
  static void expect_matches_reference(const Shape& shape, std::vector<std::int32_t> row_tokens) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim) + ", group " + std::to_string(shape.group) + ", keys " +
                 std::string(dtype_name(shape.keys)) + ", values " + std::string(dtype_name(shape.values)) + ", layout " +
                 std::to_string(static_cast<int>(shape.layout)) + ", block_tokens " + std::to_string(shape.block_tokens) +
                 ", content " + std::to_string(static_cast<int>(shape.content)) + ", rows " +
                 std::to_string(row_tokens.size()));
    const Prompt prompt(shape, std::move(row_tokens));
    prompt.expect_matches(prompt.run(GetParam()), prompt.run(Target::kReference));
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, PrefillTest, testing::ValuesIn(test::simd_targets()),
                         [](const auto& info) { return std::string(target_name(info.param)); });

TEST_P(PrefillTest, MatchesReferenceForEveryDimensionAndType) {
  for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
      if (dtype == DType::kQ8_0 && head_dim % kQ8BlockElements != 0) continue;
      expect_matches_reference({.head_dim = head_dim, .keys = dtype, .values = dtype}, ascending(7, 150));
    }
  }
}

TEST_P(PrefillTest, MatchesReferenceForEveryLayout) {
  for (const auto layout :
       {test::Layout::kTokenMajor, test::Layout::kHeadMajor, test::Layout::kGaps, test::Layout::kScattered}) {
    for (const int block_tokens : {16, 32, 64}) {
      if (layout == test::Layout::kScattered && block_tokens != 16) continue;
      expect_matches_reference(
          {.keys = DType::kQ8_0, .values = DType::kBF16, .layout = layout, .block_tokens = block_tokens}, ascending(7, 130));
    }
  }
}

TEST_P(PrefillTest, MatchesReferenceForEveryGroupSize) {
  for (const int group : {1, 2, 3, 4, 5, 8, 71, 500}) {
    expect_matches_reference({.kv_heads = group > 8 ? 1 : 2, .group = group}, ascending(2, 20));
  }
}

TEST_P(PrefillTest, MatchesReferenceForEveryNumberOfRows) {
  for (const int rows : {1, 2, 7, 64}) {
    expect_matches_reference({.kv_heads = 1}, ascending(rows, 0));
    expect_matches_reference({.kv_heads = 1, .keys = DType::kBF16}, ascending(rows, 1000));
  }
  expect_matches_reference({.kv_heads = 1, .group = 1}, ascending(513, 0));
  expect_matches_reference({.kv_heads = 1, .group = 2, .keys = DType::kF32}, ascending(513, 200));
}

TEST_P(PrefillTest, RowsComeInAnyOrder) {
  expect_matches_reference({}, std::vector<std::int32_t>(9, 300));
  std::vector<std::int32_t> tokens = ascending(150, 0);
  std::reverse(tokens.begin(), tokens.end());
  expect_matches_reference({.kv_heads = 1}, tokens);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937_64(1));
  expect_matches_reference({.kv_heads = 1}, tokens);
  expect_matches_reference({}, {1, 700, 1, 128, 129, 127, 256, 16, 17});
}

TEST_P(PrefillTest, MatchesReferenceForHostileContents) {
  for (const auto content : {test::Content::kLowRank, test::Content::kConstant, test::Content::kZero, test::Content::kHuge,
                             test::Content::kDenormal, test::Content::kOneOutlier}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      expect_matches_reference({.keys = dtype, .values = dtype, .content = content}, ascending(20, 250));
    }
  }
}

TEST_P(PrefillTest, LogitsOfThousandsAreNoTrouble) {
  for (const float deviation : {100.0F, 1000.0F}) {
    expect_matches_reference({.keys = DType::kF32, .values = DType::kF32, .query_deviation = deviation}, ascending(30, 400));
  }
}

/// Logits of one row that rise or fall from block to block by hundreds, around 0 or far from it.
TEST_P(PrefillTest, LogitsMayRiseOrFallAllAlong) {
  for (const int direction : {-1, 1}) {
    for (const int turn : {-500, 300, 1100}) {
      Prompt prompt({.kv_heads = 1, .group = 1, .keys = DType::kF32, .values = DType::kF32}, ascending(3, 600));
      for (int token = 0; token < 603; ++token) {
        for (int dim = 0; dim < 64; ++dim) {
          const float key = prompt.query(2, 0, dim) * static_cast<float>(direction * (token - turn)) / 8.0F;
          prompt.keys().set_value(prompt.page(token), token % kPageTokens, 0, dim, key);
        }
      }
      prompt.expect_matches(prompt.run(GetParam()), prompt.run(Target::kReference));
    }
  }
}

/// Two tokens, logits 0 and x, values 0 and 1: the result is w / (1 + w), w = exp(x), with no other rounding than x's own
/// (2 units of it), the exponential's (2e-7) and a few of the sum, the quotient and the product.
TEST_P(PrefillTest, WeightsAreAccurate) {
  constexpr int kRows = 4001;
  test::CacheData keys(DType::kF32, test::Layout::kTokenMajor, 1, 1, 64, 16, test::Content::kZero, 1);
  test::CacheData values(DType::kF32, test::Layout::kTokenMajor, 1, 1, 64, 16, test::Content::kZero, 1);
  keys.set_value(0, 1, 0, 9, 1.0F);
  values.set_value(0, 1, 0, 0, 1.0F);
  std::vector<float> queries(kRows * 64);
  for (int row = 0; row < kRows; ++row) queries[row * 64 + 9] = static_cast<float>(row - 3700) / 43.0F;
  std::vector<float> out(queries.size());
  const std::vector<std::int32_t> blocks{0};
  const std::vector<std::int32_t> row_tokens(kRows, 2);
  PrefillArgs args;
  args.geometry = {64, 1, 1, 1.0F};
  args.queries = contiguous<const float>(queries.data(), kRows, 1, 64);
  args.keys = keys.view();
  args.values = values.view();
  args.blocks = blocks;
  args.row_tokens = row_tokens;
  args.out = contiguous(out.data(), kRows, 1, 64);
  test::Workspace workspace(prefill_workspace_bytes(args.geometry, 1));
  args.workspace = workspace.span();
  check_prefill(args);
  prefill(args, Team{}, GetParam());
  for (int row = 0; row < kRows; ++row) {
    const double x = queries[row * 64 + 9];
    const double want = std::exp(x) / (1.0 + std::exp(x));
    const double bound = want * (2 * kUnit * std::abs(x) + 2e-7 + 4 * kUnit);
    ASSERT_NEAR(out[row * 64], want, bound) << "x = " << x;
  }
}

TEST_P(PrefillTest, EqualLogitsGiveTheMeanOfTheValues) {
  Prompt prompt({.keys = DType::kF32, .values = DType::kF32, .content = test::Content::kZero}, ascending(200, 0));
  for (int token = 0; token < 200; ++token) {
    prompt.values().set_value(prompt.page(token), token % kPageTokens, 1, 5, static_cast<float>(token));
  }
  for (const Target target : {GetParam(), Target::kReference}) {
    const std::vector<float> out = prompt.run(target);
    for (int row = 0; row < 200; ++row) EXPECT_FLOAT_EQ(out[prompt.at(row, 4, 5)], static_cast<float>(row) / 2.0F);
  }
}

TEST_P(PrefillTest, TeamSizeChangesNoBit) {
  const Prompt prompt({.group = 3}, ascending(150, 70));
  const std::vector<float> alone = prompt.run(GetParam());
  for (const int threads : {2, 3, 7}) EXPECT_TRUE(same_bits(alone, prompt.run(GetParam(), threads))) << threads;
}

TEST_P(PrefillTest, ReferenceTeamSizeChangesNoBit) {
  const Prompt prompt({.group = 3}, ascending(20, 5));
  EXPECT_TRUE(same_bits(prompt.run(Target::kReference), prompt.run(Target::kReference, 7)));
}

TEST_P(PrefillTest, RowsDoNotDependOnEachOther) {
  const std::vector<std::int32_t> tokens{5, 400, 130, 131, 1, 128, 16};
  const Prompt together({.block_tokens = 32}, tokens);
  const std::vector<float> out = together.run(GetParam());
  std::vector<float> one(out.size(), Prompt::kUntouched);
  for (int row = 0; row < together.rows(); ++row) {
    test::Workspace workspace(prefill_workspace_bytes({64, 2, 6, 1.0F}, 1));
    PrefillArgs args = together.args(one, workspace.span());
    args.queries.data = args.queries.at(row);
    args.out.data = args.out.at(row);
    args.queries.shape[0] = args.out.shape[0] = 1;
    args.row_tokens = args.row_tokens.subspan(row, 1);
    check_prefill(args);
    prefill(args, Team{}, GetParam());
  }
  EXPECT_TRUE(same_bits(out, one));
  for (int head = 0; head < 6; ++head) {
    EXPECT_EQ(out[together.at(6, head, 64)], Prompt::kUntouched) << "a gap between heads was written";
  }
}

TEST_P(PrefillTest, WhatIsNotFiniteReachesOnlyRowsThatSeeIt) {
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (const float bad : bad_values) {
    for (const bool in_keys : {true, false}) {
      const Shape shape{.kv_heads = 1, .keys = DType::kF32, .values = DType::kF32};
      Prompt prompt(shape, ascending(20, 125));
      const std::vector<float> clean = prompt.run(GetParam());
      auto& cache = in_keys ? prompt.keys() : prompt.values();
      for (const int token : {134, 145}) cache.set_value(prompt.page(token), token % kPageTokens, 0, 3, bad);
      const std::vector<float> out = prompt.run(GetParam());
      for (int row = 0; row < 20; ++row) {
        const bool sees = 125 + row + 1 > 134;
        for (int head = 0; head < 3; ++head) {
          const std::size_t at = prompt.at(row, head, 3);
          if (!sees) {
            EXPECT_EQ(std::memcmp(&out[at], &clean[at], sizeof(float)), 0) << row;
          } else if (!in_keys || std::isnan(bad)) {
            EXPECT_FALSE(std::isfinite(out[at])) << row;
          }
        }
      }
    }
  }
}

TEST_P(PrefillTest, NoRowsAreNoWork) {
  PrefillArgs args;
  args.geometry = {64, 2, 6, 0.125F};
  check_prefill(args);
  test::Workspace workspace(prefill_workspace_bytes(args.geometry, 1));
  args.workspace = workspace.span();
  prefill(args, Team{}, GetParam());
}

/// The message of check_prefill after `change`.
template <class Change>
std::string refusal(const Change& change) {
  const Prompt prompt({}, ascending(4, 30));
  std::vector<float> out(4 * 6 * 80);
  test::Workspace workspace(prefill_workspace_bytes({64, 2, 6, 1.0F}, 1));
  PrefillArgs args = prompt.args(out, workspace.span());
  check_prefill(args);
  change(args);
  try {
    check_prefill(args);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PrefillCheck, NamesTheArgument) {
  std::vector<std::int32_t> tokens{3, 0, 3, 3};
  EXPECT_EQ(refusal([&](PrefillArgs& args) { args.row_tokens = tokens; }),
            "row_tokens[1]: expected 1 to 48 tokens (3 blocks), got 0");
  tokens = {3, 3, 49, 3};
  EXPECT_EQ(refusal([&](PrefillArgs& args) { args.row_tokens = tokens; }),
            "row_tokens[2]: expected 1 to 48 tokens (3 blocks), got 49");
  const std::vector<std::int32_t> blocks{0, 4000, 1};
  EXPECT_EQ(refusal([&](PrefillArgs& args) { args.blocks = blocks; }).substr(0, 10), "blocks[1]:");
  EXPECT_EQ(
      refusal([](PrefillArgs& args) { args.queries.shape[1] = 5; }),
      "queries: expected [row_tokens, query_heads, head_dim] = [4, 6, 64] with a contiguous last axis, got [4, 5, 64] with "
      "last stride 1");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.out.stride[2] = 2; }).substr(0, 4), "out:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.out.shape[0] = 3; }).substr(0, 4), "out:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.keys.data = nullptr; }), "keys: expected data, got a null pointer");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.values.dtype = DType::kE4M3; }).substr(0, 13), "values.dtype:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.values.token_stride = 4; }).substr(0, 20), "values.token_stride:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.values.block_tokens = 32; }),
            "values.block_tokens: expected that of the keys, 16, got 32");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.workspace = args.workspace.first(64); }).substr(0, 10), "workspace:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.workspace = args.workspace.subspan(4); }).substr(0, 10), "workspace:");
  EXPECT_EQ(refusal([](PrefillArgs& args) { args.geometry.query_heads = 7; }).substr(0, 12), "query_heads:");
}

TEST(PrefillCheck, NamesTheSlotAndTheTeamTooLargeForTheWorkspace) {
  const Prompt prompt({.layout = test::Layout::kScattered}, ascending(4, 30));
  std::vector<float> out(4 * 6 * 80);
  test::Workspace workspace(prefill_workspace_bytes({64, 2, 6, 1.0F}, 1));
  PrefillArgs args = prompt.args(out, workspace.span());
  check_prefill(args);
  EXPECT_THROW(prefill(args, Team{0, 2, nullptr}, Target::kScalar), std::invalid_argument);
  args.keys.num_slots = 1;
  EXPECT_THROW(check_prefill(args), std::invalid_argument);
}

}  // namespace
}  // namespace locks
