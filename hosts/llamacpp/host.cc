#include "host.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

namespace locks::llamacpp {
namespace {

std::atomic<const Host*> accepted{nullptr};

constexpr const char* kKnownSymbol = "ggml_backend_dev_by_type";

/// Under Python the global scope holds no ggml, so every loaded object is asked, by symbol and not by file name.
int find_object(dl_phdr_info* info, std::size_t, void* data) {
  if (info->dlpi_name == nullptr || *info->dlpi_name == '\0') return 0;
  void* const handle = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return 0;
  if (dlsym(handle, kKnownSymbol) == nullptr) {
    dlclose(handle);
    return 0;
  }
  auto& host = *static_cast<Host*>(data);
  host.handle = handle;
  host.where = info->dlpi_name;
  return 1;
}

bool find_ggml(Host& host) {
  if (dlsym(RTLD_DEFAULT, kKnownSymbol) != nullptr) {
    host.handle = RTLD_DEFAULT;
    host.where = "the program itself";
    return true;
  }
  return dl_iterate_phdr(find_object, &host) != 0;
}

template <class Function>
bool take_symbol(const Host& host, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(host.handle, name));
  if (function != nullptr) return true;
  missing += missing.empty() ? name : std::string(", ") + name;
  return false;
}

std::string take_symbols(Host& host) {
  std::string missing;
  take_symbol(host, "ggml_op_name", host.op_name, missing);
  take_symbol(host, "ggml_backend_dev_by_type", host.device_by_type, missing);
  take_symbol(host, "ggml_backend_dev_init", host.device_init, missing);
  take_symbol(host, "ggml_backend_dev_backend_reg", host.device_registry, missing);
  take_symbol(host, "ggml_backend_dev_buffer_type", host.device_buffer_type, missing);
  take_symbol(host, "ggml_backend_free", host.backend_free, missing);
  take_symbol(host, "ggml_backend_buft_is_host", host.buffer_type_is_host, missing);
  take_symbol(host, "ggml_backend_buffer_get_type", host.buffer_type, missing);
  take_symbol(host, "ggml_backend_buffer_get_base", host.buffer_base, missing);
  take_symbol(host, "ggml_backend_buffer_get_size", host.buffer_size, missing);
  take_symbol(host, "ggml_init", host.init, missing);
  take_symbol(host, "ggml_free", host.free, missing);
  take_symbol(host, "ggml_new_tensor_4d", host.new_tensor_4d, missing);
  take_symbol(host, "ggml_view_2d", host.view_2d, missing);
  take_symbol(host, "ggml_custom_4d", host.custom_4d, missing);
  take_symbol(host, "ggml_flash_attn_ext", host.flash_attn_ext, missing);
  take_symbol(host, "ggml_set_name", host.set_name, missing);
  take_symbol(host, "ggml_get_name", host.get_name, missing);
  take_symbol(host, "ggml_tensor_overhead", host.tensor_overhead, missing);
  decltype(&ggml_version) version = nullptr;
  std::string not_needed;
  host.version = take_symbol(host, "ggml_version", version, not_needed) ? version() : "unknown version";
  return missing;
}

/// ggml_op_name reads a table without a bounds check, so the search ends at the last name that is needed, or at GLU,
/// which has always stood at the end.
void find_operations(Host& host) {
  constexpr std::array<const char*, 5> kWithoutEffect{"NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"};
  int wanted = 3 + static_cast<int>(kWithoutEffect.size());
  constexpr int kMaxOperations = 80;  // FLASH_ATTN_EXT has been 69 to 74, CUSTOM 84 to 95
  const auto found = [&wanted](int& slot, int op) {
    if (slot < 0) --wanted;
    slot = op;
  };
  for (int op = 0; op < GGML_OP_COUNT + kMaxOperations && wanted > 0; ++op) {
    const char* const text = host.op_name(static_cast<ggml_op>(op));
    if (text == nullptr) return;
    const std::string_view name = text;
    if (name == "GLU") return;
    if (name == "FLASH_ATTN_EXT") found(host.flash_attn, op);
    if (name == "SET_ROWS") found(host.set_rows, op);
    if (name == "CUSTOM") found(host.custom, op);
    for (std::size_t i = 0; i < kWithoutEffect.size(); ++i) {
      if (name == kWithoutEffect[i]) found(host.without_effect[i], op);
    }
  }
}

void probe_callback(ggml_tensor*, int, int, void*) {}

std::size_t find_pointer(const Host& host, const void* pointer) noexcept {
  for (std::size_t at = 0; at + sizeof pointer <= host.custom_params.size(); at += 4) {
    if (std::memcmp(host.custom_params.data() + at, &pointer, sizeof pointer) == 0) return at;
  }
  return host.custom_params.size();
}

/// Builds tensors with the host's own constructors and reads them back through our header. Says what differs, or "".
std::string probe_tensors(Host& host, ggml_context* context) {
  ggml_tensor* const k = host.new_tensor_4d(context, GGML_TYPE_F16, 64, 48, 3, 1);
  ggml_tensor* const v = host.new_tensor_4d(context, GGML_TYPE_F16, 64, 48, 3, 1);
  ggml_tensor* const q = host.new_tensor_4d(context, GGML_TYPE_F32, 64, 1, 9, 1);
  ggml_tensor* const view = host.view_2d(context, k, 64, 16, 128, 256);
  if (k == nullptr || v == nullptr || q == nullptr || view == nullptr) return "tensors cannot be made";
  host.set_name(k, "probe_k");
  const bool tensor_fits =
      host.tensor_overhead() >= sizeof(ggml_tensor) && k->type == GGML_TYPE_F16 && k->ne[0] == 64 && k->ne[1] == 48 &&
      k->ne[2] == 3 && k->ne[3] == 1 && k->nb[0] == 2 && k->nb[1] == 128 && k->nb[2] == 128 * 48 &&
      k->nb[3] == 128 * 48 * 3 && k->data == nullptr && k->buffer == nullptr && k->view_src == nullptr &&
      host.get_name(k) == k->name && std::strcmp(k->name, "probe_k") == 0 && view->view_src == k && view->view_offs == 256 &&
      view->ne[1] == 16 && !host.has_effect(k->op) && !host.has_effect(view->op) &&
      reinterpret_cast<char*>(view) - reinterpret_cast<char*>(q) == static_cast<std::ptrdiff_t>(host.tensor_overhead());
  if (!tensor_fits) return "struct ggml_tensor is not laid out as in ggml.h";

  ggml_tensor* const mask = host.new_tensor_4d(context, GGML_TYPE_F16, 48, 64, 1, 1);  // old versions pad it to 64 rows
  ggml_tensor* const attention = host.flash_attn_ext(context, q, k, v, mask, 0.125F, 2.0F, 30.0F);
  const auto params = read_attention_params(reinterpret_cast<const unsigned char*>(attention->op_params));
  const bool attention_fits = attention->op == host.flash_attn && attention->src[0] == q && attention->src[1] == k &&
                              attention->src[2] == v && attention->src[3] == mask && attention->src[4] == nullptr &&
                              params.scale == 0.125F && params.max_bias == 2.0F && params.softcap == 30.0F &&
                              params.max_kv == 0 && attention->ne[0] == 64 && attention->ne[1] == 9;
  if (!attention_fits) return "FLASH_ATTN_EXT keeps its settings elsewhere";

  ggml_tensor* args[] = {q, k, v};
  int userdata = 0;
  ggml_tensor* const custom =
      host.custom_4d(context, GGML_TYPE_F32, 64, 9, 1, 1, args, 3, probe_callback, GGML_N_TASKS_MAX, &userdata);
  static_assert(sizeof custom->op_params == GGML_MAX_OP_PARAMS);
  std::memcpy(host.custom_params.data(), custom->op_params, host.custom_params.size());
  host.callback_at = find_pointer(host, reinterpret_cast<const void*>(&probe_callback));
  host.userdata_at = find_pointer(host, &userdata);
  std::size_t used = 0;
  for (std::size_t i = 0; i < host.custom_params.size(); ++i) {
    if (host.custom_params[i] != 0) used = i + 1;
  }
  const bool custom_fits = custom->op == host.custom && custom->src[0] == q && custom->src[2] == v &&
                           host.callback_at < host.custom_params.size() && host.userdata_at < host.custom_params.size() &&
                           used <= kSavedParamsAt;
  return custom_fits ? "" : "CUSTOM keeps its callback elsewhere";
}

std::string examine(Host& host) {
  if (!find_ggml(host)) return "no ggml was found in this process";
  if (const std::string missing = take_symbols(host); !missing.empty()) {
    return "ggml " + host.version + " in " + host.where + " lacks " + missing;
  }
  const std::string ggml = "ggml " + host.version + " in " + host.where + ": ";
  find_operations(host);
  if (host.flash_attn < 0 || host.set_rows < 0 || host.custom < 0) {
    return ggml + "it has no FLASH_ATTN_EXT, SET_ROWS or CUSTOM";
  }
  ggml_context* const context = host.init({64 * (host.tensor_overhead() + 64), nullptr, true});
  if (context == nullptr) return ggml + "ggml_init failed";
  const std::string differs = probe_tensors(host, context);
  host.free(context);
  return differs.empty() ? "" : ggml + differs;
}

}  // namespace

const Host* host() noexcept { return accepted.load(std::memory_order_acquire); }

const Host* probe_host(std::string& why) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (const Host* const known = host()) return known;
  Host candidate;
  why = examine(candidate);
  if (!why.empty()) return nullptr;
  static Host kept;
  kept = candidate;
  accepted.store(&kept, std::memory_order_release);
  return &kept;
}

bool in_host_memory(const Host& host, const ggml_tensor* tensor) noexcept {
  return tensor != nullptr && tensor->data != nullptr && tensor->buffer != nullptr &&
         host.buffer_type_is_host(host.buffer_type(tensor->buffer));
}

AttentionParams read_attention_params(const unsigned char* bytes) noexcept {
  AttentionParams params;
  std::memcpy(&params.scale, bytes, 4);
  std::memcpy(&params.max_bias, bytes + 4, 4);
  std::memcpy(&params.softcap, bytes + 8, 4);
  std::memcpy(&params.max_kv, bytes + 16, 4);
  return params;
}

}  // namespace locks::llamacpp
