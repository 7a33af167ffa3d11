#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "locks/attend.h"
#include "locks/rotation.h"
#include "support/data.h"
#include "support/summaries.h"

namespace locks {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kEps = 0x1p-24;
constexpr int kKvHeads = 2;
constexpr int kPages = 40;
constexpr int kListed = 13;

/// Completion of some pages of the second request, KV head 1, for `heads` query heads from the second on.
struct Case {
  test::CacheData keys;
  test::CacheData values;
  test::SummaryData summaries;
  test::TableData table;
  std::vector<SelectedPage> completed;
  std::vector<float> logits;
  std::vector<float> log_mass;
  std::vector<float> scratch;
  CompleteArgs args;

  Case(const SummaryFormat& format, int head_dim, int heads, std::uint64_t seed = 1)
      : keys(DType::kF16, test::Layout::kTokenMajor, kPages, kKvHeads, head_dim, 16, test::Content::kLowRank, seed),
        values(DType::kF16, test::Layout::kTokenMajor, kPages, kKvHeads, head_dim, 16, test::Content::kLowRank, seed + 1),
        summaries(format, head_dim, kKvHeads, keys.view(), &values.view(), supported_targets().back()),
        table({100, 30 * kPageTokens}, kPages, 16, seed + 2),
        logits(test::normal_floats(static_cast<std::size_t>(kListed * heads * kPageTokens), seed + 3, 6.0F)),
        log_mass(test::normal_floats(static_cast<std::size_t>(heads), seed + 4)),
        scratch(complete_scratch_floats(head_dim, heads), NAN) {
    std::mt19937_64 random(seed);
    const std::uint16_t masks[] = {kWholePage, 0x0001, 0x8000, 0xFFF0, 0x0F0F, 0};
    for (int i = 0; i < kListed; ++i) {
      completed.push_back({2 * i + 1, i < 6 ? masks[i] : static_cast<std::uint16_t>(random())});
    }
    args.head_dim = head_dim;
    args.summaries = summaries.store();
    args.table = table.table;
    args.request = 1;
    args.kv_head = 1;
    args.first_query_head = 1;
    args.completed = completed;
    args.logits = contiguous<const float>(logits.data(), kListed, heads, kPageTokens);
    args.skipped_log_mass = log_mass;
    args.scratch = scratch;
  }
  [[nodiscard]] int heads() const { return static_cast<int>(log_mass.size()); }
};

struct States {
  int head_dim;
  std::vector<float> floats;
  SoftmaxStates view;

  States(int head_dim, int heads) : head_dim(head_dim), floats(static_cast<std::size_t>(2 * heads * (2 + head_dim)), 0.0F) {
    view = contiguous(floats.data(), 2, heads, 2 + head_dim);
    for (std::size_t i = 0; i < floats.size(); i += static_cast<std::size_t>(2 + head_dim)) floats[i] = -kInfinity;
  }
  [[nodiscard]] std::vector<float> output(int head) const {
    std::vector<float> out(static_cast<std::size_t>(head_dim));
    finish(view, 1, head, out);
    return out;
  }
};

/// The mean of decoded values under softmax weights, by the formula, and what float arithmetic may lose: a weight
/// 2e-7 + |logit - max| eps, the sums over tokens, ranks and pages (16 + 16 + pages + 8) eps of what is added, and the
/// rotation back (10 eps), which spreads a vector's errors over all dimensions.
void expect_head(const Case& c, int head, const std::vector<float>& got, const std::string& what) {
  const SummaryFormat& format = *c.args.summaries.format;
  double max = -kInfinity;
  for (int i = 0; i < kListed; ++i) {
    for (int token = 0; token < kPageTokens; ++token) {
      if ((c.completed[i].mask >> token & 1) != 0) max = std::max(max, double{c.args.logits(i, head, token)});
    }
  }
  double mass = 0.0;
  std::vector<double> sum(static_cast<std::size_t>(c.args.head_dim));
  double error = 0.0;
  for (int i = 0; i < kListed; ++i) {
    const std::int64_t page = c.table.table.page(1, c.completed[i].page);
    const DecodedSummary keys = c.summaries.decoded(page, 1);
    const DecodedValues values = c.summaries.decoded_values(page, 1);
    for (int token = 0; token < kPageTokens; ++token) {
      if ((c.completed[i].mask >> token & 1) == 0) continue;
      const double logit = c.args.logits(i, head, token);
      const double weight = std::exp(logit - max);
      mass += weight;
      for (int dim = 0; dim < c.args.head_dim; ++dim) {
        double value = values.mean[dim];
        double size = std::abs(value);
        for (int rank = 0; rank < format.rank; ++rank) {
          value += values.slopes[rank][dim] * keys.coefficients[token][rank];
          size += std::abs(values.slopes[rank][dim] * keys.coefficients[token][rank]);
        }
        sum[dim] += weight * value;
        error += weight * size * (2 * (2e-7 + (max - logit) * kEps) + (16 + 16 + kListed + 8 + 10) * kEps);
      }
    }
  }
  std::vector<float> want(static_cast<std::size_t>(c.args.head_dim));
  for (int dim = 0; dim < c.args.head_dim; ++dim) want[dim] = static_cast<float>(sum[dim] / mass);
  rotate_back(want);
  const double bound = error / mass / std::sqrt(16.0);  // blocks of the rotation are 16 or more dimensions
  std::size_t worst = 0;
  for (std::size_t dim = 0; dim < got.size(); ++dim) {
    if (!(std::abs(got[dim] - want[dim]) <= std::abs(got[worst] - want[worst]))) worst = dim;
  }
  EXPECT_LE(std::abs(got[worst] - want[worst]), bound)
      << what << ": worst index " << worst << ", got " << got[worst] << ", want " << want[worst] << ", bound " << bound;
}

class CompleteTest : public testing::TestWithParam<std::tuple<const SummaryFormat*, int>> {};

TEST_P(CompleteTest, MatchesTheFormula) {
  const auto [format, head_dim] = GetParam();
  for (const int heads : {1, 4, 7}) {
    Case c(*format, head_dim, heads, static_cast<std::uint64_t>(heads));
    for (const Target target : supported_targets()) {
      States states(head_dim, heads + 1);
      complete(c.args, states.view, target);
      for (int head = 0; head < heads; ++head) {
        const std::string what =
            std::string(target_name(target)) + ", head " + std::to_string(head) + " of " + std::to_string(heads);
        EXPECT_EQ(states.view(1, head + 1, 0), c.log_mass[head]) << what;  // all the skipped mass, and no more
        EXPECT_EQ(states.view(1, head + 1, 1), 1.0F) << what;
        expect_head(c, head, states.output(head + 1), what);
      }
      EXPECT_EQ(states.view(1, 0, 0), -kInfinity);  // other heads and requests stay as they were
      EXPECT_EQ(states.view(0, 1, 0), -kInfinity);
    }
  }
}

/// With exact logits, and values that are what the record says, attending nothing and completing everything is dense
/// attention over the decoded keys and values.
TEST_P(CompleteTest, CompletingEverythingIsDenseAttentionOverTheDecodedPages) {
  const auto [format, head_dim] = GetParam();
  Case c(*format, head_dim, 1);
  const std::vector<float> query = test::normal_floats(static_cast<std::size_t>(head_dim), 9);
  std::vector<float> rotated = query;
  if (format->rotated) rotate(rotated);
  double max = -kInfinity;
  std::vector<std::vector<float>> token_values;
  std::vector<double> token_logits;
  for (int i = 0; i < kListed; ++i) {
    c.completed[i].mask = kWholePage;
    const std::int64_t page = c.table.table.page(1, c.completed[i].page);
    const DecodedSummary keys = c.summaries.decoded(page, 1);
    const DecodedValues values = c.summaries.decoded_values(page, 1);
    for (int token = 0; token < kPageTokens; ++token) {
      double logit = 0.0;
      std::vector<float> value(static_cast<std::size_t>(head_dim));
      for (int dim = 0; dim < head_dim; ++dim) {
        double key = keys.mean[dim];
        double sum = values.mean[dim];
        for (int rank = 0; rank < format->rank; ++rank) {
          key += keys.basis[rank][dim] * keys.coefficients[token][rank];
          sum += values.slopes[rank][dim] * keys.coefficients[token][rank];
        }
        logit += rotated[dim] * key / std::sqrt(head_dim);
        value[dim] = static_cast<float>(sum);
      }
      rotate_back(value);
      c.logits[static_cast<std::size_t>(i * kPageTokens + token)] = static_cast<float>(logit);
      token_logits.push_back(logit);
      token_values.push_back(value);
      max = std::max(max, logit);
    }
  }
  double mass = 0.0;
  for (const double logit : token_logits) mass += std::exp(logit - max);
  c.log_mass[0] = static_cast<float>(max + std::log(mass));
  for (const Target target : supported_targets()) {
    States states(head_dim, 2);
    complete(c.args, states.view, target);
    const std::vector<float> got = states.output(1);
    for (int dim = 0; dim < head_dim; ++dim) {
      double want = 0.0;
      for (std::size_t i = 0; i < token_logits.size(); ++i)
        want += std::exp(token_logits[i] - max) / mass * token_values[i][dim];
      EXPECT_NEAR(got[dim], want, 2e-5) << target_name(target) << ", dimension " << dim;
    }
  }
}

std::vector<std::tuple<const SummaryFormat*, int>> record_kinds() {
  std::vector<std::tuple<const SummaryFormat*, int>> kinds;
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) kinds.emplace_back(format, head_dim);
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Records, CompleteTest, testing::ValuesIn(record_kinds()), [](const auto& info) {
  return std::string(std::get<0>(info.param)->name) + "_" + std::to_string(std::get<1>(info.param));
});

class CompleteTargetTest : public testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Targets, CompleteTargetTest, testing::ValuesIn(test::simd_targets()),
                         [](const auto& info) { return std::string(target_name(info.param)); });

TEST_P(CompleteTargetTest, MergesWithWhatWasAttended) {
  Case c(kGraded8, 64, 2);
  States alone(64, 3);
  complete(c.args, alone.view, GetParam());
  States both(64, 3);
  const std::vector<float> attended = test::normal_floats(66, 8);
  std::copy(attended.begin(), attended.end(), both.view.at(1, 1, 0));
  both.view(1, 1, 1) = 3.0F;
  std::vector<float> want(alone.view.at(1, 1, 0), alone.view.at(1, 1, 0) + 66);
  merge_state(want, std::span<const float>(both.view.at(1, 1, 0), 66));
  complete(c.args, both.view, GetParam());
  EXPECT_EQ(std::vector<float>(both.view.at(1, 1, 0), both.view.at(1, 1, 0) + 66), want);
}

TEST_P(CompleteTargetTest, MergesNothingWithoutMassOrTokens) {
  const States untouched(64, 3);
  Case c(kGraded8, 64, 2);
  c.log_mass = {-kInfinity, -kInfinity};
  c.args.skipped_log_mass = c.log_mass;
  States states(64, 3);
  complete(c.args, states.view, GetParam());
  EXPECT_EQ(states.floats, untouched.floats);

  Case no_tokens(kGraded8, 64, 2);
  for (SelectedPage& entry : no_tokens.completed) entry.mask = 0;
  complete(no_tokens.args, states.view, GetParam());
  EXPECT_EQ(states.floats, untouched.floats);

  Case no_pages(kGraded8, 64, 2);
  no_pages.args.completed = {};
  complete(no_pages.args, states.view, GetParam());
  EXPECT_EQ(states.floats, untouched.floats);

  Case no_weight(kGraded8, 64, 2);
  std::fill(no_weight.logits.begin(), no_weight.logits.end(), -kInfinity);
  complete(no_weight.args, states.view, GetParam());
  EXPECT_EQ(states.floats, untouched.floats);
}

TEST_P(CompleteTargetTest, LooksAtNoLogitOutsideTheMask) {
  Case clean(kGraded12, 128, 3);
  Case poisoned(kGraded12, 128, 3);
  for (std::size_t i = 0; i < poisoned.logits.size(); ++i) {
    const std::size_t entry = i / (3 * kPageTokens);
    if ((poisoned.completed[entry].mask >> (i % kPageTokens) & 1) == 0) poisoned.logits[i] = i % 2 == 0 ? NAN : kInfinity;
  }
  States a(128, 4);
  States b(128, 4);
  complete(clean.args, a.view, GetParam());
  complete(poisoned.args, b.view, GetParam());
  EXPECT_EQ(a.floats, b.floats);
}

TEST_P(CompleteTargetTest, HugeAndBrokenLogits) {
  Case c(kGraded8, 64, 3);
  for (std::size_t i = 0; i < c.logits.size(); ++i)
    c.logits[i] = i / kPageTokens % 3 == 0 ? 1e4F * c.logits[i] : c.logits[i];
  c.args.logits.data = c.logits.data();
  c.logits[kPageTokens] = NAN;  // head 1, first page
  States states(64, 4);
  complete(c.args, states.view, GetParam());
  expect_head(c, 0, states.output(1), "logits of 1e4");
  EXPECT_TRUE(std::isnan(states.output(2)[0]));
  expect_head(c, 2, states.output(3), "the head beside NaN");
}

}  // namespace
}  // namespace locks
