#include "plugin.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "locks/target.h"
#include "locks/version.h"
#include "report.h"

namespace locks::llamacpp {
namespace {

constexpr std::int64_t kMaxRowsWithoutPrefill = 8;  // rows per stream that are not a prompt

constexpr std::size_t kMaxCaches = 16;  // whose summaries are kept at once

extern "C" void locks_attention_node(ggml_tensor* node, int thread, int num_threads, void* userdata) {
  static_cast<Engine*>(userdata)->attend(node, thread, num_threads);
}

/// The cache whose attention this thread has looked at last: layers of two caches that alternate within one graph are
/// those of a model with sliding windows.
struct LastVisit {
  Engine* engine = nullptr;
  std::int64_t stream_cells = 0;
};
thread_local LastVisit last_visit;

std::string describe(const Settings& settings) {
  if (settings.is_dense()) return "dense attention at every length";
  const std::string lengths =
      ", from " + std::to_string(settings.decode.min_context_tokens) + " tokens of context on" +
      (settings.dense_layers > 0 ? ", dense layers: the first " + std::to_string(settings.dense_layers) : "") +
      (settings.prefill ? "" : ", prompts left to the host");
  if (settings.rival) {
    const SelectorConfig& rival = *settings.rival;
    return "selector " + settings.selector + ", a budget of " + std::to_string(rival.budget_tokens) + " tokens, parts of " +
           std::to_string(rival.part_tokens) +
           (rival.combine == GroupCombine::kPerQueryHead ? ", a list for each query head" : "") + lengths;
  }
  const SelectConfig& select = settings.decode.select;
  const std::string completion = std::to_string(static_cast<int>(select.completion_fraction * 100.0F + 0.5F));
  return std::to_string(select.budget_tokens) + " tokens attended, parts of " + std::to_string(select.part_tokens) +
         ", completion " + completion + " %, format " + std::string(settings.decode.format->name) + lengths;
}

/// What was decided at the first call. Never freed: callbacks may come until the process is gone.
struct Start {
  Settings settings;
  bool usable = false;
  std::string why;
};

Start& settings_once() {
  static Start* const start = [] {
    auto* const made = new Start;
    try {
      made->settings = read_settings(environ);
      static_cast<void>(active_target());
      made->usable = !made->settings.off;
      if (made->settings.off) made->why = "not active: LOCKS_OFF is set";
    } catch (const std::exception& error) {
      made->why = std::string("not active: ") + error.what();
    }
    return made;
  }();
  return *start;
}

std::atomic<Plugin*> started{nullptr};

Plugin* start_plugin() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Plugin* const known = started.load()) return known;
  Start& start = settings_once();
  if (!start.usable) {
    reporter().say_once(Notice::kRefused, start.why);
    return nullptr;
  }
  std::string why;
  const Host* const host = probe_host(why);
  if (host == nullptr) {
    reporter().say_once(Notice::kRefused, "not active: " + why);
    return nullptr;
  }
  auto* const made = new Plugin(*host, start.settings);
  std::atexit(finish);
  started.store(made);
  if (start.settings.report != Report::kNothing) {
    say(std::string(kVersion) + " active in ggml " + host->version + " (" + host->where + "), " +
        std::string(target_name(active_target())) + ": " + describe(start.settings));
  }
  return made;
}

}  // namespace

Plugin* plugin() noexcept {
  if (Plugin* const known = started.load(std::memory_order_acquire)) return known;
  try {
    return start_plugin();
  } catch (...) {
    return nullptr;
  }
}

void finish() noexcept {
  if (const Plugin* const known = started.load()) reporter().finish(known->settings());
}

Plugin::Plugin(const Host& host, const Settings& settings) : host_(host), settings_(settings) {
  if (!settings.trace_path.empty()) trace_ = std::make_unique<TraceFile>(settings, say);
}

// ---- nodes

void Plugin::visit(ggml_tensor* node, Sees sees) {
  const int op = node->op;
  if (op == host_.flash_attn || is_taken(node)) {
    visit_attention(node, sees);
    return;
  }
  if (node->view_src == nullptr || !host_.has_effect(op) || !is_key_cache(node->view_src)) return;
  if (!in_host_memory(host_, node->view_src)) return;
  visit_key_write(node, sees);
}

void Plugin::visit_key_write(const ggml_tensor* node, Sees sees) {
  Engine& engine = engine_of(node->view_src);
  ggml_tensor* const indices = node->src[1];
  const bool lists_cells = node->op == host_.set_rows && indices != nullptr &&
                           (indices->type == GGML_TYPE_I64 || indices->type == GGML_TYPE_I32) && indices->ne[1] == 1 &&
                           indices->ne[2] == 1 && indices->nb[0] == (indices->type == GGML_TYPE_I64 ? 8 : 4) &&
                           node->ne[2] == 1 && node->view_offs == 0;
  if (!lists_cells) {
    engine.observe_shift();
  } else if (sees == Sees::kPreparation) {
    engine.remember_indices(node->view_src->data, indices);
  } else if (indices->data != nullptr) {
    engine.observe_write(node->view_src, indices);
  }
}

void Plugin::visit_attention(ggml_tensor* node, Sees sees) {
  const bool taken = is_taken(node);
  if (taken && sees == Sees::kPreparation) return;
  const auto* const params = reinterpret_cast<const unsigned char*>(node->op_params) + (taken ? kSavedParamsAt : 0);
  AttentionNode read;
  Decline reason = read_attention_node(host_, node, params, read);
  const bool dst_on_host = sees == Sees::kPreparation || in_host_memory(host_, node);
  if (reason == Decline::kNone && !dst_on_host) reason = Decline::kNotHostMemory;
  Engine* engine = nullptr;
  if (reason == Decline::kNone) {
    engine = &engine_of(read.key_root);
    engine->meet(read.key_root);
    notice_interleaving(read, *engine);
    reason = judge(read, *engine, sees);
  }
  if (reason == Decline::kNone) {
    if (!taken) take(node, *engine, sees == Sees::kPreparation ? engine->indices_of(read.key_root->data) : nullptr);
    return;
  }
  if (taken) give_back(node);
  if (reason == Decline::kNotAllocated) return;
  reporter().declined(reason, node->name);
  if (sees == Sees::kPreparation && node->src[1] != nullptr) {
    const ggml_tensor* const root = root_of(node->src[1]);
    if (is_key_cache(root) && in_host_memory(host_, root)) engine_of(root).observe_unseen_writes();
  }
}

Decline Plugin::judge(const AttentionNode& read, Engine& engine, Sees sees) {
  if (engine.is_sliding_window()) return Decline::kSlidingWindow;
  if (!settings_.prefill && read.rows > kMaxRowsWithoutPrefill) return Decline::kPrefillOff;
  if (sees == Sees::kPreparation && engine.indices_of(read.key_root->data) == nullptr) return Decline::kWritesUnseen;
  return Decline::kNone;
}

/// A model with sliding windows keeps two caches, one of them small, whose layers alternate. (Two contexts alternate, too,
/// but each begins at its first layer.)
void Plugin::notice_interleaving(const AttentionNode& read, Engine& engine) {
  const bool first_layer = engine.is_first_layer(read.key_root->data);
  if (last_visit.engine != nullptr && last_visit.engine != &engine && !first_layer) {
    if (read.stream_cells < last_visit.stream_cells) engine.set_sliding_window();
    if (last_visit.stream_cells < read.stream_cells) last_visit.engine->set_sliding_window();
  }
  last_visit = {&engine, read.stream_cells};
}

bool Plugin::is_taken(const ggml_tensor* node) const noexcept {
  const auto callback = &locks_attention_node;
  return node->op == host_.custom &&
         std::memcmp(reinterpret_cast<const char*>(node->op_params) + host_.callback_at, &callback, sizeof callback) == 0;
}

void Plugin::take(ggml_tensor* node, Engine& engine, ggml_tensor* indices) const noexcept {
  unsigned char attention_params[kAttentionParamBytes];
  std::memcpy(attention_params, node->op_params, sizeof attention_params);
  auto* const params = reinterpret_cast<unsigned char*>(node->op_params);
  const auto callback = &locks_attention_node;
  const Engine* const userdata = &engine;
  std::memcpy(params, host_.custom_params.data(), host_.custom_params.size());
  std::memcpy(params + host_.callback_at, &callback, sizeof callback);
  std::memcpy(params + host_.userdata_at, &userdata, sizeof userdata);
  std::memcpy(params + kSavedParamsAt, attention_params, sizeof attention_params);
  node->src[kIndicesSource] = indices;
  node->op = static_cast<ggml_op>(host_.custom);
}

void Plugin::give_back(ggml_tensor* node) const noexcept {
  auto* const params = reinterpret_cast<unsigned char*>(node->op_params);
  std::memmove(params, params + kSavedParamsAt, kAttentionParamBytes);
  std::memset(params + kAttentionParamBytes, 0, sizeof node->op_params - kAttentionParamBytes);
  node->src[kIndicesSource] = nullptr;
  node->op = static_cast<ggml_op>(host_.flash_attn);
}

// ---- caches

Engine& Plugin::engine_of(const ggml_tensor* key_root) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Engine>& engine = engines_[key_root->buffer];
  if (engine == nullptr) {
    // Nothing tells that a context has ended. A cache that is forgotten and still lives is summarised again.
    for (const auto& [buffer, other] : engines_) {
      if (other == nullptr) continue;
      std::size_t younger = 0;
      for (const auto& [other_buffer, third] : engines_)
        younger += third != nullptr && third->last_visit > other->last_visit;
      if (younger + 1 >= kMaxCaches) other->forget();
    }
    engine = std::make_unique<Engine>(host_, settings_, trace_.get());
  }
  engine->last_visit = ++visits_;
  return *engine;
}

void Plugin::forget_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [buffer, engine] : engines_) engine->forget();
}

}  // namespace locks::llamacpp
