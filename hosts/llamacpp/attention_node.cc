#include "attention_node.h"

#include <array>
#include <string_view>

namespace locks::llamacpp {
namespace {

struct Words {
  std::string_view key;
  std::string_view text;
};
constexpr std::array<Words, static_cast<std::size_t>(Decline::kCount)> kWords{{
    {"none", "taken"},
    {"no_kv_cache", "its keys are not in a KV cache"},
    {"not_allocated", "its cache has no memory"},
    {"mla", "keys and values share a tensor or differ in size (MLA)"},
    {"not_host_memory", "its KV cache is not in the CPU's memory"},
    {"head_dim", "its head dimension is not 64, 80, 96, 128, 192 or 256"},
    {"type", "its cache is not f32, f16, bf16 or q8_0"},
    {"alibi", "it has position biases (ALiBi)"},
    {"soft_cap", "its logits are soft-capped"},
    {"sinks", "it has attention sinks of the model's own"},
    {"model_sparsity", "the model has a sparse mask of its own"},
    {"sliding_window", "it has a sliding window"},
    {"layout", "its tensors are laid out in an unknown way"},
    {"prefill_off", "LOCKS_PREFILL is off and this is a prompt"},
    {"writes_unseen", "nothing was seen to write its keys"},
}};

bool to_dtype(ggml_type type, DType& dtype) noexcept {
  switch (type) {
    case GGML_TYPE_F32:
      dtype = DType::kF32;
      return true;
    case GGML_TYPE_F16:
      dtype = DType::kF16;
      return true;
    case GGML_TYPE_BF16:
      dtype = DType::kBF16;
      return true;
    case GGML_TYPE_Q8_0:
      dtype = DType::kQ8_0;
      return true;
    default:
      return false;
  }
}

/// Fills `cache` and the cell at which the view begins. The view is [head_dim, cells, kv_heads, streams] of a root
/// [head_dim * kv_heads, cells, streams] without gaps between its rows.
bool read_cache(const ggml_tensor* view, const ggml_tensor* root, DType dtype, PagedCache& cache,
                std::int64_t& first_cell) noexcept {
  const auto row = static_cast<std::int64_t>(view->nb[1]);
  const auto offset = static_cast<std::int64_t>(view->view_src != nullptr ? view->view_offs : 0);
  const std::int64_t head_row = row_bytes(dtype, static_cast<int>(view->ne[0]));
  const auto head_stride = static_cast<std::int64_t>(view->nb[2]);
  const bool fits = root->nb[1] == view->nb[1] && row > 0 && offset % row == 0 &&
                    root->nb[2] == root->nb[1] * static_cast<std::size_t>(root->ne[1]) && root->ne[3] == 1 &&
                    (head_stride >= head_row || view->ne[2] == 1) && head_stride * (view->ne[2] - 1) + head_row <= row;
  if (!fits) return false;
  first_cell = offset / row;
  cache.data = static_cast<const std::byte*>(root->data);
  cache.dtype = dtype;
  cache.block_tokens = kPageTokens;
  cache.block_stride = row * kPageTokens;
  cache.token_stride = row;
  cache.head_stride = head_stride;
  cache.num_slots = root->ne[1] * root->ne[2];
  return true;
}

}  // namespace

std::string_view decline_key(Decline reason) noexcept { return kWords[static_cast<std::size_t>(reason)].key; }
std::string_view decline_text(Decline reason) noexcept { return kWords[static_cast<std::size_t>(reason)].text; }

bool is_key_cache(const ggml_tensor* root) noexcept { return std::string_view(root->name).starts_with("cache_k"); }

View<const float, 3> AttentionNode::query_rows(std::int64_t stream, std::int64_t row, std::int64_t count) const noexcept {
  const auto* const data = static_cast<const char*>(queries->data) + stream * static_cast<std::int64_t>(queries->nb[3]) +
                           row * static_cast<std::int64_t>(queries->nb[1]);
  return {reinterpret_cast<const float*>(data),
          {count, geometry.query_heads, geometry.head_dim},
          {static_cast<std::int64_t>(queries->nb[1] / 4), static_cast<std::int64_t>(queries->nb[2] / 4), 1}};
}

View<float, 3> AttentionNode::output_rows(std::int64_t stream, std::int64_t row, std::int64_t count) const noexcept {
  char* const data = static_cast<char*>(node->data) + stream * static_cast<std::int64_t>(node->nb[3]) +
                     row * static_cast<std::int64_t>(node->nb[2]);
  return {reinterpret_cast<float*>(data),
          {count, geometry.query_heads, geometry.head_dim},
          {static_cast<std::int64_t>(node->nb[2] / 4), static_cast<std::int64_t>(node->nb[1] / 4), 1}};
}

const std::uint16_t* AttentionNode::mask_row(std::int64_t stream, std::int64_t row) const noexcept {
  const auto* const data = static_cast<const char*>(mask->data) + row * static_cast<std::int64_t>(mask->nb[1]) +
                           (mask->ne[3] > 1 ? stream : 0) * static_cast<std::int64_t>(mask->nb[3]);
  return reinterpret_cast<const std::uint16_t*>(data);
}

Decline read_attention_node(const Host& host, const ggml_tensor* node, const unsigned char* params,
                            AttentionNode& out) noexcept {
  const ggml_tensor* const q = node->src[0];
  const ggml_tensor* const k = node->src[1];
  const ggml_tensor* const v = node->src[2];
  const ggml_tensor* const mask = node->src[3];
  if (q == nullptr || k == nullptr || v == nullptr) return Decline::kLayout;
  const ggml_tensor* const key_root = root_of(k);
  const ggml_tensor* const value_root = root_of(v);
  if (!is_key_cache(key_root)) return Decline::kNoKvCache;
  if (key_root->data == nullptr || key_root->buffer == nullptr) return Decline::kNotAllocated;
  if (key_root == value_root || k->ne[0] != v->ne[0] || k->ne[2] != v->ne[2]) return Decline::kMla;
  if (!in_host_memory(host, key_root) || !in_host_memory(host, value_root)) return Decline::kNotHostMemory;
  const AttentionParams settings = read_attention_params(params);
  if (settings.max_bias != 0.0F) return Decline::kAlibi;
  if (settings.softcap != 0.0F) return Decline::kSoftcap;
  if (settings.max_kv != 0) return Decline::kModelSparsity;
  if (node->src[4] != nullptr) return Decline::kSinks;
  if (!is_supported_head_dim(static_cast<int>(k->ne[0]))) return Decline::kHeadDim;
  DType key_dtype{};
  DType value_dtype{};
  if (!to_dtype(k->type, key_dtype) || !to_dtype(v->type, value_dtype)) return Decline::kType;
  const bool quantized = key_dtype == DType::kQ8_0 || value_dtype == DType::kQ8_0;
  if (quantized && k->ne[0] % kQ8BlockElements != 0) return Decline::kType;

  const std::int64_t rows = q->ne[1];
  const std::int64_t streams = q->ne[3];
  std::int64_t first_value_cell = 0;
  const bool queries_fit = q->type == GGML_TYPE_F32 && q->nb[0] == 4 && q->ne[0] == k->ne[0] && k->ne[2] > 0 &&
                           q->ne[2] % k->ne[2] == 0 && k->ne[3] == streams && v->ne[3] == streams && rows > 0 &&
                           q->nb[1] % 4 == 0 && q->nb[2] % 4 == 0;
  const bool output_fits = node->type == GGML_TYPE_F32 && node->nb[0] == 4 && node->ne[0] == v->ne[0] &&
                           node->ne[1] == q->ne[2] && node->ne[2] == rows && node->ne[3] == streams;
  const bool mask_fits = mask != nullptr && mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && mask->ne[0] == k->ne[1] &&
                         mask->ne[1] >= rows && mask->ne[2] == 1 && (mask->ne[3] == streams || mask->ne[3] == 1);
  const bool fits = queries_fit && output_fits && mask_fits && k->ne[1] == v->ne[1] &&
                    read_cache(k, key_root, key_dtype, out.keys, out.first_cell) &&
                    read_cache(v, value_root, value_dtype, out.values, first_value_cell);
  if (!fits) return Decline::kLayout;
  const auto key_row = static_cast<std::int64_t>(k->nb[1]);
  const bool streams_fit =
      streams == 1 || (k->nb[3] % k->nb[1] == 0 && k->nb[3] / k->nb[1] == v->nb[3] / v->nb[1] && v->nb[3] % v->nb[1] == 0);
  out.stream_stride = streams > 1 ? static_cast<std::int64_t>(k->nb[3]) / key_row : 0;
  out.num_cells = out.keys.num_slots;
  out.stream_cells = key_root->ne[1];
  const bool cells_fit = first_value_cell == out.first_cell && out.values.num_slots == out.num_cells &&
                         out.first_cell + (streams - 1) * out.stream_stride + k->ne[1] <= out.num_cells &&
                         out.first_cell % out.stream_cells == 0 && out.stream_stride % out.stream_cells == 0 &&
                         out.num_cells < (std::int64_t{1} << 31);
  if (!streams_fit || !cells_fit) return Decline::kLayout;

  out.geometry = {static_cast<int>(k->ne[0]), static_cast<int>(k->ne[2]), static_cast<int>(q->ne[2]), settings.scale};
  out.node = node;
  out.queries = q;
  out.mask = mask;
  out.key_root = key_root;
  out.value_root = value_root;
  out.rows = rows;
  out.streams = streams;
  out.seen_cells = k->ne[1];
  return Decline::kNone;
}

}  // namespace locks::llamacpp
