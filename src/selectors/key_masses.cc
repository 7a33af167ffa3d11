#include "selectors/key_masses.h"

#include <algorithm>

#include "locks/rotation.h"

namespace locks::selectors {

KeyMasses::KeyMasses(const SelectorConfig& config, const Geometry& geometry, bool rotated)
    : Selector(config, geometry), rotated_(rotated), heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

void KeyMasses::append(const Sequence& sequence, int kv_head) {
  Head& head = heads_[static_cast<std::size_t>(kv_head)];
  const int head_dim = geometry().head_dim;
  const auto dims = static_cast<std::size_t>(head_dim);
  head.keys.resize(static_cast<std::size_t>(sequence.tokens) * dims);
  // A page that is not full is kept as it is, and read again when more of it is there.
  for (int page = std::min(head.tokens, sequence.tokens) / kPageTokens; page < sequence.num_pages(); ++page) {
    const int first = page * kPageTokens;
    const int last = std::min(first + kPageTokens, sequence.tokens);
    float* const keys = head.keys.data() + static_cast<std::size_t>(first) * dims;
    load_rows(sequence, sequence.keys, kv_head, first, last, head_dim, keys);
    for (int token = first; rotated_ && token < last; ++token) {
      rotate({head.keys.data() + static_cast<std::size_t>(token) * dims, dims});
    }
    if (last - first == kPageTokens) approximate(kv_head, keys);
  }
  head.tokens = sequence.tokens;
}

Selection KeyMasses::select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const {
  const SelectConfig forced{
      .budget_tokens = config().budget_tokens, .sink_tokens = config().sink_tokens, .recent_tokens = config().recent_tokens};
  const AlwaysAttended always = always_attended(forced, sequence.tokens);
  const int part = config().part_tokens;
  const int first = always.sink_pages * kPageTokens;
  const int parts = always.selectable_pages() * kPageTokens / part;
  std::vector<std::vector<float>> shares;  // of the selectable parts, for each query head
  std::vector<double> always_share;
  for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
    const std::vector<float> weights = attention(kv_head, queries.at(query), sequence.tokens);
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

std::vector<float> KeyMasses::attention(int kv_head, const float* query, int tokens) const {
  const int head_dim = geometry().head_dim;
  std::vector<float> turned(query, query + head_dim);
  if (rotated_) rotate(turned);
  const float* key = heads_[static_cast<std::size_t>(kv_head)].keys.data();
  std::vector<float> weights(static_cast<std::size_t>(tokens));
  for (float& weight : weights) {
    weight = geometry().softmax_scale * dot(turned.data(), key, head_dim);
    key += head_dim;
  }
  normalise(weights);
  return weights;
}

std::int64_t KeyMasses::score_bytes(const Sequence& sequence) const noexcept {
  return sequence.tokens / kPageTokens * page_bytes(sequence);
}
std::int64_t KeyMasses::held_bytes(const Sequence& sequence) const noexcept { return score_bytes(sequence); }

}  // namespace locks::selectors
