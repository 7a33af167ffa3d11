// The plug-in as a whole: what it was told, the caches it knows, and the rewriting of nodes. The front ends drive it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine.h"
#include "host.h"
#include "settings.h"

namespace locks::llamacpp {

class Plugin {
 public:
  Plugin(const Host& host, const Settings& settings);

  [[nodiscard]] const Host& host() const noexcept { return host_; }
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }

  /// How a front end learns of writes: from every node before every run, or only while a graph is prepared.
  enum class Sees { kEveryRun, kPreparation };

  /// Looks at a node that the host is about to run or to place, and takes it over if it can.
  void visit(ggml_tensor* node, Sees sees);
  /// No context is left: frees what is known of all caches.
  void forget_all();

 private:
  void visit_attention(ggml_tensor* node, Sees sees);
  void visit_key_write(const ggml_tensor* node, Sees sees);
  [[nodiscard]] Decline judge(const AttentionNode& read, Engine& engine, Sees sees);
  void take(ggml_tensor* node, Engine& engine, ggml_tensor* indices) const noexcept;
  void give_back(ggml_tensor* node) const noexcept;
  [[nodiscard]] bool is_taken(const ggml_tensor* node) const noexcept;
  [[nodiscard]] Engine& engine_of(const ggml_tensor* key_root);
  void notice_interleaving(const AttentionNode& read, Engine& engine);

  const Host& host_;
  const Settings& settings_;
  std::unique_ptr<TraceFile> trace_;  // null where none is written
  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Engine>> engines_;  // by buffer
  std::uint64_t visits_ = 0;
};

/// The plug-in, started at the first call: reads the settings, probes the host, says one line. Null while it is not
/// active; why is said once.
Plugin* plugin() noexcept;
/// Statistics and summary, if asked for. Called at exit.
void finish() noexcept;

}  // namespace locks::llamacpp
