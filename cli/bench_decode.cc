// Whole decode steps beside dense attention over the same context.
#include <algorithm>

#include <fmt/format.h>

#include "bench_cases.h"

namespace locks::cli {
namespace {

struct DecodeData {
  MadeCache cache;
  MadeSummaries summaries;
  MadeTable table;
  std::vector<float> queries;  // [layers, query_heads, head_dim]
  std::vector<float> out;      // [query_heads, head_dim]
  std::vector<DecodeReport> reports;
  std::vector<DecodeInputs> layers;
  int regions;  // layers [0, regions) share nothing
};

/// Layers have their own summaries and queries; their caches are regions of one cache of kColdBytes, in turn.
std::shared_ptr<DecodeData> make_decode_data(const Shape& shape, const DecodeConfig& config, int context_tokens) {
  constexpr int kMaxLayers = 64;
  const Geometry& geometry = shape.geometry;
  const std::int64_t layer_pages = whole_periods((context_tokens + kPageTokens - 1) / kPageTokens);
  const std::int64_t layer_bytes =
      layer_pages * kPageTokens * 2 * row_bytes(shape.dtype, geometry.head_dim) * geometry.kv_heads;
  const std::int64_t touched_bytes = summary_bytes(*config.format, geometry.head_dim, geometry.kv_heads, layer_pages, false);
  const auto regions = static_cast<int>(std::clamp<std::int64_t>(kColdBytes / layer_bytes, 1, kMaxLayers));
  const auto layers = static_cast<int>(std::clamp<std::int64_t>(kRunBytes / touched_bytes, regions, kMaxLayers));
  const auto query_floats = static_cast<std::size_t>(geometry.query_heads) * geometry.head_dim;
  const bool with_values = config.select.completion_fraction > 0.0F;

  const auto data =
      std::make_shared<DecodeData>(DecodeData{MadeCache(shape, layer_pages * regions),
                                              MadeSummaries(shape, *config.format, layer_pages * layers, with_values),
                                              MadeTable(context_tokens),
                                              normal_floats(query_floats * layers, 3),
                                              std::vector<float>(query_floats),
                                              std::vector<DecodeReport>(static_cast<std::size_t>(layers)),
                                              {},
                                              regions});
  for (int layer = 0; layer < layers; ++layer) {
    DecodeInputs inputs;
    const float* queries = data->queries.data() + layer * query_floats;
    inputs.queries = contiguous<const float>(queries, 1, geometry.query_heads, geometry.head_dim);
    inputs.keys = data->cache.keys(layer % regions * layer_pages, layer_pages);
    inputs.values = data->cache.values(layer % regions * layer_pages, layer_pages);
    inputs.summaries = data->summaries.store(layer * layer_pages, layer_pages);
    inputs.table = data->table.table();
    data->layers.push_back(inputs);
  }
  return data;
}

Work decode_steps(std::shared_ptr<DecodeData> data, const Shape& shape, const DecodeConfig& config, int layers, int threads,
                  Target target) {
  struct Plan {
    DecodePlan plan;
    Memory workspace;
  };
  const DecodePlan plan(config, shape.geometry, {1, data->layers[0].table.context_tokens[0], threads});
  for (const DecodeInputs& inputs : data->layers) check_decode(plan, inputs, true);
  const auto planned = std::make_shared<Plan>(Plan{plan, Memory(plan.workspace_bytes())});
  Work work;
  work.steps = layers;
  work.run = [data = std::move(data), planned, layers, target](Team team) {
    const Geometry& geometry = planned->plan.geometry();
    for (int layer = 0; layer < layers; ++layer) {
      run(planned->plan, data->layers[layer], contiguous(data->out.data(), 1, geometry.query_heads, geometry.head_dim),
          {&data->reports[layer], 1}, planned->workspace.span(), team, target);
      team.sync();
    }
  };
  return work;
}

double mean_bytes(const DecodeData& data) {
  double bytes = 0.0;
  for (const DecodeReport& report : data.reports) {
    bytes += static_cast<double>(report.score_bytes + report.attend_bytes + report.complete_bytes);
  }
  return bytes / static_cast<double>(data.reports.size());
}

PreparedCase prepare_decode(const Shape& shape, const DecodeConfig& config, int context_tokens, int threads, Target target) {
  const auto data = make_decode_data(shape, config, context_tokens);
  PreparedCase prepared;
  prepared.work = decode_steps(data, shape, config, static_cast<int>(data->layers.size()), threads, target);
  ThreadPool(threads).run(prepared.work.run);  // for the reports
  prepared.bytes_per_step = mean_bytes(*data);
  const auto attended_tokens = static_cast<int>(data->reports[0].attended_tokens);
  DecodeConfig dense = config;
  dense.min_context_tokens = context_tokens + 1;
  prepared.baseline = decode_steps(data, shape, dense, data->regions, threads, target);
  prepared.against = PreparedCase::Against::kDense;
  prepared.detail = fmt::format("{} of {} tokens attended, {}", attended_tokens, context_tokens, config.format->name);
  return prepared;
}

}  // namespace

Work decode_work(const Shape& shape, const DecodeConfig& config, int context_tokens, int threads, Target target) {
  const auto data = make_decode_data(shape, config, context_tokens);
  return decode_steps(data, shape, config, static_cast<int>(data->layers.size()), threads, target);
}

std::vector<BenchCase> decode_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const int context_tokens : options.contexts) {
    for (const int head_dim : options.head_dims) {
      for (const Target target : options.targets) {
        const Shape shape{make_geometry(head_dim, options.kv_heads, options.group_size)};
        const int threads = options.threads;
        cases.push_back({fmt::format("decode.{}.d{}", context_tokens, head_dim), target,
                         [=] { return prepare_decode(shape, DecodeConfig{}, context_tokens, threads, target); }});
        cases.push_back({fmt::format("decode.paper.{}.d{}", context_tokens, head_dim), target,
                         [=] { return prepare_decode(shape, DecodeConfig::paper(), context_tokens, threads, target); }});
      }
    }
  }
  return cases;
}

}  // namespace locks::cli
