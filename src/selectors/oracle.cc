// The best that any selector of tokens can do that must choose parts of this size: it knows the true attention masses. It
// reads every key, and costs what dense attention costs.
#include "selectors/key_masses.h"

namespace locks::selectors {
namespace {

class Oracle final : public KeyMasses {
 public:
  Oracle(const SelectorConfig& config, const Geometry& geometry) : KeyMasses(config, geometry, false) {}
  [[nodiscard]] std::int64_t held_bytes(const Sequence& /*sequence*/) const noexcept override { return 0; }

 private:
  void approximate(int /*kv_head*/, float* /*keys*/) const override {}
  [[nodiscard]] std::int64_t page_bytes(const Sequence& sequence) const noexcept override {
    return kPageTokens * row_bytes(sequence.keys.dtype, geometry().head_dim);
  }
};

}  // namespace

std::unique_ptr<Selector> make_oracle(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Oracle>(config, geometry);
}

}  // namespace locks::selectors
