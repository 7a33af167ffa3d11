// Score and summarize: the stages that read and write records.
#include <numeric>

#include <fmt/format.h>

#include "bench_cases.h"

namespace locks::cli {
namespace {

PreparedCase prepare_score(const Shape& shape, const SummaryFormat& format, Target target) {
  struct Data {
    MadeSummaries summaries;
    MadeTable table;
    std::vector<float> queries;
    std::vector<float> log_mass;
    Memory workspace;
    ScoreArgs args;
  };
  const Geometry& geometry = shape.geometry;
  const int record_bytes = record_layout(format, geometry.head_dim).record_bytes;
  const std::int64_t pages = whole_periods(kColdBytes / record_bytes / geometry.kv_heads);
  const auto num_queries = static_cast<std::size_t>(geometry.query_heads);
  const auto data = std::make_shared<Data>(Data{MadeSummaries(shape, format, pages, false),
                                                MadeTable(static_cast<int>(pages * kPageTokens)),
                                                normal_floats(num_queries * geometry.head_dim, 3),
                                                std::vector<float>(num_queries * pages),
                                                Memory(score_workspace_bytes(geometry, 1)),
                                                {}});
  data->args = {geometry,
                contiguous<const float>(data->queries.data(), 1, geometry.query_heads, geometry.head_dim),
                data->summaries.store(0, pages),
                data->table.table(),
                contiguous(data->log_mass.data(), 1, geometry.query_heads, pages),
                data->workspace.span()};
  check_score(data->args);
  PreparedCase prepared;
  prepared.work.run = [data, target](Team team) {
    prepare_queries(data->args, team, target);
    team.sync();
    score(data->args, team, target);
  };
  prepared.bytes_per_step = static_cast<double>(pages) * geometry.kv_heads * record_bytes;
  prepared.detail = fmt::format("{} pages, {} x {} heads", pages, geometry.kv_heads, geometry.group_size());
  return prepared;
}

struct SummarizeData {
  MadeCache cache;
  MadeSummaries out;
  std::vector<std::int32_t> pages;
};

/// Summarizes [first, first + count) of the pages.
void summarize_some(const SummarizeData& data, const Geometry& geometry, std::size_t first, std::size_t count, Team team,
                    Target target) {
  const std::int64_t all = data.cache.pages();
  const PagedCache values = data.cache.values(0, all);
  const std::span<const std::int32_t> pages = data.pages;
  summarize({geometry.head_dim, geometry.kv_heads, data.cache.keys(0, all), &values, pages.subspan(first, count),
             data.out.store(0, all)},
            team, target);
}

std::shared_ptr<SummarizeData> make_summarize_data(const Shape& shape, const SummaryFormat& format, std::int64_t pages) {
  const auto data =
      std::make_shared<SummarizeData>(SummarizeData{MadeCache(shape, pages), MadeSummaries(shape, format, pages, true), {}});
  data->pages.resize(static_cast<std::size_t>(data->cache.pages()));
  std::iota(data->pages.begin(), data->pages.end(), 0);
  return data;
}

double page_bytes(const Shape& shape, const SummaryFormat& format) {
  const Geometry& geometry = shape.geometry;
  const auto read = 2 * kPageTokens * row_bytes(shape.dtype, geometry.head_dim) * geometry.kv_heads;
  return static_cast<double>(read + summary_bytes(format, geometry.head_dim, geometry.kv_heads, 1, true));
}

PreparedCase prepare_bulk(const Shape& shape, const SummaryFormat& format, int threads, Target target) {
  constexpr int kPages = 2048;
  constexpr int kPromptTokens = 8192;
  const auto data = make_summarize_data(shape, format, kPages);
  const Geometry geometry = shape.geometry;
  PreparedCase prepared;
  prepared.work.run = [data, geometry, target](Team team) {
    summarize_some(*data, geometry, 0, data->pages.size(), team, target);
  };
  prepared.bytes_per_step = kPages * page_bytes(shape, format);
  // The rows of a prompt see half of it on average: the time of some rows in the middle stands for all.
  constexpr int kRows = 64;
  prepared.baseline = prefill_work(shape, kPromptTokens / 2, kRows, threads, target);
  prepared.baseline_scale = static_cast<double>(kPages) * kPageTokens / kRows;
  prepared.against = PreparedCase::Against::kPrefill;
  prepared.detail = fmt::format("{} pages with values; prompt of {} tokens", kPages, kPromptTokens);
  return prepared;
}

PreparedCase prepare_page(const Shape& shape, const SummaryFormat& format, int threads, Target target) {
  constexpr int kLayers = 512;
  constexpr int kContextTokens = 8192;
  const auto data = make_summarize_data(shape, format, kLayers);
  const Geometry geometry = shape.geometry;
  PreparedCase prepared;
  prepared.work.steps = kLayers;
  prepared.work.run = [data, geometry, target](Team team) {
    for (int layer = 0; layer < kLayers; ++layer) {
      summarize_some(*data, geometry, static_cast<std::size_t>(layer), 1, team, target);
      team.sync();
    }
  };
  prepared.bytes_per_step = page_bytes(shape, format);
  DecodeConfig config;
  config.format = &format;
  prepared.baseline = decode_work(shape, config, kContextTokens, threads, target);
  prepared.against = PreparedCase::Against::kDecodeStep;
  prepared.detail = fmt::format("one page of all heads, with values; context of {} tokens", kContextTokens);
  return prepared;
}

}  // namespace

std::vector<BenchCase> score_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const auto& name : options.formats) {
    for (const int head_dim : options.head_dims) {
      for (const Target target : options.targets) {
        const Shape shape{make_geometry(head_dim, options.kv_heads, options.group_size)};
        cases.push_back({fmt::format("score.{}.d{}", name, head_dim), target,
                         [=] { return prepare_score(shape, find_format(name), target); }});
      }
    }
  }
  return cases;
}

std::vector<BenchCase> summarize_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const auto& name : options.formats) {
    for (const int head_dim : options.head_dims) {
      for (const Target target : options.targets) {
        const Shape shape{make_geometry(head_dim, options.kv_heads, options.group_size)};
        const int threads = options.threads;
        cases.push_back({fmt::format("summarize.{}.d{}", name, head_dim), target,
                         [=] { return prepare_bulk(shape, find_format(name), threads, target); }});
        cases.push_back({fmt::format("summarize.page.{}.d{}", name, head_dim), target,
                         [=] { return prepare_page(shape, find_format(name), threads, target); }});
      }
    }
  }
  return cases;
}

}  // namespace locks::cli
