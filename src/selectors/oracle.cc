// The best that any selector of tokens can do that must choose parts of this size: it knows the true attention masses. It
// reads every key, and costs what dense attention costs.
#include <algorithm>
#include <cmath>

#include "selectors/support.h"

namespace locks::selectors {
namespace {

class Oracle final : public Selector {
 public:
  Oracle(const SelectorConfig& config, const Geometry& geometry)
      : Selector(config, geometry), heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

  /// Keeps the keys as floats: they are read at every step, by every query head.
  void append(const Sequence& sequence, int kv_head) override {
    Head& head = heads_[static_cast<std::size_t>(kv_head)];
    const int head_dim = geometry().head_dim;
    const int first = std::min(head.tokens, sequence.tokens);
    head.keys.resize(static_cast<std::size_t>(sequence.tokens) * static_cast<std::size_t>(head_dim));
    load_rows(sequence, sequence.keys, kv_head, first, sequence.tokens, head_dim,
              head.keys.data() + static_cast<std::size_t>(first) * static_cast<std::size_t>(head_dim));
    head.tokens = sequence.tokens;
  }

  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const override {
    const SelectConfig forced{.budget_tokens = config().budget_tokens,
                              .sink_tokens = config().sink_tokens,
                              .recent_tokens = config().recent_tokens};
    const AlwaysAttended always = always_attended(forced, sequence.tokens);
    const int part = config().part_tokens;
    const int first = always.sink_pages * kPageTokens;
    const int parts = always.selectable_pages() * kPageTokens / part;
    std::vector<std::vector<float>> shares;  // of the selectable parts, for each query head
    std::vector<double> always_share;
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      const std::vector<float> weights = attention(sequence, kv_head, queries.at(query));
      std::vector<float>& of_head = shares.emplace_back(static_cast<std::size_t>(parts));
      double rest = 0.0;
      for (const float weight : weights) rest += weight;
      for (int i = 0; i < parts; ++i) {
        const float* const from = weights.data() + first + i * part;
        for (int token = 0; token < part; ++token) of_head[static_cast<std::size_t>(i)] += from[token];
        rest -= of_head[static_cast<std::size_t>(i)];
      }
      always_share.push_back(rest);
    }
    Selection out;
    double coverage = 0.0;
    for (const double share : always_share) coverage += share;
    const bool own_lists = config().combine == GroupCombine::kPerQueryHead;
    for_each_list(shares, config().combine, [&](std::span<const float> of_list) {
      ListBuilder list;
      list.add(0, first);
      for (const std::int32_t i : largest(of_list, (config().budget_tokens - always.tokens) / part)) {
        list.add(first + i * part, first + (i + 1) * part);
        for (std::size_t head = 0; head < shares.size(); ++head) {
          if (!own_lists || head == out.lists.size()) coverage += shares[head][static_cast<std::size_t>(i)];
        }
      }
      list.add(always.first_recent_page * kPageTokens, sequence.tokens);
      out.lists.push_back(list.take());
    });
    out.coverage = coverage / static_cast<double>(queries.shape[0]);
    return out;
  }
  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override {
    return sequence.tokens * row_bytes(sequence.keys.dtype, geometry().head_dim);
  }
  [[nodiscard]] std::int64_t held_bytes(const Sequence& /*sequence*/) const noexcept override { return 0; }

 private:
  struct Head {
    std::int32_t tokens = 0;
    std::vector<float> keys;  // [tokens, head_dim]
  };

  [[nodiscard]] std::vector<float> attention(const Sequence& sequence, int kv_head, const float* query) const {
    const int head_dim = geometry().head_dim;
    const float* key = heads_[static_cast<std::size_t>(kv_head)].keys.data();
    std::vector<float> weights(static_cast<std::size_t>(sequence.tokens));
    for (float& weight : weights) {
      weight = geometry().softmax_scale * dot(query, key, head_dim);
      key += head_dim;
    }
    normalise(weights);
    return weights;
  }

  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Selector> make_oracle(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Oracle>(config, geometry);
}

}  // namespace locks::selectors
