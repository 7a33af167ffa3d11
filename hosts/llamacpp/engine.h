// The attention of one KV cache, computed inside the host's own threads: the callback of a CUSTOM node.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "attention_node.h"
#include "cache_state.h"
#include "locks/attend.h"
#include "locks/decode.h"
#include "locks/selector.h"
#include "locks/summarize.h"
#include "locks/target.h"
#include "locks/team.h"
#include "settings.h"
#include "trace_file.h"

namespace locks::llamacpp {

/// 64-byte aligned memory that only grows.
class AlignedBuffer {
 public:
  [[nodiscard]] std::span<std::byte> at_least(std::size_t bytes);

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

/// One per KV cache buffer of the host. Engines live as long as the process, because nodes carry their address; what an
/// engine knows of its cache may be forgotten.
class Engine {
 public:
  /// `trace`: null where none is written.
  Engine(const Host& host, const Settings& settings, TraceFile* trace)
      : host_(host), settings_(settings), trace_(trace), target_(active_target()) {}

  /// Called by every thread of the team. What cannot be done otherwise is attended exactly, without pages.
  void attend(ggml_tensor* node, int thread, int num_threads) noexcept;

  // What the front ends see before the graph runs.

  /// These keys are about to be used: if they are not those of the cache that is known, that one is forgotten.
  void meet(const ggml_tensor* key_root);
  void observe_write(const ggml_tensor* key_root, const ggml_tensor* indices);
  void observe_shift();
  /// The host writes keys without our seeing it.
  void observe_unseen_writes();
  /// The tensor that lists the cells written into these keys by the graph being prepared.
  void remember_indices(const void* key_data, ggml_tensor* indices);
  [[nodiscard]] ggml_tensor* indices_of(const void* key_data);
  /// Whether these keys belong to the layer that this was first asked about.
  [[nodiscard]] bool is_first_layer(const void* key_data);
  [[nodiscard]] bool is_sliding_window();
  void set_sliding_window();
  /// Frees what is known of the cache.
  void forget();

  std::uint64_t last_visit = 0;  // by the plug-in's count, under its lock

 private:
  /// What the threads compute, prepared by the first one.
  struct Job {
    bool readable = false;  // the node could be read; otherwise nothing is computed
    bool exact = false;
    AttentionNode node;
    LayerState* layer = nullptr;
    SummarizeArgs summarize;
    const DecodePlan* plan = nullptr;
    SelectorStep* rival = nullptr;  // decodes instead of the plan
    DecodeInputs decode;
    View<float, 3> decode_out;
    View<float, 2> coverage;
  };

  void ensure_state(const ggml_tensor* key_root);
  void prepare(ggml_tensor* node, int num_threads);
  void prepare_pages(int num_threads);
  void prepare_decode(int num_threads);
  void prepare_rival();
  [[nodiscard]] Selector& rival_of(int sequence);
  [[nodiscard]] bool is_dense_layer() const noexcept;
  void prepare_prefill(int num_threads);
  void compute(Team team);
  /// False if there was no memory for it.
  bool decode(Team team);
  void show_prompts(Team team) noexcept;
  void copy_queries(Team team) const noexcept;
  void copy_outputs(Team team) const noexcept;
  /// Appends the decoded rows to the trace, before anything else uses the workspace.
  void trace_rows() noexcept;
  void count_call() noexcept;
  /// Beside the cache, for what is known of the sequence of a decoded row.
  [[nodiscard]] std::int64_t held_bytes(std::size_t request) const noexcept;

  const Host& host_;
  const Settings& settings_;
  TraceFile* const trace_;
  const Target target_;
  Barrier barrier_;
  std::mutex mutex_;  // held by the first thread for the whole of attend()
  std::optional<CacheState> state_;
  bool sliding_ = false;
  const void* first_layer_ = nullptr;
  std::unordered_map<const void*, ggml_tensor*> indices_;

  Job job_;
  std::vector<PrefillArgs> prefills_;
  std::vector<std::int32_t> pages_;                 // to summarise
  std::vector<SummarizeReport> summarize_reports_;  // [threads]
  std::vector<std::int64_t> decode_items_;          // [requests] stream * rows + row
  std::vector<std::int32_t> decode_blocks_;         // [requests, most pages]
  std::vector<std::int32_t> decode_tokens_;         // [requests]
  std::vector<DecodeReport> reports_;               // [requests]
  std::vector<float> coverage_;                     // [requests, kv_heads]
  std::vector<Selector*> selectors_;                // [requests], of a rival
  std::vector<Selector*> prompt_selectors_;         // [prefills]
  std::atomic<bool> prompt_unseen_ = false;         // a rival had no memory for it
  DecodeLimits limits_;
  AlignedBuffer workspace_memory_;
  AlignedBuffer gathered_memory_;
  std::span<std::byte> workspace_;
  TracedRow traced_;
  std::optional<int> traced_cache_;  // its number in the trace
  std::uint64_t traced_step_ = 0;    // the cache's own count
  double summarize_seconds_ = 0.0;
  double decode_seconds_ = 0.0;
  double prefill_seconds_ = 0.0;
};

}  // namespace locks::llamacpp
