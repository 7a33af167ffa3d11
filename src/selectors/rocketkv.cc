// RocketKV (Behnam et al., ICML 2025), from its formulas. Two stages: when a prompt has been read, the tokens that its last
// queries look at are kept and all others evicted (as SnapKV does); at each step, small pages of the kept tokens are scored
// by some channels of their largest and smallest keys, and single tokens selected.
//
// Half of the budget T is attended, the other half pays for scoring. With L tokens of prompt, N to come, M = L + N:
//     c = max(1, M / T),  rho = min(0.2 + 0.06 log2 c, 0.8),  C = max(int(M / c^rho), min(2 N, M)),  kept: C - N
//     c2 = max(1, C / T),  page = ceil(sqrt c2), 1 if that exceeds c2,  channels = int(D page / c2)
#include "selectors/rocketkv.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "selectors/support.h"

namespace locks::selectors {

RocketSizes rocket_sizes(int budget_tokens, int prompt_tokens, int new_tokens, int head_dim) noexcept {
  const double all = static_cast<double>(prompt_tokens) + new_tokens;
  const double ratio = std::max(1.0, all / budget_tokens);
  const double by_eviction = std::min(0.2 + 0.06 * std::log2(ratio), 0.8);
  const double held = std::max(std::floor(all / std::pow(ratio, by_eviction)), std::min(2.0 * new_tokens, all));
  const double rest = std::max(1.0, held / budget_tokens);
  const double page = std::ceil(std::sqrt(rest));
  RocketSizes sizes;
  sizes.kept_tokens = static_cast<int>(held) - new_tokens;
  sizes.page_tokens = page > rest ? 1 : static_cast<int>(page);
  sizes.channels = std::clamp(static_cast<int>(head_dim * sizes.page_tokens / rest), 1, head_dim);
  sizes.attended_tokens = budget_tokens / 2;
  return sizes;
}

namespace {

constexpr std::size_t kWindow = 32;  // last queries of the prompt, and last tokens, which are always kept
constexpr int kPool = 63;            // a token is worth what the best of so many around it is

class RocketKv final : public Selector {
 public:
  RocketKv(const SelectorConfig& config, const Geometry& geometry)
      : Selector(config, geometry), heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

  void read_prompt(const Sequence& sequence, int kv_head, View<const float, 3> queries) override {
    Head& head = heads_[static_cast<std::size_t>(kv_head)];
    const auto rows = static_cast<int>(queries.shape[0]);
    const auto floats = static_cast<std::size_t>(geometry().group_size() * geometry().head_dim);
    for (int row = std::max(0, rows - static_cast<int>(kWindow)); row < rows; ++row) {
      PromptRow& of = head.window.emplace_back();
      of.tokens = sequence.tokens - rows + row + 1;
      of.queries.reserve(floats);
      for (int query = 0; query < geometry().group_size(); ++query) {
        const float* const from = queries.at(row, query);
        of.queries.insert(of.queries.end(), from, from + geometry().head_dim);
      }
    }
    while (head.window.size() > kWindow) head.window.erase(head.window.begin());
    head.prompt_tokens = sequence.tokens;
    head.evicted = false;
  }

  [[nodiscard]] bool lacks_prompt() const noexcept override { return heads_[0].window.empty() && !heads_[0].evicted; }

  void append(const Sequence& sequence, int kv_head) override {
    Head& head = heads_[static_cast<std::size_t>(kv_head)];
    if (!head.evicted) evict(sequence, kv_head, head);
    head.prompt_tokens = std::min(head.prompt_tokens, sequence.tokens);
    const auto known = static_cast<std::size_t>(std::lower_bound(head.tokens.begin(), head.tokens.end(), sequence.tokens) -
                                                head.tokens.begin());
    head.tokens.resize(known);
    // Behind what was kept of the prompt come all tokens since.
    const int next = head.tokens.empty() ? 0 : head.tokens.back() + 1;
    for (int token = std::max(next, head.prompt_tokens); token < sequence.tokens; ++token) head.tokens.push_back(token);
    head.bounded = std::min(head.bounded, known);
    bound_pages(sequence, kv_head, head);
  }

  [[nodiscard]] Selection select(const Sequence& /*sequence*/, int kv_head, View<const float, 2> queries) const override {
    const Head& head = heads_[static_cast<std::size_t>(kv_head)];
    const int head_dim = geometry().head_dim;
    const auto page_tokens = static_cast<std::size_t>(head.sizes.page_tokens);
    const std::vector<std::int32_t> channels = strongest_channels(queries, head.sizes.channels);
    std::vector<bool> upper;  // which bound a channel reads: that of the sign of the queries' sum
    for (const std::int32_t channel : channels) {
      float sum = 0.0F;
      for (std::int64_t query = 0; query < queries.shape[0]; ++query) sum += queries(query, channel);
      upper.push_back(sum > 0.0F);
    }
    std::vector<float> share(head.tokens.size());
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      const float* const q = queries.at(query);
      float in_channels = 0.0F;
      for (const std::int32_t channel : channels) in_channels += std::abs(q[channel]);
      float in_all = 0.0F;
      for (int dim = 0; dim < head_dim; ++dim) in_all += std::abs(q[dim]);
      const float temperature = in_all > 0.0F ? std::sqrt(static_cast<float>(head_dim) * in_channels / in_all) : 1.0F;
      std::vector<float> weights(head.tokens.size());
      for (std::size_t first = 0; first < weights.size(); first += page_tokens) {
        const float* const bounds = head.bounds.data() + first / page_tokens * 2 * static_cast<std::size_t>(head_dim);
        float score = 0.0F;
        for (std::size_t i = 0; i < channels.size(); ++i) {
          score += q[channels[i]] * bounds[(upper[i] ? 0 : head_dim) + channels[i]];
        }
        const std::size_t last = std::min(first + page_tokens, weights.size());
        std::fill(weights.begin() + static_cast<std::ptrdiff_t>(first), weights.begin() + static_cast<std::ptrdiff_t>(last),
                  score / temperature);
      }
      normalise(weights);
      for (std::size_t i = 0; i < share.size(); ++i) share[i] += weights[i];
    }
    ListBuilder list;
    for (const std::int32_t i : largest(share, head.sizes.attended_tokens)) {
      list.add(head.tokens[static_cast<std::size_t>(i)], head.tokens[static_cast<std::size_t>(i)] + 1);
    }
    Selection out;
    out.lists.push_back(list.take());
    return out;
  }

  /// Of the two bounds of a page, one is read, of the chosen channels.
  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override {
    return num_pages() * heads_[0].sizes.channels * element_bytes(sequence);
  }
  [[nodiscard]] std::int64_t held_bytes(const Sequence& sequence) const noexcept override {
    return num_pages() * 2 * geometry().head_dim * element_bytes(sequence);
  }

 private:
  struct PromptRow {
    std::int32_t tokens = 0;     // that it sees
    std::vector<float> queries;  // [group_size, head_dim]
  };
  struct Head {
    std::vector<PromptRow> window;
    std::int32_t prompt_tokens = 0;
    bool evicted = false;
    RocketSizes sizes;
    std::vector<std::int32_t> tokens;  // that are left, ascending
    std::size_t bounded = 0;           // of them, that are in
    std::vector<float> bounds;         // [pages, 2, head_dim]: largest, smallest
  };

  [[nodiscard]] std::int64_t num_pages() const noexcept {
    const Head& head = heads_[0];
    return head.sizes.page_tokens == 0
               ? 0
               : (static_cast<std::int64_t>(head.tokens.size()) + head.sizes.page_tokens - 1) / head.sizes.page_tokens;
  }
  [[nodiscard]] static std::int64_t element_bytes(const Sequence& sequence) noexcept {
    return sequence.keys.dtype == DType::kF32 ? 4 : 2;
  }

  /// A prompt that was not seen (a restored cache) is kept whole: there are no queries to judge it by.
  void evict(const Sequence& sequence, int kv_head, Head& head) {
    if (head.window.empty()) head.prompt_tokens = std::max(0, sequence.tokens - 1);
    const int prompt = head.prompt_tokens;
    head.sizes = rocket_sizes(config().budget_tokens, prompt, config().new_tokens, geometry().head_dim);
    std::vector<std::int32_t> left = head.tokens;  // of earlier turns
    head.bounded = 0;
    if (config().multi_turn || left.empty()) {
      left.resize(static_cast<std::size_t>(prompt));
      std::iota(left.begin(), left.end(), 0);
    } else {
      for (int token = left.back() + 1; token < prompt; ++token) left.push_back(token);
    }
    const int keep = head.sizes.kept_tokens;
    const auto window = static_cast<std::int64_t>(head.window.size());
    const auto before = static_cast<std::int64_t>(left.size()) - window;
    if (head.window.empty() || static_cast<std::int64_t>(left.size()) <= keep || before <= 0) {
      head.tokens = std::move(left);
      head.window.clear();
      head.evicted = true;
      return;
    }
    const std::vector<float> worth = pooled(watched(sequence, kv_head, head, left), static_cast<std::size_t>(before));
    std::vector<std::int32_t> kept;
    for (const std::int32_t i : largest(worth, keep - window)) kept.push_back(left[static_cast<std::size_t>(i)]);
    kept.insert(kept.end(), left.end() - window, left.end());
    head.tokens = std::move(kept);
    head.window.clear();
    head.evicted = true;
  }

  /// How much the window's queries look at each token, over all of them and all query heads.
  [[nodiscard]] std::vector<float> watched(const Sequence& sequence, int kv_head, const Head& head,
                                           const std::vector<std::int32_t>& left) const {
    const int head_dim = geometry().head_dim;
    std::vector<float> keys(left.size() * static_cast<std::size_t>(head_dim));
    for (std::size_t i = 0; i < left.size(); ++i) {
      load_rows(sequence, sequence.keys, kv_head, left[i], left[i] + 1, head_dim,
                keys.data() + i * static_cast<std::size_t>(head_dim));
    }
    std::vector<float> sum(left.size());
    std::vector<float> weights(left.size());
    for (const PromptRow& row : head.window) {
      for (int query = 0; query < geometry().group_size(); ++query) {
        const float* const q = row.queries.data() + query * head_dim;
        for (std::size_t i = 0; i < left.size(); ++i) {
          weights[i] = left[i] < row.tokens ? geometry().softmax_scale *
                                                  dot(q, keys.data() + i * static_cast<std::size_t>(head_dim), head_dim)
                                            : kNone;
        }
        normalise(weights);
        for (std::size_t i = 0; i < left.size(); ++i) sum[i] += weights[i];
      }
    }
    return sum;
  }

  [[nodiscard]] static std::vector<float> pooled(const std::vector<float>& worth, std::size_t count) {
    constexpr std::ptrdiff_t kReach = kPool / 2;
    std::vector<float> out(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      const auto first = worth.begin() + std::max<std::ptrdiff_t>(0, at - kReach);
      const auto last = worth.begin() + std::min(static_cast<std::ptrdiff_t>(count), at + kReach + 1);
      out[i] = *std::max_element(first, last);
    }
    return out;
  }

  void bound_pages(const Sequence& sequence, int kv_head, Head& head) const {
    const auto head_dim = static_cast<std::size_t>(geometry().head_dim);
    const auto page_tokens = static_cast<std::size_t>(head.sizes.page_tokens);
    head.bounds.resize((head.tokens.size() + page_tokens - 1) / page_tokens * 2 * head_dim);
    std::vector<float> key(head_dim);
    for (std::size_t i = head.bounded / page_tokens * page_tokens; i < head.tokens.size(); ++i) {
      const int token = head.tokens[i];
      load_rows(sequence, sequence.keys, kv_head, token, token + 1, geometry().head_dim, key.data());
      float* const most = head.bounds.data() + i / page_tokens * 2 * head_dim;
      float* const least = most + head_dim;
      const bool first = i % page_tokens == 0;
      for (std::size_t dim = 0; dim < head_dim; ++dim) {
        most[dim] = first ? key[dim] : std::max(most[dim], key[dim]);
        least[dim] = first ? key[dim] : std::min(least[dim], key[dim]);
      }
    }
    head.bounded = head.tokens.size();
  }

  [[nodiscard]] std::vector<std::int32_t> strongest_channels(const View<const float, 2>& queries, int count) const {
    std::vector<float> strength(static_cast<std::size_t>(geometry().head_dim));
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      for (std::size_t dim = 0; dim < strength.size(); ++dim) strength[dim] += std::abs(queries(query, dim));
    }
    return largest(strength, count);
  }

  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Selector> make_rocketkv(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<RocketKv>(config, geometry);
}

}  // namespace locks::selectors
