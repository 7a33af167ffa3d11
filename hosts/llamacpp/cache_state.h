// One KV cache (one buffer of the host): its layers, its cells and pages, and what the current step asks of them.
//
// Its tracking rests on three things. Seen writes: the index tensor of the nodes that write keys. Seen changes: any other
// node that writes into a key tensor. And marks for all the rest (restored states, copies, a new cache at an old
// address): at the first attention node of a step, those of the last layer, whose keys depend on everything before them,
// and of one more layer in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention_node.h"
#include "layer_state.h"
#include "page_map.h"
#include "settings.h"

namespace locks::llamacpp {

/// Consecutive query rows of one stream and one sequence.
struct RowRun {
  int sequence = 0;
  std::int64_t stream = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  bool decode = false;         // few rows: a request each. Otherwise a piece of a prompt.
  std::size_t first_item = 0;  // of its rows in StepPlan::row_tokens
};

/// What the query rows of a step are. The same for all layers.
struct StepPlan {
  bool mapped = false;         // otherwise the rows are attended exactly, without pages
  bool in_cell_order = false;  // pages of all sequences are runs of cells
  std::vector<RowRun> runs;
  std::vector<std::int32_t> row_tokens;   // [streams * rows] tokens that a row sees
  std::vector<int> summarized_sequences;  // those long enough to be attended sparsely
  std::int64_t num_decode_rows = 0;
};

class CacheState {
 public:
  /// `key_root` [head_dim * kv_heads, stream_cells, streams], innermost first, is one layer's keys.
  CacheState(const Host& host, const Settings& settings, const ggml_tensor* key_root);

  /// Whether `key_root` may be of the same cache: buffer and number of cells.
  [[nodiscard]] bool is_of(const ggml_tensor* key_root) const noexcept;

  /// The host is about to write, or has just written, the cells that `indices` lists into one layer's keys. Every layer's
  /// node says so; the first of a step counts.
  void observe_write(const void* key_data, const ggml_tensor* indices);
  /// A node rewrites keys in place.
  void observe_shift();
  /// Keys were written by nodes that we do not see.
  void observe_unseen_writes() noexcept { distrusted_ = true; }

  /// Begins one layer's turn, and a new step if this is the first one of it. `indices` as in observe_write(), or null if
  /// that has been called.
  LayerState& begin_layer(const AttentionNode& node, const ggml_tensor* indices);
  [[nodiscard]] const StepPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] const PageMap& map() const noexcept { return map_; }
  /// Filled pages of the step's long sequences that have no summary in this layer yet. They count as summarised from now
  /// on: the caller does it at once.
  void take_unsummarized(LayerState& layer, std::vector<std::int32_t>& pages);
  /// Pages taken in this step belong to a cache that others had filled.
  [[nodiscard]] bool restoring() const noexcept { return restoring_; }
  /// Old cells vanish from the rows' sight as new ones come.
  [[nodiscard]] bool is_sliding_window() const noexcept { return sliding_; }
  /// Counts steps.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::int64_t stream_cells() const noexcept { return stream_cells_; }

 private:
  struct StepKey {
    const void* mask = nullptr;
    const void* mask_data = nullptr;
    std::int64_t rows = 0;
    std::int64_t streams = 0;
    std::int64_t seen_cells = 0;
    std::uint64_t indices_hash = 0;
    friend bool operator==(const StepKey&, const StepKey&) = default;
  };

  /// Whose keys were last seen to be written in which step. Also of layers whose attention is left to the host.
  struct KeyWrite {
    const void* key_data = nullptr;
    std::uint64_t step = 0;
  };

  [[nodiscard]] LayerState& find_layer(const AttentionNode& node);
  void begin_step(const AttentionNode& node, const ggml_tensor* indices);
  void apply_write();
  void read_indices(const ggml_tensor* indices);
  [[nodiscard]] bool check_marks(const LayerState& layer);
  void check_all_marks();
  void apply_changes() noexcept;
  void plan_step(const AttentionNode& node);
  void plan_runs(const AttentionNode& node);
  [[nodiscard]] bool is_long(std::int32_t tokens) const noexcept;

  const Host& host_;
  const Settings& settings_;
  const void* buffer_base_;
  std::size_t buffer_size_;
  std::int64_t stream_cells_;
  PageMap map_;
  SummaryBits summarized_;
  std::vector<std::unique_ptr<LayerState>> layers_;
  std::vector<KeyWrite> key_writes_;
  std::size_t next_layer_ = 0;
  std::size_t next_checked_layer_ = 0;

  std::uint64_t step_ = 1;
  std::uint64_t write_step_ = 1;
  StepKey key_;
  StepPlan plan_;
  std::vector<MappedRow> rows_;
  std::vector<std::uint64_t> seen_;
  std::vector<std::int32_t> rows_of_sequence_;
  std::vector<std::int64_t> written_;        // cells of the step, in token order
  const ggml_tensor* written_by_ = nullptr;  // the index tensor they came from: compared, never read again
  std::uint64_t seen_adoptions_ = 0;
  std::uint64_t seen_slides_ = 0;
  bool distrusted_ = false;
  bool shift_pending_ = false;  // several layers' shifts are one event
  bool restoring_ = false;
  bool summarized_in_step_ = false;
  bool sliding_ = false;
};

}  // namespace locks::llamacpp
