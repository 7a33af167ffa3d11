// Selectors in the tests: a request in plain double numbers, and lists as tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "locks/selector.h"
#include "locks/thread_pool.h"
#include "support/step.h"

namespace locks::test {

using Vector = std::vector<double>;

/// One request's keys, values and queries of one KV head, in double.
class Plain {
 public:
  Plain(const StepData& data, int request, int kv_head) : data_(data), request_(request), kv_head_(kv_head) {}

  [[nodiscard]] int tokens() const { return data_.table.context_tokens[static_cast<std::size_t>(request_)]; }
  [[nodiscard]] int pages() const { return (tokens() + 15) / 16; }
  [[nodiscard]] int tokens_of(int page) const { return std::min(16, tokens() - page * 16); }
  [[nodiscard]] double key(int token, int dim) const { return value_of(data_.keys, token, dim); }
  [[nodiscard]] double value(int token, int dim) const { return value_of(data_.values, token, dim); }
  [[nodiscard]] double query(int head, int dim) const {
    const auto& geometry = data_.geometry;
    const auto at = static_cast<std::size_t>(request_ * geometry.query_heads + kv_head_ * geometry.group_size() + head) *
                        static_cast<std::size_t>(geometry.head_dim) +
                    static_cast<std::size_t>(dim);
    return data_.queries[at];
  }
  [[nodiscard]] double logit(int head, int token) const {
    double sum = 0.0;
    for (int dim = 0; dim < data_.geometry.head_dim; ++dim) sum += query(head, dim) * key(token, dim);
    return sum * static_cast<double>(data_.geometry.softmax_scale);
  }
  [[nodiscard]] Vector weights(int head) const {
    Vector out(static_cast<std::size_t>(tokens()));
    for (int token = 0; token < tokens(); ++token) out[static_cast<std::size_t>(token)] = logit(head, token);
    const double most = *std::max_element(out.begin(), out.end());
    double total = 0.0;
    for (double& weight : out) total += weight = std::exp(weight - most);
    for (double& weight : out) weight /= total;
    return out;
  }

 private:
  [[nodiscard]] double value_of(const CacheData& cache, int token, int dim) const {
    return cache.value(data_.table.table.page(request_, token / 16), token % 16, kv_head_, dim);
  }

  const StepData& data_;
  int request_;
  int kv_head_;
};

/// Pages of the `count` largest scores, ascending.
inline std::vector<int> best(const Vector& scores, int count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
  std::sort(order.begin(), order.end());
  return order;
}

inline std::vector<int> tokens_in(const SelectedList& list) {
  std::vector<int> tokens;
  for (const SelectedPage& entry : list) {
    for (int i = 0; i < 16; ++i) {
      if ((entry.mask >> i & 1) != 0) tokens.push_back(entry.page * 16 + i);
    }
  }
  return tokens;
}

inline std::vector<int> tokens_of_pages(const std::vector<int>& pages, int tokens) {
  std::vector<int> out;
  for (const int page : pages) {
    for (int token = page * 16; token < std::min(tokens, page * 16 + 16); ++token) out.push_back(token);
  }
  return out;
}

/// A request of a StepData as a selector sees it.
struct View1 {
  std::vector<std::int32_t> pages;
  Sequence sequence;
  View1(const StepData& data, int request, int tokens) {
    for (int i = 0; i < (tokens + 15) / 16; ++i)
      pages.push_back(static_cast<std::int32_t>(data.table.table.page(request, i)));
    sequence = {data.keys.view(), data.values.view(), pages, tokens};
  }
};

inline View<const float, 2> queries_of(const StepData& data, int request, int kv_head) {
  const int group = data.geometry.group_size();
  return contiguous(data.queries.data() + (request * data.geometry.query_heads + kv_head * group) * data.geometry.head_dim,
                    group, data.geometry.head_dim);
}

inline Selection select_once(const SelectorConfig& config, const StepData& data, int kv_head) {
  const View1 view(data, 0, data.table.context_tokens[0]);
  const auto selector = make_selector(config, data.geometry);
  selector->begin_step(view.sequence);
  selector->append(view.sequence, kv_head);
  return selector->select(view.sequence, kv_head, queries_of(data, 0, kv_head));
}

inline SelectorConfig config_of(std::string_view name, int budget) {
  SelectorConfig config = selector_config(name);
  config.budget_tokens = budget;
  return config;
}

/// A step by selectors of their own for each request, on a pool of `threads`.
inline StepResult run_selectors(const SelectorConfig& config, const StepData& data, int threads, int min_context = 0) {
  std::vector<std::unique_ptr<Selector>> owned;
  std::vector<Selector*> selectors;
  for (std::size_t i = 0; i < data.table.context_tokens.size(); ++i) {
    owned.push_back(make_selector(config, data.geometry));
    selectors.push_back(owned.back().get());
  }
  StepResult result;
  const auto requests = static_cast<std::int64_t>(selectors.size());
  result.out.assign(data.queries.size(), std::numeric_limits<float>::quiet_NaN());
  result.reports.resize(selectors.size());
  result.coverage.resize(selectors.size() * static_cast<std::size_t>(data.geometry.kv_heads));
  SelectorStep step(config, data.geometry, min_context);
  ThreadPool pool(threads);
  const DecodeInputs inputs = data.inputs();
  const View<float, 3> out = contiguous(result.out.data(), requests, data.geometry.query_heads, data.geometry.head_dim);
  const View<float, 2> coverage = contiguous(result.coverage.data(), requests, data.geometry.kv_heads);
  pool.run(
      [&](Team team) { EXPECT_TRUE(step.run(inputs, selectors, out, result.reports, team, active_target(), coverage)); });
  return result;
}

}  // namespace locks::test
