// Selectors that look at no key: what any other must beat.
#include <algorithm>
#include <cstdint>

#include "selectors/support.h"

namespace locks::selectors {
namespace {

class Blind : public Selector {
 public:
  using Selector::Selector;
  void append(const Sequence& /*sequence*/, int /*kv_head*/) override {}
  [[nodiscard]] std::int64_t score_bytes(const Sequence& /*sequence*/) const noexcept override { return 0; }
  [[nodiscard]] std::int64_t held_bytes(const Sequence& /*sequence*/) const noexcept override { return 0; }
};

/// The sink and the most recent tokens (StreamingLLM).
class Recency final : public Blind {
 public:
  Recency(const SelectorConfig& config, const Geometry& geometry) : Blind(config, geometry) {}

  [[nodiscard]] Selection select(const Sequence& sequence, int /*kv_head*/,
                                 View<const float, 2> /*queries*/) const override {
    const int sink = pages_for(config().sink_tokens) * kPageTokens;
    ListBuilder list;
    list.add(0, sink);
    list.add(std::max(sink, sequence.tokens - (config().budget_tokens - sink)), sequence.tokens);
    Selection out;
    out.lists.push_back(list.take());
    return out;
  }
};

/// The forced tokens, and parts drawn at random, anew at every step.
class Random final : public Blind {
 public:
  Random(const SelectorConfig& config, const Geometry& geometry) : Blind(config, geometry) {}

  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> /*queries*/) const override {
    const SelectConfig forced{.budget_tokens = config().budget_tokens,
                              .sink_tokens = config().sink_tokens,
                              .recent_tokens = config().recent_tokens};
    const AlwaysAttended always = always_attended(forced, sequence.tokens);
    const int part = config().part_tokens;
    const int first = always.sink_pages * kPageTokens;
    std::vector<float> drawn(static_cast<std::size_t>(always.selectable_pages() * kPageTokens / part));
    std::uint64_t state = config().seed * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(sequence.tokens) * 65536U +
                          static_cast<std::uint64_t>(kv_head);
    for (float& number : drawn) number = static_cast<float>(next(state) >> 40);
    ListBuilder list;
    list.add(0, first);
    for (const std::int32_t i : largest(drawn, (config().budget_tokens - always.tokens) / part)) {
      list.add(first + i * part, first + (i + 1) * part);
    }
    list.add(always.first_recent_page * kPageTokens, sequence.tokens);
    Selection out;
    out.lists.push_back(list.take());
    return out;
  }

 private:
  /// SplitMix64.
  static std::uint64_t next(std::uint64_t& state) noexcept {
    std::uint64_t z = state += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
  }
};

}  // namespace

std::unique_ptr<Selector> make_random(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Random>(config, geometry);
}
std::unique_ptr<Selector> make_recency(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Recency>(config, geometry);
}

}  // namespace locks::selectors
