#include "selectors/page_scores.h"

#include <algorithm>

namespace locks::selectors {

PageScores::PageScores(const SelectorConfig& config, const Geometry& geometry, int vectors)
    : Selector(config, geometry), vectors_(vectors), heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

void PageScores::append(const Sequence& sequence, int kv_head) {
  Head& head = heads_[static_cast<std::size_t>(kv_head)];
  const int head_dim = geometry().head_dim;
  head.vectors.resize(static_cast<std::size_t>(sequence.num_pages()) * page_floats());
  std::vector<float> keys(static_cast<std::size_t>(kPageTokens * head_dim));
  // A page that is not full, or that tokens were taken back from, is made anew.
  for (int page = std::min(head.tokens, sequence.tokens) / kPageTokens; page < sequence.num_pages(); ++page) {
    const int first = page * kPageTokens;
    const int last = std::min(first + kPageTokens, sequence.tokens);
    load_rows(sequence, sequence.keys, kv_head, first, last, head_dim, keys.data());
    describe(keys.data(), last - first, head.vectors.data() + static_cast<std::size_t>(page) * page_floats());
  }
  head.tokens = sequence.tokens;
}

Selection PageScores::select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const {
  const Head& head = heads_[static_cast<std::size_t>(kv_head)];
  const int current = sequence.num_pages() - 1;
  std::vector<std::vector<float>> scores;
  for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
    std::vector<float>& of_head = scores.emplace_back(static_cast<std::size_t>(current));
    for (int page = 0; page < current; ++page) {
      of_head[static_cast<std::size_t>(page)] =
          score(queries.at(query), head.vectors.data() + static_cast<std::size_t>(page) * page_floats());
    }
  }
  Selection out;
  for_each_list(scores, config().combine, [&](std::span<const float> of_list) {
    ListBuilder list;
    for (const std::int32_t page : largest(of_list, config().budget_tokens / kPageTokens - 1)) {
      list.add(page * kPageTokens, (page + 1) * kPageTokens);
    }
    list.add(current * kPageTokens, sequence.tokens);
    out.lists.push_back(list.take());
  });
  return out;
}

std::int64_t PageScores::score_bytes(const Sequence& sequence) const noexcept {
  return std::int64_t{sequence.num_pages() - 1} * held_bytes(sequence) / std::max(1, sequence.num_pages());
}

/// The vectors have the keys' own type; those of a q8_0 cache would be f16.
std::int64_t PageScores::held_bytes(const Sequence& sequence) const noexcept {
  const DType dtype = sequence.keys.dtype == DType::kQ8_0 ? DType::kF16 : sequence.keys.dtype;
  return std::int64_t{sequence.num_pages()} * vectors_ * row_bytes(dtype, geometry().head_dim);
}

}  // namespace locks::selectors
