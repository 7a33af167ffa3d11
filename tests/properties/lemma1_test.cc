// Lemma 1. Among rankings that do not look at the values, ranking by mass has the smallest worst-case output error.
//
// Why. Let p be the tokens' attention weights, P the weight of what is selected, |v| <= 1. The output from the selection is
// sum of p v over it, divided by P; its distance from the dense output is
//     | (1 - 1/P) sum_selected p v + sum_skipped p v | <= (1/P - 1) P + (1 - P) = 2 (1 - P),
// and v = u on what is selected and -u on what is skipped reaches this. So the worst case is 2 (1 - P) for every selection,
// and the largest P has the smallest. For any other selection there are values for which it errs more than ranking by
// mass does for any values at all.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "locks/select.h"

namespace locks {
namespace {

constexpr int kPages = 9;
constexpr int kSelected = 3;
constexpr int kTokens = kPages * kPageTokens;
constexpr int kDim = 3;
using Values = std::vector<std::vector<double>>;  // [tokens][kDim], of length at most 1

std::vector<double> softmax(const std::vector<double>& logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (const double logit : logits) weights.push_back(std::exp(logit - peak));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

bool has(unsigned set, int token) { return (set >> (token / kPageTokens) & 1U) != 0; }

double mass(const std::vector<double>& weights, unsigned set) {
  double sum = 0.0;
  for (int token = 0; token < kTokens; ++token) sum += has(set, token) ? weights[token] : 0.0;
  return sum;
}

/// Length of (output of the selection - dense output).
double error(const std::vector<double>& weights, unsigned set, const Values& values) {
  const double selected = mass(weights, set);
  double squares = 0.0;
  for (int dim = 0; dim < kDim; ++dim) {
    double difference = 0.0;
    for (int token = 0; token < kTokens; ++token) {
      difference += (has(set, token) ? 1.0 / selected - 1.0 : -1.0) * weights[token] * values[token][dim];
    }
    squares += difference * difference;
  }
  return std::sqrt(squares);
}

Values worst_values(unsigned set) {
  Values values(kTokens, std::vector<double>(kDim));
  for (int token = 0; token < kTokens; ++token) values[token][1] = has(set, token) ? 1.0 : -1.0;
  return values;
}

Values random_values(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Values values(kTokens, std::vector<double>(kDim));
  for (auto& value : values) {
    double length = 0.0;
    for (double& component : value) {
      component = normal(random);
      length += component * component;
    }
    for (double& component : value) component /= std::sqrt(length);
  }
  return values;
}

/// The library's selection from exact masses, as a set of pages.
unsigned by_mass(const std::vector<double>& logits) {
  std::vector<float> masses(kPages), log_norm(1), selectable(1), share(kPages),
      none{-std::numeric_limits<float>::infinity()};
  for (int page = 0; page < kPages; ++page) {
    double sum = 0.0;
    for (int token = 0; token < kPageTokens; ++token) sum += std::exp(logits[page * kPageTokens + token]);
    masses[page] = static_cast<float>(std::log(sum));
  }
  SelectConfig config;
  config.sink_tokens = 0;
  config.recent_tokens = 0;
  config.part_tokens = kPageTokens;
  config.budget_tokens = kSelected * kPageTokens;
  const AlwaysAttended always = always_attended(config, kTokens);
  std::vector<std::int32_t> order(kPages), pages(kPages);
  const auto view = contiguous(masses.data(), 1, kPages);
  const int count =
      select_pages(config, always, {view, none}, {view, log_norm, share, selectable}, order, pages, Target::kReference);
  EXPECT_EQ(count, kSelected);
  unsigned set = 0;
  for (int i = 0; i < count; ++i) set |= 1U << pages[i];
  return set;
}

TEST(Lemma1, NoOtherSelectionHasASmallerWorstCase) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 20; ++round) {
    std::vector<double> logits(kTokens);
    for (int page = 0; page < kPages; ++page) {
      const double mean = normal(random);
      const double spread = std::abs(normal(random));  // so that largest key, mean key and mass rank differently
      for (int token = 0; token < kPageTokens; ++token)
        logits[page * kPageTokens + token] = mean + 2 * spread * normal(random);
    }
    const std::vector<double> weights = softmax(logits);
    const unsigned best = by_mass(logits);
    const double bound = 2 * (1 - mass(weights, best));

    EXPECT_NEAR(error(weights, best, worst_values(best)), bound, 1e-9);
    for (int i = 0; i < 20; ++i) EXPECT_LE(error(weights, best, random_values(random)), bound + 1e-9);

    for (unsigned other = 0; other < 1U << kPages; ++other) {
      if (__builtin_popcount(other) != kSelected || other == best) continue;
      const double worst = error(weights, other, worst_values(other));
      EXPECT_GT(worst, bound - 1e-6) << other;  // masses are floats: a near tie may fall either way
      EXPECT_LE(error(weights, best, worst_values(other)), bound + 1e-9);
    }
  }
}

}  // namespace
}  // namespace locks
