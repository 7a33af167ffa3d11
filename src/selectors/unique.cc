// UNIQUE (arXiv 2605.27740), as its independent reimplementations have it: the mean and the standard deviation of a page's
// keys, dimension by dimension:  s = sum_d (q_d mean_d + w |q_d| deviation_d), w = 1.
// The rest as for Quest, with which it is compared.
#include <cmath>

#include "selectors/page_scores.h"

namespace locks::selectors {
namespace {

class Unique final : public PageScores {
 public:
  Unique(const SelectorConfig& config, const Geometry& geometry) : PageScores(config, geometry, 2) {}

 private:
  void describe(const float* keys, int tokens, float* vectors) const override {
    const int head_dim = geometry().head_dim;
    for (int dim = 0; dim < head_dim; ++dim) {
      double sum = 0.0;
      for (int token = 0; token < tokens; ++token) sum += keys[token * head_dim + dim];
      const double mean = sum / tokens;
      double squares = 0.0;
      for (int token = 0; token < tokens; ++token) {
        const double deviation = keys[token * head_dim + dim] - mean;
        squares += deviation * deviation;
      }
      vectors[dim] = static_cast<float>(mean);
      vectors[head_dim + dim] = static_cast<float>(std::sqrt(squares / tokens));
    }
  }
  [[nodiscard]] float score(const float* query, const float* vectors) const override {
    const int head_dim = geometry().head_dim;
    float sum = 0.0F;
    for (int dim = 0; dim < head_dim; ++dim) {
      sum += query[dim] * vectors[dim] + config().deviation_weight * std::abs(query[dim]) * vectors[head_dim + dim];
    }
    return sum;
  }
};

}  // namespace

std::unique_ptr<Selector> make_unique_selector(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Unique>(config, geometry);
}

}  // namespace locks::selectors
