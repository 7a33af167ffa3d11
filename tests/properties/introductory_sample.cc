// Selects pages of a raw file of keys by unquantised rank-8 summaries, for tests/python/test_introductory_sample.py.
//     introductory_sample KEYS QUERY HEAD_DIM BUDGET_TOKENS > pages
// KEYS [tokens, head_dim] and QUERY [head_dim] are little-endian floats.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <Eigen/Dense>

#include "locks/select.h"
#include "locks/target.h"

namespace {

constexpr int kRank = 8;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<float> read_floats(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* floats = reinterpret_cast<const float*>(bytes.data());
  return {floats, floats + bytes.size() / sizeof(float)};
}

/// log sum_i exp(q.k_i / sqrt(d)) with the page's keys replaced by their best rank-8 approximation about the mean.
double log_mass(const Matrix& keys, const Eigen::VectorXd& query) {
  const Eigen::RowVectorXd mean = keys.colwise().mean();
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(keys.rowwise() - mean, Eigen::ComputeThinU | Eigen::ComputeThinV);
  const Eigen::VectorXd along = svd.matrixV().leftCols(kRank).transpose() * query;
  const Eigen::VectorXd coefficients = svd.singularValues().head(kRank).cwiseProduct(along);
  const Eigen::ArrayXd logits = ((svd.matrixU().leftCols(kRank) * coefficients).array() + mean.dot(query)) /
                                std::sqrt(static_cast<double>(query.size()));
  return logits.maxCoeff() + std::log((logits - logits.maxCoeff()).exp().sum());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::vector<float> keys = read_floats(argv[1]);
  const std::vector<float> query = read_floats(argv[2]);
  const int head_dim = std::atoi(argv[3]);
  const auto tokens = static_cast<int>(keys.size()) / head_dim;
  const int pages = tokens / locks::kPageTokens;
  const Eigen::VectorXd q = Eigen::Map<const Eigen::VectorXf>(query.data(), head_dim).cast<double>();
  std::vector<float> masses(static_cast<std::size_t>(pages));
  for (int page = 0; page < pages; ++page) {
    const float* first = keys.data() + static_cast<std::ptrdiff_t>(page) * locks::kPageTokens * head_dim;
    using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Matrix page_keys = Eigen::Map<const FloatMatrix>(first, locks::kPageTokens, head_dim).cast<double>();
    masses[static_cast<std::size_t>(page)] = static_cast<float>(log_mass(page_keys, q));
  }

  locks::SelectConfig config;
  config.budget_tokens = std::atoi(argv[4]);
  config.sink_tokens = 0;
  config.recent_tokens = 0;
  config.part_tokens = locks::kPageTokens;
  config.completion_fraction = 0.0F;
  locks::check_select_config(config);
  const auto always = locks::always_attended(config, tokens);
  const auto limits = locks::select_limits(config, tokens);
  const float nothing = -INFINITY;  // nothing is attended beside the selection
  float log_norm = 0.0F;
  float selectable = 0.0F;
  std::vector<float> head_share(masses.size());
  std::vector<float> share(masses.size());
  std::vector<std::int32_t> order(masses.size());
  std::vector<std::int32_t> selected(static_cast<std::size_t>(limits.candidate_pages));
  const locks::ListScores scores{locks::contiguous<const float>(masses.data(), 1, pages), std::span(&nothing, 1)};
  const locks::ListShares shares{locks::contiguous(head_share.data(), 1, pages), std::span(&log_norm, 1), share,
                                 std::span(&selectable, 1)};
  const int count = locks::select_pages(config, always, scores, shares, order, selected, locks::active_target());
  for (int i = 0; i < count; ++i) std::printf("%d\n", selected[static_cast<std::size_t>(i)]);
  return 0;
}
