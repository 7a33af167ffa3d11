// The ggml of the program that we are loaded into: found at run time, probed, never linked.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "ggml-backend.h"
#include "ggml.h"

namespace locks::llamacpp {

/// Everything of ggml that the plug-in calls or relies on. One per process, filled once by probe_host().
struct Host {
  decltype(&ggml_op_name) op_name = nullptr;
  decltype(&ggml_backend_dev_by_type) device_by_type = nullptr;
  decltype(&ggml_backend_dev_init) device_init = nullptr;
  decltype(&ggml_backend_dev_backend_reg) device_registry = nullptr;
  decltype(&ggml_backend_dev_buffer_type) device_buffer_type = nullptr;
  decltype(&ggml_backend_free) backend_free = nullptr;
  decltype(&ggml_backend_buft_is_host) buffer_type_is_host = nullptr;
  decltype(&ggml_backend_buffer_get_type) buffer_type = nullptr;
  decltype(&ggml_backend_buffer_get_base) buffer_base = nullptr;
  decltype(&ggml_backend_buffer_get_size) buffer_size = nullptr;
  decltype(&ggml_init) init = nullptr;
  decltype(&ggml_free) free = nullptr;
  decltype(&ggml_new_tensor_4d) new_tensor_4d = nullptr;
  decltype(&ggml_view_2d) view_2d = nullptr;
  decltype(&ggml_custom_4d) custom_4d = nullptr;
  decltype(&ggml_flash_attn_ext) flash_attn_ext = nullptr;
  decltype(&ggml_set_name) set_name = nullptr;
  decltype(&ggml_get_name) get_name = nullptr;
  decltype(&ggml_tensor_overhead) tensor_overhead = nullptr;

  // Numbers of operations; they differ between versions.
  int flash_attn = -1;
  int set_rows = -1;
  int custom = -1;
  std::array<int, 5> without_effect{-1, -1, -1, -1, -1};  // NONE, VIEW, RESHAPE, PERMUTE, TRANSPOSE

  // A CUSTOM node's parameters as this ggml writes them, and where in them it keeps callback and user data.
  std::array<unsigned char, GGML_MAX_OP_PARAMS> custom_params{};
  std::size_t callback_at = 0;
  std::size_t userdata_at = 0;

  std::string version;  // "unknown version" if the host does not say
  std::string where;    // the shared object that ggml was found in
  void* handle = nullptr;

  [[nodiscard]] bool has_effect(int op) const noexcept {
    for (const int none : without_effect) {
      if (op == none) return false;
    }
    return true;
  }
};

/// Finds ggml in this process and checks every assumption by building nodes with the host's own functions. Null if there
/// is none (`why` says what is missing; may be asked again later) or if it is not what we know.
const Host* probe_host(std::string& why);
/// The host that probe_host() accepted, or null.
const Host* host() noexcept;

/// Whether the tensor lies in memory that the CPU reads directly.
[[nodiscard]] bool in_host_memory(const Host& host, const ggml_tensor* tensor) noexcept;

/// Where in FLASH_ATTN_EXT's parameters its settings lie. Checked by probe_host().
struct AttentionParams {
  float scale = 0.0F;
  float max_bias = 0.0F;
  float softcap = 0.0F;
  std::int32_t max_kv = 0;  // not 0: the model's own sparse mask
};
inline constexpr std::size_t kAttentionParamBytes = 20;
/// A rewritten node keeps its attention parameters here, behind those of CUSTOM.
inline constexpr std::size_t kSavedParamsAt = 32;
static_assert(kSavedParamsAt + kAttentionParamBytes <= GGML_MAX_OP_PARAMS);
[[nodiscard]] AttentionParams read_attention_params(const unsigned char* bytes) noexcept;

}  // namespace locks::llamacpp
