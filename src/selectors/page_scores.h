// Selectors that score a page by a few vectors made of its keys, and take the best whole pages. The page of the token
// being decoded is always attended and counts.
#pragma once

#include <span>
#include <vector>

#include "selectors/support.h"

namespace locks::selectors {

class PageScores : public Selector {
 public:
  void append(const Sequence& sequence, int kv_head) override;
  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const override;
  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override;
  [[nodiscard]] std::int64_t held_bytes(const Sequence& sequence) const noexcept override;

 protected:
  /// `vectors` a page of head_dim numbers each.
  PageScores(const SelectorConfig& config, const Geometry& geometry, int vectors);
  /// Makes a page's vectors of its keys [tokens, head_dim].
  virtual void describe(const float* keys, int tokens, float* vectors) const = 0;
  [[nodiscard]] virtual float score(const float* query, const float* vectors) const = 0;

 private:
  struct Head {
    std::int32_t tokens = 0;     // seen
    std::vector<float> vectors;  // [pages, vectors, head_dim]
  };
  [[nodiscard]] std::size_t page_floats() const noexcept {
    return static_cast<std::size_t>(vectors_) * static_cast<std::size_t>(geometry().head_dim);
  }

  int vectors_;
  std::vector<Head> heads_;
};

}  // namespace locks::selectors
