// Theorem 1. If every estimated logit is within eta of the true one, the pages selected by estimated mass carry at least
// exp(-4 eta) of the mass that the best selection of as many pages carries.
//
// Why. A page's mass is a sum of exponentials, so its estimate is within a factor exp(eta) of it, and a head's whole mass
// too; a page's share of a head is then within exp(2 eta), and so is its share summed over a group of heads. Let S be
// selected and T the best. true(S) >= exp(-2 eta) estimate(S) >= exp(-2 eta) estimate(T) >= exp(-4 eta) true(T).
// For a single head the whole mass is a common factor that drops out: exp(-2 eta), and no better bound is possible.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Dense>

#include "locks/select.h"

namespace locks {
namespace {

using Logits = std::vector<std::vector<std::vector<double>>>;  // [heads][pages][16]

double log_mass(const std::vector<double>& logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - peak);
  return peak + std::log(sum);
}

/// [heads][pages], each head's shares adding up to one.
std::vector<std::vector<double>> shares(const Logits& logits) {
  std::vector<std::vector<double>> out;
  for (const auto& head : logits) {
    std::vector<double> masses;
    for (const auto& page : head) masses.push_back(log_mass(page));
    const double whole = log_mass(masses);
    for (double& mass : masses) mass = std::exp(mass - whole);
    out.push_back(masses);
  }
  return out;
}

std::vector<double> group_shares(const Logits& logits) {
  std::vector<double> sum(logits[0].size());
  for (const auto& head : shares(logits)) {
    for (std::size_t page = 0; page < sum.size(); ++page) sum[page] += head[page];
  }
  return sum;
}

double sum_of(const std::vector<double>& share, const std::vector<int>& pages) {
  return std::accumulate(pages.begin(), pages.end(), 0.0, [&](double sum, int page) { return sum + share[page]; });
}

std::vector<int> best_pages(const std::vector<double>& share, int count) {
  std::vector<int> order(share.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return share[a] > share[b]; });
  order.resize(count);
  return order;
}

/// What the library selects from these estimates, with nothing always attended but a tail.
std::vector<int> selected_pages(const Logits& estimates, int count) {
  SelectConfig config;
  config.sink_tokens = 0;
  config.recent_tokens = 0;
  config.part_tokens = kPageTokens;
  config.budget_tokens = (count + 1) * kPageTokens;
  check_select_config(config);
  const auto heads = static_cast<int>(estimates.size());
  const auto pages = static_cast<int>(estimates[0].size());
  AlwaysAttended always = always_attended(config, pages * kPageTokens + kPageTokens - 1);
  always.tokens = kPageTokens;  // so that exactly `count` pages are left
  std::vector<float> masses, log_norm(heads), selectable(heads), share(pages),
      none(heads, -std::numeric_limits<float>::infinity());
  for (const auto& head : estimates) {
    for (const auto& page : head) masses.push_back(static_cast<float>(log_mass(page)));
  }
  const auto view = contiguous(masses.data(), heads, pages);
  std::vector<std::int32_t> order(pages), candidates(pages);
  candidates.resize(select_pages(config, always, {view, none}, {view, log_norm, share, selectable}, order, candidates,
                                 Target::kReference));
  EXPECT_EQ(candidates.size(), static_cast<std::size_t>(count));
  return {candidates.begin(), candidates.end()};
}

double largest_error(const Logits& a, const Logits& b) {
  double largest = 0.0;
  for (std::size_t head = 0; head < a.size(); ++head) {
    for (std::size_t page = 0; page < a[head].size(); ++page) {
      for (int token = 0; token < kPageTokens; ++token)
        largest = std::max(largest, std::abs(a[head][page][token] - b[head][page][token]));
    }
  }
  return largest;
}

constexpr double kRounding = 1.0 - 1e-5;  // masses and shares are floats

void expect_theorem(const Logits& truth, const Logits& estimates, int count) {
  const double eta = largest_error(truth, estimates);
  const std::vector<double> share = group_shares(truth);
  const double got = sum_of(share, selected_pages(estimates, count));
  const double best = sum_of(share, best_pages(share, count));
  EXPECT_GE(got, std::exp(-4 * eta) * best * kRounding) << "eta " << eta << " count " << count;
  if (truth.size() == 1) {
    EXPECT_GE(got, std::exp(-2 * eta) * best * kRounding) << "eta " << eta << " count " << count;
  }
}

Logits random_logits(int heads, int pages, double spread, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Logits logits(heads, std::vector<std::vector<double>>(pages, std::vector<double>(kPageTokens)));
  for (auto& head : logits) {
    for (auto& page : head) {
      const double mean = spread * normal(random);
      for (double& logit : page) logit = mean + normal(random);
    }
  }
  return logits;
}

TEST(Theorem1, HoldsForUnquantisedSummaries) {
  constexpr int kDim = 32;
  constexpr int kPages = 60;
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const int rank : {1, 2, 4, 8, 15}) {
    for (const int heads : {1, 4}) {
      Logits truth(heads), estimates(heads);
      std::vector<Eigen::VectorXd> queries;
      for (int head = 0; head < heads; ++head) {
        queries.push_back(Eigen::VectorXd::NullaryExpr(kDim, [&] { return normal(random); }));
      }
      for (int page = 0; page < kPages; ++page) {
        const Eigen::MatrixXd keys = Eigen::MatrixXd::NullaryExpr(kPageTokens, kDim, [&] { return normal(random); });
        const Eigen::RowVectorXd mean = keys.colwise().mean();
        const Eigen::JacobiSVD<Eigen::MatrixXd> svd(keys.rowwise() - mean, Eigen::ComputeThinU | Eigen::ComputeThinV);
        const Eigen::MatrixXd basis = svd.matrixV().leftCols(rank);
        const Eigen::MatrixXd approximate = ((keys.rowwise() - mean) * basis * basis.transpose()).rowwise() + mean;
        for (int head = 0; head < heads; ++head) {
          const Eigen::VectorXd exact = keys * queries[head] / std::sqrt(kDim);
          const Eigen::VectorXd estimate = approximate * queries[head] / std::sqrt(kDim);
          truth[head].emplace_back(exact.begin(), exact.end());
          estimates[head].emplace_back(estimate.begin(), estimate.end());
        }
      }
      for (const int count : {1, 5, 20}) expect_theorem(truth, estimates, count);
      if (rank == 15) {  // sixteen points about their mean span fifteen directions: nothing is lost
        EXPECT_LT(largest_error(truth, estimates), 1e-9);
      }
    }
  }
}

TEST(Theorem1, HoldsForRandomErrors) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const double eta = 0.01 * static_cast<double>(1 + random() % 150);
    std::uniform_real_distribution<double> error(-eta, eta);
    const Logits truth = random_logits(1 + static_cast<int>(random() % 5), 30, 1.0, random);
    Logits estimates = truth;
    for (auto& head : estimates) {
      for (auto& page : head) {
        for (double& logit : page) logit += error(random);
      }
    }
    expect_theorem(truth, estimates, 1 + static_cast<int>(random() % 10));
  }
}

/// The worst that errors can do: every page of the best selection looks worse by eta, every other one better.
TEST(Theorem1, HoldsAgainstAnAdversary) {
  std::mt19937_64 random(3);
  bool changed_a_selection = false;
  for (int round = 0; round < 200; ++round) {
    const double eta = 0.01 * static_cast<double>(1 + random() % 100);
    const int count = 1 + static_cast<int>(random() % 10);
    const Logits truth = random_logits(1 + static_cast<int>(random() % 4), 30, 0.5, random);
    const std::vector<int> best = best_pages(group_shares(truth), count);
    Logits estimates = truth;
    for (auto& head : estimates) {
      for (int page = 0; page < 30; ++page) {
        const bool wanted = std::find(best.begin(), best.end(), page) != best.end();
        for (double& logit : head[page]) logit += wanted ? -eta : eta;
      }
    }
    expect_theorem(truth, estimates, count);
    changed_a_selection = changed_a_selection || sum_of(group_shares(truth), selected_pages(estimates, count)) <
                                                     sum_of(group_shares(truth), best) * 0.9;
  }
  EXPECT_TRUE(changed_a_selection);
}

/// Two pages, one of nearly exp(2 eta) times the other's mass, swap places: so exp(-2 eta) is reached.
TEST(Theorem1, IsSharpForOneHead) {
  for (const double eta : {0.1, 0.5, 1.0}) {
    constexpr double kMargin = 1e-3;
    const auto page = [](double logit) { return std::vector<double>(kPageTokens, logit); };
    const Logits truth{{page(2 * eta - kMargin), page(0.0)}};
    const Logits estimates{{page(eta - kMargin), page(eta)}};
    const std::vector<double> share = group_shares(truth);
    const double ratio = sum_of(share, selected_pages(estimates, 1)) / sum_of(share, best_pages(share, 1));
    EXPECT_NEAR(ratio, std::exp(-2 * eta), 2 * kMargin);
    expect_theorem(truth, estimates, 1);
  }
}

}  // namespace
}  // namespace locks
