#include "exact.h"

#include <array>
#include <cmath>
#include <limits>

#include "cpu/element.h"

namespace locks::llamacpp {
namespace {

using Row = std::array<float, kMaxHeadDim>;

void load_row(const PagedCache& cache, std::int64_t cell, int head, int head_dim, Row& row) noexcept {
  locks::load_row(cache.dtype, cache.data + cell * cache.token_stride + head * cache.head_stride, head_dim, row.data());
}

void attend_row(const AttentionNode& node, std::int64_t stream, std::int64_t row, int query_head) noexcept {
  const int head_dim = node.geometry.head_dim;
  const int kv_head = query_head / node.geometry.group_size();
  const float* const query = node.query_rows(stream, row, 1).at(0, query_head);
  float* const out = node.output_rows(stream, row, 1).at(0, query_head);
  const std::uint16_t* const mask = node.mask_row(stream, row);
  const std::int64_t first_cell = node.first_cell + stream * node.stream_stride;
  Row loaded;
  Row sum{};
  float largest = -std::numeric_limits<float>::infinity();
  float weights = 0.0F;
  for (std::int64_t cell = 0; cell < node.seen_cells; ++cell) {
    const float bias = f16_to_float(mask[cell]);
    if (bias == -std::numeric_limits<float>::infinity()) continue;
    load_row(node.keys, first_cell + cell, kv_head, head_dim, loaded);
    float dot = 0.0F;
    for (int i = 0; i < head_dim; ++i) dot += query[i] * loaded[i];
    const float logit = dot * node.geometry.softmax_scale + bias;
    if (logit > largest) {
      const float shrink = std::exp(largest - logit);
      weights *= shrink;
      for (int i = 0; i < head_dim; ++i) sum[i] *= shrink;
      largest = logit;
    }
    const float weight = std::exp(logit - largest);
    load_row(node.values, first_cell + cell, kv_head, head_dim, loaded);
    weights += weight;
    for (int i = 0; i < head_dim; ++i) sum[i] += weight * loaded[i];
  }
  const float scale = weights > 0.0F ? 1.0F / weights : 0.0F;
  for (int i = 0; i < head_dim; ++i) out[i] = sum[i] * scale;
}

}  // namespace

void attend_exactly(const AttentionNode& node, Team team) noexcept {
  const int heads = node.geometry.query_heads;
  const auto [first, last] = team.share(node.streams * node.rows * heads);
  for (std::int64_t item = first; item < last; ++item) {
    const std::int64_t row = item / heads % node.rows;
    attend_row(node, item / heads / node.rows, row, static_cast<int>(item % heads));
  }
}

}  // namespace locks::llamacpp
