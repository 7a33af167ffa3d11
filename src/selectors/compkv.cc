// CompKV (2026): a page's mean key, mean value and the variance of its keys in four groups of rotary pairs. What is not
// attended is completed by the means, and pages are selected by what their means cannot stand for:
//     z = scale q.mean,  v = (1/D) sum_t (sum over d in group t of q_d^2) variance_t
//     mass ~ tokens exp(z + v / 2), normalised for each query head;  s = sum over the query heads of mass v
// A skipped page counts as `tokens` keys of logit z whose value is the mean value.
#include <algorithm>
#include <cmath>

#include "selectors/support.h"

namespace locks::selectors {
namespace {

constexpr int kRecentPages = 2;  // always attended, the one being filled among them

/// Groups are runs of pairs of dimensions that the rotary embedding turns together, from the fastest to the slowest.
std::size_t group_of(int dim, int head_dim, const SelectorConfig& config) noexcept {
  const int pair = config.rope.interleaved ? dim / 2 : dim % (head_dim / 2);
  return static_cast<std::size_t>(pair * config.variance_groups / (head_dim / 2));
}

class Compkv final : public Selector {
 public:
  Compkv(const SelectorConfig& config, const Geometry& geometry)
      : Selector(config, geometry), heads_(static_cast<std::size_t>(geometry.kv_heads)) {}

  void append(const Sequence& sequence, int kv_head) override {
    Head& head = heads_[static_cast<std::size_t>(kv_head)];
    const int head_dim = geometry().head_dim;
    head.pages.resize(static_cast<std::size_t>(sequence.num_pages()));
    std::vector<float> rows(static_cast<std::size_t>(kPageTokens * head_dim));
    for (int page = std::min(head.tokens, sequence.tokens) / kPageTokens; page < sequence.num_pages(); ++page) {
      const int first = page * kPageTokens;
      const int last = std::min(first + kPageTokens, sequence.tokens);
      Page& of = head.pages[static_cast<std::size_t>(page)];
      of.tokens = last - first;
      load_rows(sequence, sequence.values, kv_head, first, last, head_dim, rows.data());
      of.mean_value = mean(rows, of.tokens);
      load_rows(sequence, sequence.keys, kv_head, first, last, head_dim, rows.data());
      of.mean_key = mean(rows, of.tokens);
      set_variance(rows, of);
    }
    head.tokens = sequence.tokens;
  }

  [[nodiscard]] Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const override {
    const std::vector<Page>& pages = heads_[static_cast<std::size_t>(kv_head)].pages;
    const int sink = pages_for(config().sink_tokens);
    const int recent = std::max(sink, static_cast<int>(pages.size()) - kRecentPages);
    std::vector<std::vector<float>> logits;  // z, for each query head
    std::vector<float> worth(static_cast<std::size_t>(recent - sink));
    for (std::int64_t query = 0; query < queries.shape[0]; ++query) {
      std::vector<float>& z = logits.emplace_back();
      std::vector<float> mass;
      std::vector<float> variance;
      for (const Page& page : pages) {
        z.push_back(geometry().softmax_scale * dot(queries.at(query), page.mean_key.data(), geometry().head_dim));
        variance.push_back(logit_variance(queries.at(query), page));
        mass.push_back(z.back() + std::log(static_cast<float>(page.tokens)) + 0.5F * variance.back());
      }
      normalise(mass);
      for (std::size_t i = 0; i < worth.size(); ++i) {
        const std::size_t page = i + static_cast<std::size_t>(sink);
        worth[i] += mass[page] * variance[page];
      }
    }
    Selection out;
    ListBuilder list;
    std::vector<bool> skipped(pages.size());
    std::fill(skipped.begin() + sink, skipped.begin() + recent, true);
    list.add(0, sink * kPageTokens);
    for (const std::int32_t i : largest(worth, config().budget_tokens / kPageTokens - sink - kRecentPages)) {
      list.add((sink + i) * kPageTokens, (sink + i + 1) * kPageTokens);
      skipped[static_cast<std::size_t>(sink + i)] = false;
    }
    list.add(recent * kPageTokens, sequence.tokens);
    out.lists.push_back(list.take());
    for (const std::vector<float>& z : logits) out.stand_in.push_back(completion(pages, skipped, z));
    return out;
  }
  /// The mean values of skipped pages are read too: of all but the few that are attended.
  [[nodiscard]] std::int64_t score_bytes(const Sequence& sequence) const noexcept override { return held_bytes(sequence); }
  [[nodiscard]] std::int64_t held_bytes(const Sequence& sequence) const noexcept override {
    return std::int64_t{sequence.num_pages()} * (2 * geometry().head_dim + config().variance_groups) * 2;
  }

 private:
  struct Page {
    int tokens = 0;
    std::vector<float> mean_key;
    std::vector<float> mean_value;
    std::vector<float> variance;  // of a group's dimensions
  };
  struct Head {
    std::int32_t tokens = 0;
    std::vector<Page> pages;
  };

  [[nodiscard]] std::size_t num_groups() const noexcept { return static_cast<std::size_t>(config().variance_groups); }
  [[nodiscard]] std::vector<float> mean(const std::vector<float>& rows, int tokens) const {
    const int head_dim = geometry().head_dim;
    std::vector<float> out(static_cast<std::size_t>(head_dim));
    for (int dim = 0; dim < head_dim; ++dim) {
      double sum = 0.0;
      for (int token = 0; token < tokens; ++token) sum += rows[static_cast<std::size_t>(token * head_dim + dim)];
      out[static_cast<std::size_t>(dim)] = rounded(static_cast<float>(sum / tokens));
    }
    return out;
  }
  void set_variance(const std::vector<float>& keys, Page& page) const {
    const int head_dim = geometry().head_dim;
    std::vector<double> sums(num_groups());
    for (int dim = 0; dim < head_dim; ++dim) {
      for (int token = 0; token < page.tokens; ++token) {
        const double deviation = static_cast<double>(keys[static_cast<std::size_t>(token * head_dim + dim)]) -
                                 static_cast<double>(page.mean_key[static_cast<std::size_t>(dim)]);
        sums[group_of(dim, head_dim, config())] += deviation * deviation;
      }
    }
    std::vector<int> dims(num_groups());
    for (int dim = 0; dim < head_dim; ++dim) ++dims[group_of(dim, head_dim, config())];
    page.variance.resize(num_groups());
    for (std::size_t group = 0; group < num_groups(); ++group) {
      page.variance[group] = rounded(static_cast<float>(sums[group] / (dims[group] * page.tokens)));
    }
  }
  [[nodiscard]] float logit_variance(const float* query, const Page& page) const {
    const int head_dim = geometry().head_dim;
    std::vector<float> squares(num_groups());
    for (int dim = 0; dim < head_dim; ++dim) squares[group_of(dim, head_dim, config())] += query[dim] * query[dim];
    float sum = 0.0F;
    for (std::size_t group = 0; group < num_groups(); ++group) sum += squares[group] * page.variance[group];
    return geometry().softmax_scale * geometry().softmax_scale * sum;
  }
  [[nodiscard]] std::vector<float> completion(const std::vector<Page>& pages, const std::vector<bool>& skipped,
                                              const std::vector<float>& z) const {
    const int head_dim = geometry().head_dim;
    std::vector<float> state(static_cast<std::size_t>(2 + head_dim));
    float& most = state[0] = kNone;
    for (std::size_t page = 0; page < pages.size(); ++page) {
      if (skipped[page]) most = std::max(most, z[page]);
    }
    for (std::size_t page = 0; page < pages.size(); ++page) {
      if (!skipped[page] || !(z[page] > kNone)) continue;
      const float weight = static_cast<float>(pages[page].tokens) * std::exp(z[page] - most);
      state[1] += weight;
      for (int dim = 0; dim < head_dim; ++dim) {
        state[static_cast<std::size_t>(2 + dim)] += weight * pages[page].mean_value[static_cast<std::size_t>(dim)];
      }
    }
    return state;
  }

  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Selector> make_compkv(const SelectorConfig& config, const Geometry& geometry) {
  return std::make_unique<Compkv>(config, geometry);
}

}  // namespace locks::selectors
