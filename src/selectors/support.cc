#include "selectors/support.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/element.h"

namespace locks::selectors {

void load_rows(const Sequence& sequence, const PagedCache& cache, int kv_head, int first, int last, int head_dim,
               float* out) {
  for (int token = first; token < last; ++token) {
    load_row(cache.dtype, sequence.row(cache, token, kv_head), head_dim, out);
    out += head_dim;
  }
}

float dot(const float* a, const float* b, int count) noexcept {
  constexpr int kLanes = 16;  // independent sums, which the compiler may keep in vectors; every head dimension is a multiple
  float sums[kLanes] = {};
  for (int i = 0; i < count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  return std::accumulate(sums, sums + kLanes, 0.0F);
}

std::vector<std::int32_t> largest(std::span<const float> scores, std::int64_t count) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto taken = std::clamp<std::int64_t>(count, 0, static_cast<std::int64_t>(order.size()));
  const auto key = [&](std::int32_t i) { return std::isnan(scores[i]) ? kNone : scores[i]; };
  const auto before = [&](std::int32_t a, std::int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; };
  std::nth_element(order.begin(), order.begin() + taken, order.end(), before);
  order.resize(static_cast<std::size_t>(taken));
  std::sort(order.begin(), order.end());
  return order;
}

void ListBuilder::add(int first, int last) {
  while (first < last) {
    const int page = first / kPageTokens;
    const int end = std::min(last, (page + 1) * kPageTokens);
    const auto mask = static_cast<std::uint16_t>(((1U << (end - first)) - 1U) << first % kPageTokens);
    if (list_.empty() || list_.back().page != page) list_.push_back({page, 0});
    list_.back().mask |= mask;
    first = end;
  }
}

void normalise(std::span<float> logits) noexcept {
  float most = kNone;
  for (const float logit : logits) most = logit > most ? logit : most;
  double total = 0.0;
  for (float& logit : logits) {
    logit = logit > kNone && std::isfinite(most) ? std::exp(logit - most) : 0.0F;
    total += logit;
  }
  if (total > 0.0) {
    for (float& weight : logits) weight = static_cast<float>(weight / total);
  }
}

std::vector<float> combined(std::span<const std::vector<float>> of_heads, GroupCombine combine) {
  std::vector<float> out = of_heads.front();
  for (const std::vector<float>& scores : of_heads.subspan(1)) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = combine == GroupCombine::kMax ? std::max(out[i], scores[i]) : out[i] + scores[i];
    }
  }
  return out;
}

}  // namespace locks::selectors
