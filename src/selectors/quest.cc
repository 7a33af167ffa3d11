// Quest (Tang et al., ICML 2024): the largest and the smallest key of a page, dimension by dimension, bound every logit in
// it from above:  s = sum_d max(q_d max_d, q_d min_d).
// As its kernels have it: pages of 16, the current one always attended and counted, each query head a list of its own, the
// first two layers dense.
#include <algorithm>

#include "selectors/page_scores.h"

namespace locks::selectors {
namespace {

class Quest final : public PageScores {
 public:
  Quest(const SelectorConfig& config, const Geometry& geometry) : PageScores(config, geometry, 2) {}

 private:
  void describe(const float* keys, int tokens, float* vectors) const override {
    const int head_dim = geometry().head_dim;
    float* const most = vectors;
    float* const least = vectors + head_dim;
    std::copy_n(keys, head_dim, most);
    std::copy_n(keys, head_dim, least);
    for (int token = 1; token < tokens; ++token) {
      for (int dim = 0; dim < head_dim; ++dim) {
        most[dim] = std::max(most[dim], keys[token * head_dim + dim]);
        least[dim] = std::min(least[dim], keys[token * head_dim + dim]);
      }
    }
  }
  [[nodiscard]] float score(const float* query, const float* vectors) const override {
    const int head_dim = geometry().head_dim;
    float bound = 0.0F;
    for (int dim = 0; dim < head_dim; ++dim) {
      bound += std::max(query[dim] * vectors[dim], query[dim] * vectors[head_dim + dim]);
    }
    return bound;
  }
};

}  // namespace

std::unique_ptr<Selector> make_quest(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Quest>(config, geometry);
}

}  // namespace locks::selectors
