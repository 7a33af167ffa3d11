// The keys themselves in two bits a component: rotated, less their page's mean (int8), each with a step of its own (bf16).
// The simplest rival of a spectral summary at about its bytes.
#include <algorithm>
#include <cmath>

#include "cpu/half.h"
#include "selectors/key_masses.h"

namespace locks::selectors {
namespace {

constexpr float kBestStep = 0.9957F;  // of a normal number's deviation, for four levels at half steps

class TwoBit final : public KeyMasses {
 public:
  TwoBit(const SelectorConfig& config, const Geometry& geometry) : KeyMasses(config, geometry, true) {}

 private:
  void approximate(int /*kv_head*/, float* keys) const override {
    const int head_dim = geometry().head_dim;
    std::vector<float> mean(static_cast<std::size_t>(head_dim));
    float most = 0.0F;
    for (int dim = 0; dim < head_dim; ++dim) {
      float sum = 0.0F;
      for (int token = 0; token < kPageTokens; ++token) sum += keys[token * head_dim + dim];
      mean[static_cast<std::size_t>(dim)] = sum / kPageTokens;
      most = std::max(most, std::abs(mean[static_cast<std::size_t>(dim)]));
    }
    const float unit = bf16_to_float(float_to_bf16(most / 127.0F));
    for (float& component : mean) component = unit > 0.0F ? unit * std::nearbyint(component / unit) : 0.0F;
    for (int token = 0; token < kPageTokens; ++token) {
      float* const key = keys + token * head_dim;
      float squares = 0.0F;
      for (int dim = 0; dim < head_dim; ++dim) {
        key[dim] -= mean[static_cast<std::size_t>(dim)];
        squares += key[dim] * key[dim];
      }
      const float deviation = std::sqrt(squares / static_cast<float>(head_dim));
      const float step = bf16_to_float(float_to_bf16(kBestStep * deviation));
      for (int dim = 0; dim < head_dim; ++dim) {
        const float code = step > 0.0F ? std::clamp(std::floor(key[dim] / step), -2.0F, 1.0F) : -0.5F;
        key[dim] = mean[static_cast<std::size_t>(dim)] + (code + 0.5F) * step;
      }
    }
  }
  [[nodiscard]] std::int64_t page_bytes(const Sequence& /*sequence*/) const noexcept override {
    return geometry().head_dim + 2 + kPageTokens * (geometry().head_dim / 4 + 2);
  }
};

}  // namespace

std::unique_ptr<Selector> make_two_bit(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<TwoBit>(config, geometry);
}

}  // namespace locks::selectors
