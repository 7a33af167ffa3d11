// One FLASH_ATTN_EXT node over a KV cache, as the library sees it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "host.h"
#include "locks/paged_cache.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks::llamacpp {

/// Why an attention node is left to the host.
enum class Decline : std::uint8_t {
  kNone,
  kNoKvCache,     // keys that are not a view of a tensor called cache_k...: encoders, vision towers
  kNotAllocated,  // a host measuring what it will need; not counted
  kMla,           // keys and values of different sizes, or in one tensor
  kNotHostMemory,
  kHeadDim,
  kType,
  kAlibi,
  kSoftcap,
  kSinks,
  kModelSparsity,
  kSlidingWindow,
  kLayout,  // anything else about shapes and strides
  kPrefillOff,
  kWritesUnseen,  // no node writes the keys of this cache
  kCount,
};
[[nodiscard]] std::string_view decline_key(Decline reason) noexcept;   // for the statistics: "soft_cap"
[[nodiscard]] std::string_view decline_text(Decline reason) noexcept;  // for people

/// A rewritten node may have the tensor of the cells being written as this source, which keeps it alive until then.
inline constexpr int kIndicesSource = 5;
static_assert(kIndicesSource < GGML_MAX_SRC);

struct AttentionNode {
  Geometry geometry;
  const ggml_tensor* node = nullptr;
  const ggml_tensor* queries = nullptr;  // [head_dim, rows, query_heads, streams], innermost first
  const ggml_tensor* mask = nullptr;     // [seen_cells, rows or more, 1, streams], f16
  const ggml_tensor* key_root = nullptr;
  const ggml_tensor* value_root = nullptr;
  std::int64_t rows = 0;  // of queries, per stream
  std::int64_t streams = 0;
  std::int64_t seen_cells = 0;     // per stream
  std::int64_t first_cell = 0;     // of the first stream
  std::int64_t stream_stride = 0;  // in cells
  std::int64_t num_cells = 0;      // of the whole cache
  std::int64_t stream_cells = 0;   // of one stream of the cache
  PagedCache keys;                 // pages of 16 cells from the start of the cache
  PagedCache values;

  [[nodiscard]] View<const float, 3> query_rows(std::int64_t stream, std::int64_t row, std::int64_t count) const noexcept;
  [[nodiscard]] View<float, 3> output_rows(std::int64_t stream, std::int64_t row, std::int64_t count) const noexcept;
  [[nodiscard]] const std::uint16_t* mask_row(std::int64_t stream, std::int64_t row) const noexcept;
};

/// The root of a view, or the tensor itself.
[[nodiscard]] inline const ggml_tensor* root_of(const ggml_tensor* tensor) noexcept {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}
[[nodiscard]] bool is_key_cache(const ggml_tensor* root) noexcept;

/// Reads `node`, whose attention parameters are at `params` (a rewritten node keeps them elsewhere).
[[nodiscard]] Decline read_attention_node(const Host& host, const ggml_tensor* node, const unsigned char* params,
                                          AttentionNode& out) noexcept;

}  // namespace locks::llamacpp
