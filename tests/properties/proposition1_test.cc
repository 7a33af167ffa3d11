// Proposition 1. A basis that all pages share cannot tell some pages apart whose masses differ; a page's own basis can.
//
// Why. Let W be the shared basis (r < d columns), u a direction orthogonal to it. Two pages with the same mean and the
// same components along W, but different ones along u, have equal coefficients W^T k, and so get equal scores from every
// query. Yet a query with a component along u gives them masses as different as one likes, while queries inside the span
// of W give them equal masses: the difference shows only where the basis does not look. A page's own leading directions
// contain u as soon as u matters.
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Dense>

#include "support/step.h"

namespace locks {
namespace {

constexpr int kDim = 64;
constexpr int kShared = 8;

double log_mass(const Eigen::VectorXd& logits) {
  return logits.maxCoeff() + std::log((logits.array() - logits.maxCoeff()).exp().sum());
}

TEST(Proposition1, OwnBasisSeesWhatASharedOneCannot) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  const auto matrix = [&](int rows, int columns) {
    return Eigen::MatrixXd(Eigen::MatrixXd::NullaryExpr(rows, columns, [&] { return normal(random); }));
  };
  for (int round = 0; round < 20; ++round) {
    const Eigen::MatrixXd directions = Eigen::HouseholderQR<Eigen::MatrixXd>(matrix(kDim, kShared + 1)).householderQ() *
                                       Eigen::MatrixXd::Identity(kDim, kShared + 1);
    const Eigen::MatrixXd shared = directions.leftCols(kShared);
    const Eigen::VectorXd hidden = directions.col(kShared);

    // Page 0: some structure along three of the shared directions. Page 1: the same, and steps along the hidden one.
    test::StepSpec spec;
    spec.kv_heads = 1;
    spec.group = 1;
    spec.dtype = DType::kF32;
    spec.lengths = {2 * kPageTokens};
    test::StepData data(spec);
    const Eigen::RowVectorXd mean = matrix(1, kDim);
    const Eigen::MatrixXd along = matrix(kPageTokens, 3) * shared.leftCols(3).transpose();
    std::vector<Eigen::MatrixXd> keys(2, along.rowwise() + mean);
    for (int token = 0; token < kPageTokens; ++token)
      keys[1].row(token) += (token % 2 == 0 ? 3.0 : -3.0) * hidden.transpose();
    for (int page = 0; page < 2; ++page) {
      for (int token = 0; token < kPageTokens; ++token) {
        for (int dim = 0; dim < kDim; ++dim) {
          data.keys.set_value(data.table.table.page(0, page), token, 0, dim, static_cast<float>(keys[page](token, dim)));
        }
      }
    }
    data.summarize_all();

    const double scale = data.geometry.softmax_scale;
    for (int kind = 0; kind < 2; ++kind) {
      const bool looks_at_hidden = kind == 1;
      Eigen::VectorXd query = shared * matrix(kShared, 1);
      if (looks_at_hidden) query += 12.0 * hidden;
      double true_mass[2], shared_mass[2];
      for (int page = 0; page < 2; ++page) {
        true_mass[page] = log_mass(keys[page] * query * scale);
        shared_mass[page] = log_mass((keys[page] * shared) * (shared.transpose() * query) * scale);
        shared_mass[page] +=
            (mean - mean * shared * shared.transpose()).dot(query) * scale;  // even with the mean kept exactly
      }
      EXPECT_NEAR(shared_mass[0], shared_mass[1], 1e-9);
      if (!looks_at_hidden) {
        EXPECT_NEAR(true_mass[0], true_mass[1], 1e-9);
        continue;
      }
      ASSERT_GT(true_mass[1] - true_mass[0], 2.0);

      for (int dim = 0; dim < kDim; ++dim) data.queries[dim] = static_cast<float>(query(dim));
      for (const Target target : supported_targets()) {
        float own_mass[2];
        test::Workspace workspace(score_workspace_bytes(data.geometry, 1));
        const ScoreArgs args{data.geometry,    data.inputs().queries,         data.summaries,
                             data.table.table, contiguous(own_mass, 1, 1, 2), workspace.span()};
        prepare_queries(args, Team{}, target);
        score(args, Team{}, target);
        EXPECT_GT(own_mass[1] - own_mass[0], 1.0) << target_name(target);
        // What is left is quantisation: half a step of 2 to 4 bits in basis and coefficients.
        EXPECT_NEAR(own_mass[1], true_mass[1], 0.25 * (true_mass[1] - true_mass[0])) << target_name(target);
      }
    }
  }
}

}  // namespace
}  // namespace locks
