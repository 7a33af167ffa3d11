// Selectors that know every key, exactly or about: parts of pages by their attention mass, beside the sink and the recent
// tokens. What they would keep of a page is worked out as floats, which is what its codes mean.
#pragma once

#include <vector>

#include "selectors/support.h"

namespace locks::selectors {

class KeyMasses : public Selector {
 public:
  void append(const Sequence& sequence, int kv_head) override;
  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const override;
  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override;
  [[nodiscard]] std::int64_t held_bytes(const Sequence& sequence) const noexcept override;

 protected:
  /// Keys and queries pass the fixed rotation of rotation.h if `rotated`.
  KeyMasses(const SelectorConfig& config, const Geometry& geometry, bool rotated);
  /// Makes of a full page's keys [16, head_dim] what is kept of them.
  virtual void approximate(int kv_head, float* keys) const = 0;
  /// Of what is kept of a page.
  [[nodiscard]] virtual std::int64_t page_bytes(const Sequence& sequence) const noexcept = 0;
  /// All pages are made anew at the next append().
  void forget_pages() noexcept {
    for (Head& head : heads_) head.tokens = 0;
  }

 private:
  struct Head {
    std::int32_t tokens = 0;
    std::vector<float> keys;  // [tokens, head_dim]
  };
  [[nodiscard]] std::vector<float> attention(int kv_head, const float* query, int tokens) const;

  bool rotated_;
  std::vector<Head> heads_;
};

}  // namespace locks::selectors
