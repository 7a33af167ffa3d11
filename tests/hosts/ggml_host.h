// A small host: what llama.cpp does with ggml around attention, and nothing else. Caches with several layers and streams,
// graphs that write keys and values and attend, run by ggml's scheduler with the plug-in in front.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"

namespace locks::test {

struct CacheSpec {
  ggml_type key_type = GGML_TYPE_F16;
  ggml_type value_type = GGML_TYPE_F16;
  int head_dim = 64;
  int kv_heads = 3;
  int query_heads = 9;
  int layers = 2;
  std::int64_t stream_cells = 2048;
  int streams = 1;
  const char* name = "cache_k";

  [[nodiscard]] std::int64_t row() const { return std::int64_t{head_dim} * kv_heads; }
  [[nodiscard]] std::int64_t num_cells() const { return stream_cells * streams; }
};

class KvCache {
 public:
  explicit KvCache(const CacheSpec& spec);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  [[nodiscard]] const CacheSpec& spec() const { return spec_; }
  /// Behind everybody's back, as a restored state comes.
  void fill(std::int64_t first_cell, std::int64_t last_cell, std::uint64_t seed);
  void copy_from(const KvCache& other);
  /// One layer's row of a cell, all heads, as floats.
  [[nodiscard]] std::vector<float> keys(int layer, std::int64_t cell) const { return row(key_tensors[layer], cell); }
  [[nodiscard]] std::vector<float> values(int layer, std::int64_t cell) const { return row(value_tensors[layer], cell); }

  std::vector<ggml_tensor*> key_tensors;
  std::vector<ggml_tensor*> value_tensors;

 private:
  [[nodiscard]] static std::vector<float> row(const ggml_tensor* tensor, std::int64_t cell);

  CacheSpec spec_;
  ggml_context* context_;
  ggml_backend_buffer_t buffer_;
};

/// What the attention nodes are made with.
struct Oddities {
  float max_bias = 0.0F;
  float softcap = 0.0F;
  bool sinks = false;
  bool values_in_keys = false;  // as in MLA
};

/// One query row: the cell that its token is written to, and the cells of its stream that it sees.
struct Row {
  std::int64_t cell = 0;
  std::vector<std::int64_t> sees;
};
[[nodiscard]] std::vector<std::int64_t> cells(std::int64_t first, std::int64_t last);
/// Rows of a prompt: the first at cell `first`, each sees all cells from `from` up to itself.
[[nodiscard]] std::vector<Row> causal_rows(std::int64_t first, std::int64_t last, std::int64_t from = 0);

/// A graph of all layers for a fixed number of rows per stream, over one cache (or two that alternate), that can be run
/// again and again, as llama.cpp reuses its graphs.
class Graph {
 public:
  Graph(const std::vector<KvCache*>& caches, std::int64_t rows, int first_stream, int streams, std::int64_t seen_cells,
        const Oddities& oddities = {});
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Rows stream after stream; cells count within the stream. Queries, keys and values are made from `seed`. With two
  /// caches, `rows_of_second` are what the second one's mask shows. Returns the outputs, layer after layer.
  std::vector<std::vector<float>> run(const std::vector<Row>& rows, std::uint64_t seed,
                                      const std::vector<Row>& rows_of_second = {});
  /// The same in double precision, from what the cache holds now, for the queries of the last run. Empty for a layer
  /// whose cache lacks a cell that the rows see.
  [[nodiscard]] std::vector<std::vector<double>> reference(const std::vector<Row>& rows) const;
  [[nodiscard]] int num_splits() const;
  /// From now on the attention nodes are plain ones.
  void remove_softcap();

 private:
  struct LayerInputs {
    KvCache* cache;
    int layer;
    ggml_tensor* queries;
    ggml_tensor* new_keys;
    ggml_tensor* new_values;
    ggml_tensor* attention;
    ggml_tensor* output;
  };
  void set_rows(ggml_tensor* mask, const std::vector<Row>& rows, bool stair) const;

  std::vector<KvCache*> caches_;
  std::int64_t rows_;
  int first_stream_;
  int streams_;
  std::int64_t seen_cells_;
  std::int64_t mask_rows_;
  ggml_context* context_;
  ggml_cgraph* graph_;
  ggml_backend_sched_t scheduler_;
  std::vector<ggml_tensor*> masks_;    // one a cache
  std::vector<ggml_tensor*> indices_;  // one a cache
  std::vector<LayerInputs> layers_;
  std::vector<std::vector<float>> queries_;
  std::vector<ggml_tensor*> sinks_;
};

/// Multiplies all keys of all layers in place, in a graph of its own: what a K-shift is to an observer.
void scale_keys_in_place(KvCache& cache, float factor);

/// Backends, the plug-in and its front end; one per process.
class Host {
 public:
  static Host& instance();
  [[nodiscard]] const std::string& front_end() const { return front_end_; }
  [[nodiscard]] const std::vector<ggml_backend_t>& backends() const { return backends_; }
  [[nodiscard]] ggml_backend_t cpu() const { return backends_.back(); }
  [[nodiscard]] ggml_backend_sched_eval_callback callback() const { return callback_; }
  [[nodiscard]] ggml_backend_reg_t registration() const { return registration_; }
  [[nodiscard]] bool has_plugin() const { return front_end_ != "none"; }
  void set_threads(int threads);
  /// A number of the plug-in's statistics; 0 without plug-in. In an inner object: "declined.soft_cap".
  [[nodiscard]] double statistic(const std::string& key) const;
  [[nodiscard]] std::string statistics() const;
  void reset_statistics() const;
  void* plugin = nullptr;

 private:
  Host();
  std::string front_end_;
  std::vector<ggml_backend_t> backends_;
  ggml_backend_sched_eval_callback callback_ = nullptr;
  ggml_backend_reg_t registration_ = nullptr;
};

}  // namespace locks::test
