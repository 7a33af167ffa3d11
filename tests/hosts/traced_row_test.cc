#include "traced_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "support/step.h"

namespace locks::llamacpp {
namespace {

using test::StepData;
using test::StepSpec;

struct TracedStep {
  std::vector<DecodeReport> reports;
  std::vector<TracedRow> rows;
};

/// A step of all requests, and what is traced of each.
TracedStep traced(const DecodeConfig& config, const StepData& data) {
  const auto requests = static_cast<int>(data.spec.lengths.size());
  const DecodePlan plan(config, data.geometry, {requests, *std::ranges::max_element(data.spec.lengths), 1});
  test::Workspace workspace(plan.workspace_bytes());
  std::vector<float> out(data.queries.size());
  TracedStep result{std::vector<DecodeReport>(data.spec.lengths.size()), std::vector<TracedRow>(data.spec.lengths.size())};
  run(plan, data.inputs(), contiguous(out.data(), requests, data.geometry.query_heads, data.spec.head_dim), result.reports,
      workspace.span(), {}, supported_targets().back());
  for (int request = 0; request < requests; ++request) {
    trace_row(plan, data.inputs(), workspace.span(), request, result.rows[static_cast<std::size_t>(request)]);
  }
  return result;
}

/// Exact shares of a query head's tokens.
std::vector<double> shares(const StepData& data, int request, int head) {
  std::vector<double> weights;
  const float* const query = data.inputs().queries.at(request, head);
  for (int token = 0; token < data.spec.lengths[request]; ++token) {
    double dot = 0.0;
    for (int dim = 0; dim < data.spec.head_dim; ++dim) {
      const std::int64_t page = data.table.table.page(request, token / kPageTokens);
      dot += double{query[dim]} * double{data.keys.value(page, token % kPageTokens, head / data.spec.group, dim)};
    }
    weights.push_back(std::exp(dot * double{data.geometry.softmax_scale}));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

double sum_of(const std::vector<float>& values, std::size_t first, std::size_t count) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first),
                         values.begin() + static_cast<std::ptrdiff_t>(first + count), 0.0);
}

DecodeConfig small_config() {
  DecodeConfig config;
  config.select.budget_tokens = 200;
  config.min_context_tokens = 300;
  return config;
}

struct Case {
  const char* name;
  StepSpec spec;
  DecodeConfig config;
};

class TraceRowTest : public testing::TestWithParam<Case> {};

TEST_P(TraceRowTest, MassesAreThoseOfExactAttention) {
  const StepData data(GetParam().spec);
  const TracedStep step = traced(GetParam().config, data);
  for (std::size_t request = 0; request < step.rows.size(); ++request) {
    const TracedRow& row = step.rows[request];
    const int heads = data.geometry.query_heads / row.lists;
    double attended = 0.0;
    for (int list = 0; list < row.lists; ++list) {
      std::vector<double> true_mass(static_cast<std::size_t>(row.pages));
      std::vector<double> covered_mass(true_mass.size());
      const std::size_t first = static_cast<std::size_t>(list) * true_mass.size();
      for (int head = list * heads; head < (list + 1) * heads; ++head) {
        const std::vector<double> exact = shares(data, static_cast<int>(request), head);
        for (std::size_t token = 0; token < exact.size(); ++token) {
          const std::size_t page = token / kPageTokens;
          true_mass[page] += exact[token] / heads;
          if ((row.attended[first + page] >> (token % kPageTokens) & 1U) != 0) covered_mass[page] += exact[token] / heads;
        }
      }
      for (std::size_t page = 0; page < true_mass.size(); ++page) {
        // Rounded to float, and the reference's own exponential of a sum of head_dim products.
        EXPECT_NEAR(row.true_mass[first + page], true_mass[page], 1e-6);
        EXPECT_NEAR(row.covered_mass[first + page], covered_mass[page], 1e-6);
        EXPECT_EQ(row.attended[first + page] & row.completed[first + page], 0);
        attended += std::popcount(row.attended[first + page]);
      }
      // Shares of one whole, whatever was attended exactly and what was estimated.
      EXPECT_NEAR(sum_of(row.estimated_mass, first, true_mass.size()), 1.0, 1e-4);
    }
    EXPECT_FLOAT_EQ(static_cast<float>(attended / row.lists), step.reports[request].attended_tokens);
    const auto completed = row.completed.size() - static_cast<std::size_t>(std::ranges::count(row.completed, 0));
    EXPECT_FLOAT_EQ(static_cast<float>(completed) / static_cast<float>(row.lists), step.reports[request].completed_pages);
    EXPECT_TRUE(!step.reports[request].dense || row.estimated_mass == row.true_mass);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, auto change) {
    Case c{name, {}, small_config()};
    c.spec.lengths = {897, 5, 250, 336};
    change(c);
    all.push_back(c);
  };
  add("Default", [](Case&) {});
  add("PerQueryHead", [](Case& c) { c.config.select.combine = GroupCombine::kPerQueryHead; });
  add("Q8Scattered", [](Case& c) {
    c.spec.dtype = DType::kQ8_0;
    c.spec.layout = test::Layout::kScattered;
  });
  add("F32WithoutCompletion", [](Case& c) {
    c.spec.dtype = DType::kF32;
    c.config.select.completion_fraction = 0.0F;
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, TraceRowTest, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(TraceRow, OfWholePagesTheEstimatesAreTheReportsCoverage) {
  StepSpec spec;
  spec.lengths = {1100};
  const StepData data(spec);
  DecodeConfig config = small_config();
  config.select.part_tokens = kPageTokens;
  const TracedStep step = traced(config, data);
  double coverage = 0.0;
  for (std::size_t at = 0; at < step.rows[0].attended.size(); ++at) {
    if (step.rows[0].attended[at] != 0) coverage += double{step.rows[0].estimated_mass[at]};
  }
  EXPECT_NEAR(coverage / step.rows[0].lists, step.reports[0].coverage, 1e-5);
  EXPECT_LT(step.reports[0].coverage, 0.999F);
}

TEST(TraceRow, KeysThatAreNotFiniteHaveNoMass) {
  StepSpec spec;
  spec.lengths = {600};
  StepData data(spec);
  data.keys.set_value(data.table.table.page(0, 10), 3, 0, 0, std::numeric_limits<float>::infinity());
  data.summarize_all();
  const TracedRow row = traced(small_config(), data).rows[0];
  EXPECT_EQ(row.attended[10], kWholePage);  // it is marked
  for (const std::vector<float>* masses : {&row.true_mass, &row.covered_mass, &row.estimated_mass}) {
    for (const float mass : *masses) EXPECT_TRUE(mass >= 0.0F && mass <= 1.0F) << mass;
  }
  EXPECT_NEAR(sum_of(row.true_mass, 0, static_cast<std::size_t>(row.pages)), 1.0, 1e-6);
}

}  // namespace
}  // namespace locks::llamacpp
