// Attend over selected pages and over everything, and prefill: what reads the cache itself.
#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "bench_cases.h"

namespace locks::cli {
namespace {

constexpr int kSelectedTokens = 2048;

/// `count` different pages of [0, pages), ascending, with the same number of tokens each: a whole page or one part of it.
std::vector<SelectedPage> random_selection(std::int64_t pages, int count, int part_tokens, std::mt19937_64& random) {
  std::vector<std::int32_t> chosen;
  while (static_cast<int>(chosen.size()) < count) {
    while (static_cast<int>(chosen.size()) < count) chosen.push_back(static_cast<std::int32_t>(random() % pages));
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  }
  std::vector<SelectedPage> selected;
  for (const std::int32_t page : chosen) {
    const int first = static_cast<int>(random() % (kPageTokens / part_tokens)) * part_tokens;
    selected.push_back({page, static_cast<std::uint16_t>(((1U << part_tokens) - 1U) << first)});
  }
  return selected;
}

struct AttendData {
  MadeCache cache;
  MadeTable table;
  std::vector<float> queries;
  std::vector<float> states;
  std::vector<float> out;
  std::vector<SelectedPage> selected;      // [steps, kv_heads, capacity]
  std::vector<std::int32_t> num_selected;  // [kv_heads]
  Memory workspace;
  std::vector<AttendArgs> steps;
};

Work attend_steps(std::shared_ptr<AttendData> data, Target target) {
  Work work;
  work.steps = static_cast<int>(data->steps.size());
  work.run = [data = std::move(data), target](Team team) {
    for (const AttendArgs& args : data->steps) {
      const Geometry& geometry = args.geometry;
      const auto states = contiguous(data->states.data(), 1, geometry.query_heads, geometry.head_dim + 2);
      const auto [first, last] = team.share(geometry.kv_heads);
      for (auto head = first * geometry.group_size(); head < last * geometry.group_size(); ++head) {
        std::fill_n(states.at(0, head), geometry.head_dim + 2, 0.0F);
        states(0, head, 0) = -std::numeric_limits<float>::infinity();
      }
      attend(args, team, target);
      team.sync();
      for (auto list = first; list < last; ++list) {
        merge_partials(args, 0, static_cast<int>(list), team.count, states);
        for (auto head = list * geometry.group_size(); head < (list + 1) * geometry.group_size(); ++head) {
          finish(states, 0, static_cast<int>(head),
                 std::span(data->out).subspan(head * geometry.head_dim, geometry.head_dim));
        }
      }
      team.sync();
    }
  };
  return work;
}

std::shared_ptr<AttendData> make_attend_data(const Shape& shape, std::int64_t pages, int context_tokens, int threads) {
  const Geometry& geometry = shape.geometry;
  const auto query_floats = static_cast<std::size_t>(geometry.query_heads) * geometry.head_dim;
  return std::make_shared<AttendData>(AttendData{MadeCache(shape, pages),
                                                 MadeTable(context_tokens),
                                                 normal_floats(query_floats, 3),
                                                 std::vector<float>(query_floats + 2 * geometry.query_heads),
                                                 std::vector<float>(query_floats),
                                                 {},
                                                 {},
                                                 Memory(attend_workspace_bytes(geometry, 1, geometry.kv_heads, threads)),
                                                 {}});
}

AttendArgs attend_args(const Shape& shape, const AttendData& data, std::int64_t first_page, std::int64_t pages) {
  AttendArgs args;
  args.geometry = shape.geometry;
  args.queries = contiguous<const float>(data.queries.data(), 1, shape.geometry.query_heads, shape.geometry.head_dim);
  args.keys = data.cache.keys(first_page, pages);
  args.values = data.cache.values(first_page, pages);
  args.table = data.table.table();
  args.num_lists = shape.geometry.kv_heads;
  args.workspace = data.workspace.span();
  return args;
}

double token_bytes(const Shape& shape) {
  return 2.0 * static_cast<double>(row_bytes(shape.dtype, shape.geometry.head_dim)) * shape.geometry.kv_heads;
}

PreparedCase prepare_attend(const Shape& shape, int part_tokens, int threads, Target target) {
  const int kv_heads = shape.geometry.kv_heads;
  const double step_bytes = token_bytes(shape) * kSelectedTokens;
  const int steps = std::max(1, static_cast<int>(kRunBytes / step_bytes));
  const int capacity = kSelectedTokens / part_tokens;
  const std::int64_t pages = whole_periods(static_cast<std::int64_t>(kColdBytes / token_bytes(shape)) / kPageTokens);
  const auto data = make_attend_data(shape, pages, static_cast<int>(pages * kPageTokens), threads);
  std::mt19937_64 random(5);
  for (int list = 0; list < steps * kv_heads; ++list) {
    const auto selection = random_selection(pages, capacity, part_tokens, random);
    data->selected.insert(data->selected.end(), selection.begin(), selection.end());
  }
  data->num_selected.assign(static_cast<std::size_t>(kv_heads), capacity);
  for (int step = 0; step < steps; ++step) {
    AttendArgs args = attend_args(shape, *data, 0, pages);
    args.selected =
        contiguous<const SelectedPage>(data->selected.data() + step * kv_heads * capacity, 1, kv_heads, capacity);
    args.num_selected = contiguous<const std::int32_t>(data->num_selected.data(), 1, kv_heads);
    check_attend(args);
    data->steps.push_back(args);
  }
  PreparedCase prepared;
  prepared.work = attend_steps(data, target);
  prepared.bytes_per_step = step_bytes;
  prepared.detail = fmt::format("{} tokens of {} in parts of {}", kSelectedTokens, pages * kPageTokens, part_tokens);
  return prepared;
}

PreparedCase prepare_dense(const Shape& shape, int threads, Target target) {
  constexpr int kContextTokens = 32768;
  constexpr std::int64_t kPages = kContextTokens / kPageTokens;
  const double step_bytes = token_bytes(shape) * kContextTokens;
  const int steps = std::max(1, static_cast<int>(kColdBytes / step_bytes));
  const auto data = make_attend_data(shape, steps * kPages, kContextTokens, threads);
  for (int step = 0; step < steps; ++step) {
    data->steps.push_back(attend_args(shape, *data, step * kPages, kPages));
    check_attend(data->steps.back());
  }
  PreparedCase prepared;
  prepared.work = attend_steps(data, target);
  prepared.bytes_per_step = step_bytes;
  prepared.detail = fmt::format("all of {} tokens in {}", kContextTokens, dtype_name(shape.dtype));
  return prepared;
}

}  // namespace

Work prefill_work(const Shape& shape, int context_tokens, int rows, int threads, Target target) {
  struct Data {
    MadeCache cache;
    MadeTable table;
    std::vector<float> queries;
    std::vector<std::int32_t> row_tokens;
    std::vector<float> out;
    Memory workspace;
  };
  const Geometry& geometry = shape.geometry;
  const auto floats = static_cast<std::size_t>(rows) * geometry.query_heads * geometry.head_dim;
  const auto data = std::make_shared<Data>(Data{MadeCache(shape, context_tokens / kPageTokens),
                                                MadeTable(context_tokens),
                                                normal_floats(floats, 3),
                                                {},
                                                std::vector<float>(floats),
                                                Memory(prefill_workspace_bytes(geometry, threads))});
  for (int row = 0; row < rows; ++row) data->row_tokens.push_back(context_tokens - rows + 1 + row);
  const PrefillArgs args{geometry,
                         contiguous<const float>(data->queries.data(), rows, geometry.query_heads, geometry.head_dim),
                         data->cache.keys(0, data->cache.pages()),
                         data->cache.values(0, data->cache.pages()),
                         data->table.blocks(),
                         data->row_tokens,
                         contiguous(data->out.data(), rows, geometry.query_heads, geometry.head_dim),
                         data->workspace.span()};
  check_prefill(args);
  return {[data, args, target](Team team) { prefill(args, team, target); }, 1};
}

std::vector<BenchCase> attend_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const int head_dim : options.head_dims) {
    for (const Target target : options.targets) {
      const Geometry geometry = make_geometry(head_dim, options.kv_heads, options.group_size);
      const int threads = options.threads;
      for (const int part_tokens : {kPageTokens, 4}) {
        const std::string name = part_tokens == kPageTokens ? "attend" : "attend.parts";
        cases.push_back({fmt::format("{}.d{}", name, head_dim), target,
                         [=] { return prepare_attend({geometry}, part_tokens, threads, target); }});
      }
      for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kBF16, DType::kF32}) {
        if (dtype == DType::kQ8_0 && head_dim % kQ8BlockElements != 0) continue;
        const std::string name = dtype == DType::kF16 ? "dense" : fmt::format("dense.{}", dtype_name(dtype));
        cases.push_back({fmt::format("{}.d{}", name, head_dim), target,
                         [=] { return prepare_dense({geometry, dtype}, threads, target); }});
      }
    }
  }
  return cases;
}

std::vector<BenchCase> prefill_cases(const BenchOptions& options) {
  constexpr int kContextTokens = 4096;
  constexpr int kRows = 128;
  std::vector<BenchCase> cases;
  for (const int head_dim : options.head_dims) {
    for (const Target target : options.targets) {
      const Shape shape{make_geometry(head_dim, options.kv_heads, options.group_size)};
      const int threads = options.threads;
      cases.push_back({fmt::format("prefill.d{}", head_dim), target, [=] {
                         PreparedCase prepared;
                         prepared.work = prefill_work(shape, kContextTokens, kRows, threads, target);
                         prepared.flops_per_step = 4.0 * kRows * kContextTokens * shape.geometry.query_heads * head_dim;
                         prepared.detail = fmt::format("{} rows over {} tokens", kRows, kContextTokens);
                         return prepared;
                       }});
    }
  }
  return cases;
}

}  // namespace locks::cli
