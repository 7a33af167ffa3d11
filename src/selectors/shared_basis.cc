// Proposition 1's other side: one basis for all pages of a KV head, the eight directions in which keys differ
// most from their page's mean. A page keeps its mean and coefficients, in bf16.
#include <algorithm>

#include <Eigen/Eigenvalues>

#include "selectors/key_masses.h"

namespace locks::selectors {
namespace {

constexpr int kRank = 8;

class SharedBasis final : public KeyMasses {
 public:
  SharedBasis(const SelectorConfig& config, const Geometry& geometry)
      : KeyMasses(config, geometry, false), bases_(static_cast<std::size_t>(geometry.kv_heads)) {}

  void read_prompt(const Sequence& /*sequence*/, int kv_head, View<const float, 3> /*queries*/) override {
    if (kv_head == 0) known_ = false;
  }
  void begin_step(const Sequence& sequence) override {
    if (known_) return;
    for (int kv_head = 0; kv_head < geometry().kv_heads; ++kv_head) find_basis(sequence, kv_head);
    forget_pages();
    known_ = true;
  }

  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override {
    return KeyMasses::score_bytes(sequence) + std::int64_t{2} * kRank * geometry().head_dim;
  }

 private:
  void find_basis(const Sequence& sequence, int kv_head) {
    const int head_dim = geometry().head_dim;
    Eigen::MatrixXf gram = Eigen::MatrixXf::Zero(head_dim, head_dim);
    std::vector<float> keys(static_cast<std::size_t>(kPageTokens * head_dim));
    for (int page = 0; page < sequence.tokens / kPageTokens; ++page) {
      load_rows(sequence, sequence.keys, kv_head, page * kPageTokens, (page + 1) * kPageTokens, head_dim, keys.data());
      Eigen::Map<Eigen::MatrixXf> columns(keys.data(), head_dim, kPageTokens);
      if (!columns.allFinite()) continue;
      columns.colwise() -= columns.rowwise().mean().eval();
      gram.selfadjointView<Eigen::Lower>().rankUpdate(columns);
    }
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXf> solver(gram);
    bases_[static_cast<std::size_t>(kv_head)] = solver.eigenvectors().rightCols(kRank);
  }

  void approximate(int kv_head, float* keys) const override {
    const Eigen::MatrixXf& basis = bases_[static_cast<std::size_t>(kv_head)];
    if (basis.size() == 0) return;  // a context that is attended whole
    Eigen::Map<Eigen::MatrixXf> columns(keys, geometry().head_dim, kPageTokens);
    const Eigen::VectorXf mean = columns.rowwise().mean().unaryExpr(&rounded);
    const Eigen::MatrixXf coefficients = (basis.transpose() * (columns.colwise() - mean)).unaryExpr(&rounded);
    columns = (basis * coefficients).colwise() + mean;
  }
  [[nodiscard]] std::int64_t page_bytes(const Sequence& /*sequence*/) const noexcept override {
    return std::int64_t{2} * (geometry().head_dim + kPageTokens * kRank);
  }

  bool known_ = false;
  std::vector<Eigen::MatrixXf> bases_;  // [head_dim, 8] of each KV head
};

}  // namespace

std::unique_ptr<Selector> make_shared_basis(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<SharedBasis>(config, geometry);
}

}  // namespace locks::selectors
