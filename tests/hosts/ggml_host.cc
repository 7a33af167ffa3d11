#include "ggml_host.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "ggml-alloc.h"
#include "ggml-cpu.h"

namespace locks::test {
namespace {

/// Nearly normal: the sum of four uniform numbers, which is cheap.
std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 0x632BE59BD9B4E019U;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) {
    state = (state ^ state >> 29) * 0xBF58476D1CE4E5B9U + 0x94D049BB133111EBU;
    const std::uint64_t bits = state ^ state >> 31;
    const auto sum = static_cast<float>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    number = (sum / 65536.0F - 2.0F) * 1.7320508F;
  }
  return numbers;
}

/// Keys with the structure of real ones: pages of neighbours resemble each other.
std::vector<float> row_of(const CacheSpec& spec, std::int64_t cell, std::uint64_t seed) {
  auto common = random_floats(spec.row(), seed * 7919 + static_cast<std::uint64_t>(cell / 32));
  const auto own = random_floats(spec.row(), seed * 104729 + static_cast<std::uint64_t>(cell) + 1);
  for (std::size_t i = 0; i < common.size(); ++i) common[i] = 0.8F * common[i] + 0.6F * own[i];
  return common;
}

std::vector<std::uint8_t> to_type(ggml_type type, const std::vector<float>& numbers) {
  std::vector<std::uint8_t> bytes(ggml_row_size(type, static_cast<std::int64_t>(numbers.size())));
  if (type == GGML_TYPE_F32) {
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
  } else {
    ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, 1, static_cast<std::int64_t>(numbers.size()), nullptr);
  }
  return bytes;
}

}  // namespace

// ---- caches

KvCache::KvCache(const CacheSpec& spec) : spec_(spec) {
  context_ = ggml_init({ggml_tensor_overhead() * (2 * static_cast<std::size_t>(spec.layers) + 4), nullptr, true});
  for (int layer = 0; layer < spec.layers; ++layer) {
    ggml_tensor* const k = ggml_new_tensor_3d(context_, spec.key_type, spec.row(), spec.stream_cells, spec.streams);
    ggml_tensor* const v = ggml_new_tensor_3d(context_, spec.value_type, spec.row(), spec.stream_cells, spec.streams);
    ggml_set_name(k, (std::string(spec.name) + "_l" + std::to_string(layer)).c_str());
    ggml_set_name(v, ("cache_v_l" + std::to_string(layer)).c_str());
    key_tensors.push_back(k);
    value_tensors.push_back(v);
  }
  buffer_ = ggml_backend_alloc_ctx_tensors(context_, Host::instance().cpu());
  ggml_backend_buffer_clear(buffer_, 0);
}

KvCache::~KvCache() {
  ggml_backend_buffer_free(buffer_);
  ggml_free(context_);
}

void KvCache::fill(std::int64_t first_cell, std::int64_t last_cell, std::uint64_t seed) {
  for (int layer = 0; layer < spec_.layers; ++layer) {
    for (ggml_tensor* const tensor : {key_tensors[layer], value_tensors[layer]}) {
      const std::uint64_t of_tensor =
          seed + 1000 * static_cast<std::uint64_t>(layer) + (tensor == key_tensors[layer] ? 0 : 500);
      for (std::int64_t cell = first_cell; cell < last_cell; ++cell) {
        const auto bytes = to_type(tensor->type, row_of(spec_, cell, of_tensor));
        ggml_backend_tensor_set(tensor, bytes.data(), static_cast<std::size_t>(cell) * tensor->nb[1], bytes.size());
      }
    }
  }
}

void KvCache::copy_from(const KvCache& other) {
  for (int layer = 0; layer < spec_.layers; ++layer) {
    ggml_backend_tensor_copy(other.key_tensors[layer], key_tensors[layer]);
    ggml_backend_tensor_copy(other.value_tensors[layer], value_tensors[layer]);
  }
}

std::vector<float> KvCache::row(const ggml_tensor* tensor, std::int64_t cell) {
  std::vector<float> numbers(static_cast<std::size_t>(tensor->ne[0]));
  const char* const data = static_cast<const char*>(tensor->data) + cell * static_cast<std::int64_t>(tensor->nb[1]);
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(numbers.data(), data, numbers.size() * sizeof(float));
  } else {
    ggml_get_type_traits(tensor->type)->to_float(data, numbers.data(), tensor->ne[0]);
  }
  return numbers;
}

void scale_keys_in_place(KvCache& cache, float factor) {
  const Host& host = Host::instance();
  ggml_context* const context = ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true});
  ggml_cgraph* const graph = ggml_new_graph(context);
  for (ggml_tensor* const keys : cache.key_tensors) {
    ggml_tensor* const view = ggml_view_2d(context, keys, keys->ne[0], keys->ne[1] * keys->ne[2], keys->nb[1], 0);
    ggml_build_forward_expand(
        graph, keys->type == GGML_TYPE_F32
                   ? ggml_scale_inplace(context, view, factor)
                   : ggml_cpy(context, ggml_scale(context, ggml_cast(context, view, GGML_TYPE_F32), factor), view));
  }
  std::vector<ggml_backend_t> backends = host.backends();
  ggml_backend_sched_t const scheduler =
      ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()), 256, false, false);
  if (host.callback() != nullptr) ggml_backend_sched_set_eval_callback(scheduler, host.callback(), nullptr);
  if (ggml_backend_sched_graph_compute(scheduler, graph) != GGML_STATUS_SUCCESS) throw std::runtime_error("shift failed");
  ggml_backend_sched_free(scheduler);
  ggml_free(context);
}

// ---- graphs

std::vector<std::int64_t> cells(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> list;
  for (std::int64_t cell = first; cell < last; ++cell) list.push_back(cell);
  return list;
}

std::vector<Row> causal_rows(std::int64_t first, std::int64_t last, std::int64_t from) {
  std::vector<Row> rows;
  for (std::int64_t cell = first; cell < last; ++cell) rows.push_back({cell, cells(from, cell + 1)});
  return rows;
}

Graph::Graph(const std::vector<KvCache*>& caches, std::int64_t rows, int first_stream, int streams, std::int64_t seen_cells,
             const Oddities& oddities)
    : caches_(caches),
      rows_(rows),
      first_stream_(first_stream),
      streams_(streams),
      seen_cells_(seen_cells),
      mask_rows_((rows + 63) / 64 * 64) {
  const Host& host = Host::instance();
  context_ = ggml_init({ggml_tensor_overhead() * 1024 + ggml_graph_overhead(), nullptr, true});
  graph_ = ggml_new_graph(context_);
  const auto input = [this](ggml_tensor* tensor) {
    ggml_set_input(tensor);
    return tensor;
  };
  for (const KvCache* const cache : caches) {
    const std::int64_t seen = std::min(seen_cells, cache->spec().stream_cells);
    masks_.push_back(input(ggml_new_tensor_4d(context_, GGML_TYPE_F16, seen, mask_rows_, 1, streams)));
    indices_.push_back(input(ggml_new_tensor_1d(context_, GGML_TYPE_I64, rows * streams)));
  }
  ggml_tensor* joined = nullptr;
  for (int layer = 0; layer < caches[0]->spec().layers; ++layer) {
    for (std::size_t c = 0; c < caches.size(); ++c) {
      KvCache& cache = *caches[c];
      const CacheSpec& spec = cache.spec();
      LayerInputs made{&cache,
                       layer,
                       input(ggml_new_tensor_4d(context_, GGML_TYPE_F32, spec.head_dim, spec.query_heads, rows, streams)),
                       input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, spec.row(), rows * streams)),
                       input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, spec.row(), rows * streams)),
                       nullptr,
                       nullptr};
      const auto write = [&](ggml_tensor* into, ggml_tensor* from) {
        ggml_tensor* const flat = spec.streams > 1 ? ggml_reshape_2d(context_, into, spec.row(), spec.num_cells()) : into;
        ggml_build_forward_expand(graph_, ggml_set_rows(context_, flat, from, indices_[c]));
      };
      write(cache.key_tensors[layer], made.new_keys);
      write(cache.value_tensors[layer], made.new_values);
      const auto view = [&](ggml_tensor* of) {
        const std::size_t head = ggml_row_size(of->type, spec.head_dim);
        return ggml_permute(context_,
                            ggml_view_4d(context_, of, spec.head_dim, spec.kv_heads, masks_[c]->ne[0], streams, head,
                                         of->nb[1], of->nb[2], of->nb[2] * static_cast<std::size_t>(first_stream)),
                            0, 2, 1, 3);
      };
      ggml_tensor* const k = view(cache.key_tensors[layer]);
      ggml_tensor* const v = oddities.values_in_keys ? view(cache.key_tensors[layer]) : view(cache.value_tensors[layer]);
      ggml_tensor* const attention =
          ggml_flash_attn_ext(context_, ggml_permute(context_, made.queries, 0, 2, 1, 3), k, v, masks_[c],
                              1.0F / std::sqrt(static_cast<float>(spec.head_dim)), oddities.max_bias, oddities.softcap);
      ggml_flash_attn_ext_set_prec(attention, GGML_PREC_F32);
      if (oddities.sinks) {
        sinks_.push_back(input(ggml_new_tensor_1d(context_, GGML_TYPE_F32, spec.query_heads)));
        ggml_flash_attn_ext_add_sinks(attention, sinks_.back());
      }
      made.attention = attention;
      made.output = ggml_cont(context_, attention);
      ggml_set_output(made.output);
      ggml_build_forward_expand(graph_, made.output);
      // As in a model, layers follow each other: the allocator may reuse what no later node reads.
      joined = joined == nullptr ? made.output
                                 : ggml_add(context_, ggml_scale(context_, made.output, 1.0F), ggml_sum(context_, joined));
      ggml_build_forward_expand(graph_, joined);
      layers_.push_back(made);
    }
  }
  ggml_set_output(joined);
  std::vector<ggml_backend_t> backends = host.backends();
  scheduler_ = ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()), 4096, false, false);
  if (host.callback() != nullptr) ggml_backend_sched_set_eval_callback(scheduler_, host.callback(), nullptr);
  if (!ggml_backend_sched_alloc_graph(scheduler_, graph_)) throw std::runtime_error("no memory for the graph");
}

Graph::~Graph() {
  ggml_backend_sched_free(scheduler_);
  ggml_free(context_);
}

int Graph::num_splits() const { return ggml_backend_sched_get_n_splits(scheduler_); }

void Graph::remove_softcap() {
  constexpr int kSoftcap = 2;  // of a flash attention node's parameters
  for (const LayerInputs& layer : layers_) layer.attention->op_params[kSoftcap] = 0;
}

void Graph::set_rows(ggml_tensor* mask, const std::vector<Row>& rows, bool stair) const {
  std::vector<ggml_fp16_t> values(static_cast<std::size_t>(ggml_nelements(mask)),
                                  ggml_fp32_to_fp16(-std::numeric_limits<float>::infinity()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t at =
        (static_cast<std::int64_t>(i) / rows_ * mask_rows_ + static_cast<std::int64_t>(i) % rows_) * mask->ne[0];
    for (const std::int64_t cell : rows[i].sees) {
      const float bias = stair ? -0.125F * static_cast<float>(rows[i].sees.back() - cell) : 0.0F;
      values[static_cast<std::size_t>(at + cell)] = ggml_fp32_to_fp16(bias);
    }
  }
  ggml_backend_tensor_set(mask, values.data(), 0, ggml_nbytes(mask));
}

std::vector<std::vector<float>> Graph::run(const std::vector<Row>& rows, std::uint64_t seed,
                                           const std::vector<Row>& rows_of_second) {
  for (std::size_t c = 0; c < caches_.size(); ++c) {
    const std::vector<Row>& of_cache = c == 0 ? rows : rows_of_second;
    std::vector<std::int64_t> written;
    for (std::size_t i = 0; i < of_cache.size(); ++i) {
      written.push_back((first_stream_ + static_cast<std::int64_t>(i) / rows_) * caches_[c]->spec().stream_cells +
                        of_cache[i].cell);
    }
    ggml_backend_tensor_set(indices_[c], written.data(), 0, written.size() * sizeof(std::int64_t));
    set_rows(masks_[c], of_cache, false);
  }
  queries_.clear();
  for (const LayerInputs& layer : layers_) {
    const std::uint64_t of_layer = seed * 31 + static_cast<std::uint64_t>(layer.layer);
    const auto set = [](ggml_tensor* tensor, const std::vector<float>& numbers) {
      ggml_backend_tensor_set(tensor, numbers.data(), 0, ggml_nbytes(tensor));
    };
    queries_.push_back(random_floats(ggml_nelements(layer.queries), of_layer * 3));
    for (float& number : queries_.back()) number *= 6.0F;  // attention that looks at something
    set(layer.queries, queries_.back());
    set(layer.new_keys, random_floats(ggml_nelements(layer.new_keys), of_layer * 3 + 1));
    set(layer.new_values, random_floats(ggml_nelements(layer.new_values), of_layer * 3 + 2));
  }
  for (ggml_tensor* const sinks : sinks_) {
    const std::vector<float> numbers(static_cast<std::size_t>(sinks->ne[0]), 1.0F);
    ggml_backend_tensor_set(sinks, numbers.data(), 0, ggml_nbytes(sinks));
  }
  if (ggml_backend_sched_graph_compute(scheduler_, graph_) != GGML_STATUS_SUCCESS)
    throw std::runtime_error("the graph failed");
  std::vector<std::vector<float>> outputs;
  for (const LayerInputs& layer : layers_) {
    outputs.emplace_back(static_cast<std::size_t>(ggml_nelements(layer.output)));
    ggml_backend_tensor_get(layer.output, outputs.back().data(), 0, ggml_nbytes(layer.output));
  }
  return outputs;
}

std::vector<std::vector<double>> Graph::reference(const std::vector<Row>& rows) const {
  std::vector<std::vector<double>> outputs;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const KvCache& cache = *layers_[l].cache;
    const CacheSpec& spec = cache.spec();
    const int group = spec.query_heads / spec.kv_heads;
    outputs.emplace_back();
    const auto is_held = [&](std::int64_t cell) { return cell < spec.stream_cells; };
    if (!std::ranges::all_of(rows, [&](const Row& row) { return std::ranges::all_of(row.sees, is_held); })) continue;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t base = (first_stream_ + static_cast<std::int64_t>(i) / rows_) * spec.stream_cells;
      std::vector<std::vector<float>> keys;
      std::vector<std::vector<float>> values;
      for (const std::int64_t cell : rows[i].sees) {
        keys.push_back(cache.keys(layers_[l].layer, base + cell));
        values.push_back(cache.values(layers_[l].layer, base + cell));
      }
      for (int head = 0; head < spec.query_heads; ++head) {
        const float* const query =
            queries_[l].data() + (i * static_cast<std::size_t>(spec.query_heads) + static_cast<std::size_t>(head)) *
                                     static_cast<std::size_t>(spec.head_dim);
        const std::size_t offset = static_cast<std::size_t>(head / group * spec.head_dim);
        std::vector<double> weights;
        double largest = -std::numeric_limits<double>::infinity();
        for (const auto& key : keys) {
          double dot = 0.0;
          for (int d = 0; d < spec.head_dim; ++d)
            dot += static_cast<double>(query[d]) * key[offset + static_cast<std::size_t>(d)];
          weights.push_back(dot / std::sqrt(static_cast<double>(spec.head_dim)));
          largest = std::max(largest, weights.back());
        }
        double total = 0.0;
        for (double& weight : weights) total += weight = std::exp(weight - largest);
        for (int d = 0; d < spec.head_dim; ++d) {
          double sum = 0.0;
          for (std::size_t t = 0; t < weights.size(); ++t)
            sum += weights[t] * values[t][offset + static_cast<std::size_t>(d)];
          outputs.back().push_back(sum / total);
        }
      }
    }
  }
  return outputs;
}

// ---- the plug-in

Host& Host::instance() {
  static Host* const host = new Host;
  return *host;
}

Host::Host() {
  const char* const path = std::getenv("GGML_HOST_PLUGIN");
  const char* const front_end = std::getenv("GGML_HOST_FRONT_END");
  front_end_ = path == nullptr || front_end == nullptr ? "none" : front_end;
  ggml_backend_load_all();
  if (front_end_ == "backend") {
    registration_ = ggml_backend_load(path);
    if (registration_ == nullptr) throw std::runtime_error("ggml did not take the plug-in");
    backends_.push_back(ggml_backend_dev_init(ggml_backend_reg_dev_get(registration_, 0), nullptr));
  }
  if (front_end_ != "none") {
    plugin = dlopen(path, RTLD_NOW);
    if (plugin == nullptr) throw std::runtime_error(dlerror());
  }
  if (front_end_ == "callback")
    callback_ = reinterpret_cast<ggml_backend_sched_eval_callback>(dlsym(plugin, "locks_cb_eval"));
  backends_.push_back(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
  set_threads(2);
}

void Host::set_threads(int threads) { ggml_backend_cpu_set_n_threads(cpu(), threads); }

std::string Host::statistics() const {
  if (plugin == nullptr) return {};
  const auto write = reinterpret_cast<std::size_t (*)(char*, std::size_t)>(dlsym(plugin, "locks_llamacpp_statistics"));
  std::string text(write(nullptr, 0), '\0');
  write(text.data(), text.size());
  return text;
}

double Host::statistic(const std::string& key) const {
  if (plugin == nullptr) return 0.0;
  std::string text = statistics();
  std::size_t from = 0;
  std::string name = key;
  if (const std::size_t dot = key.find('.'); dot != std::string::npos) {
    from = text.find("\"" + key.substr(0, dot) + "\": {");
    text = text.substr(from, text.find('}', from) - from);
    from = 0;
    name = key.substr(dot + 1);
  }
  const std::size_t at = text.find("\"" + name + "\": ", from);
  return at == std::string::npos ? 0.0 : std::strtod(text.c_str() + at + name.size() + 4, nullptr);
}

void Host::reset_statistics() const {
  if (plugin != nullptr) reinterpret_cast<void (*)()>(dlsym(plugin, "locks_llamacpp_reset_statistics"))();
}

}  // namespace locks::test
