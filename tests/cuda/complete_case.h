// Calls of completion, on the host and on the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "locks/attend.h"
#include "records.h"

namespace locks::test {

constexpr int kRequests = 2;

/// Two requests; each list completes some pages, with masks of every kind.
struct CompleteCase {
  Geometry geometry;
  int lists;
  int heads;  // of a list
  int capacity;
  RandomRecords records;
  TableData table;
  TableOnDevice device_table;
  std::vector<float> queries;
  std::vector<SelectedPage> completed;
  std::vector<std::int32_t> counts;
  std::vector<float> skipped;
  std::vector<float> states;

  CompleteCase(const SummaryFormat& format, int head_dim, int kv_heads, int group, bool list_per_head, int longest,
               float query_size = 1.0F, int pages = 700)
      : geometry{head_dim, kv_heads, kv_heads * group, 1.0F / std::sqrt(static_cast<float>(head_dim))},
        lists(list_per_head ? kv_heads * group : kv_heads),
        heads(kv_heads * group / lists),
        capacity(longest + 3),
        records(format, head_dim, kv_heads, pages, 16, 5),
        table({pages * 2 / 7 * kPageTokens + 7, pages * 9 / 14 * kPageTokens}, pages, 32, 3),
        device_table(table),
        queries(normal_floats(static_cast<std::size_t>(kRequests * kv_heads * group * head_dim), 4, query_size)),
        skipped(normal_floats(static_cast<std::size_t>(kRequests * kv_heads * group), 6)),
        states(normal_floats(static_cast<std::size_t>(kRequests * kv_heads * group * (2 + head_dim)), 7)) {
    std::mt19937_64 random(8);
    const std::uint16_t masks[] = {kWholePage, 0x0001, 0x8000, 0xFFF0, 0x0F0F, 0};
    for (int row = 0; row < kRequests * lists; ++row) {
      const int filled = table.table.filled_pages(row / lists);
      const int count = std::min(filled, row % lists == 0 ? longest
                                         : row % 3 == 2   ? 0
                                                          : 1 + static_cast<int>(random() % longest));
      counts.push_back(count);
      for (int i = 0; i < capacity; ++i) {
        const auto mask = i < 6 ? masks[i] : i % 3 == 0 ? static_cast<std::uint16_t>(random()) : kWholePage;
        completed.push_back(i < count ? SelectedPage{i * filled / count, mask} : SelectedPage{-1000000, kWholePage});
      }
    }
    for (std::size_t i = 0; i < states.size(); i += static_cast<std::size_t>(2 + head_dim)) states[i + 1] = 3.0F;
  }
  [[nodiscard]] int list_of(int row) const { return row % lists; }
  [[nodiscard]] std::span<const SelectedPage> entries(int row) const {
    return std::span(completed).subspan(static_cast<std::size_t>(row * capacity), static_cast<std::size_t>(counts[row]));
  }
  /// What queue(args, states) makes of the states.
  template <class Queue>
  [[nodiscard]] std::vector<float> run(const Queue& queue) {
    const DeviceArray<float> device_queries(queries);
    const DeviceArray<SelectedPage> device_completed(completed);
    const DeviceArray<std::int32_t> device_counts(counts);
    const DeviceArray<float> device_skipped(skipped);
    const DeviceArray<float> device_states(states);
    const DeviceArray<std::byte> workspace(cuda::completion_workspace_bytes(geometry, kRequests, lists));
    cuda::CompletionArgs args;
    args.geometry = geometry;
    args.queries = contiguous<const float>(device_queries.data(), kRequests, geometry.query_heads, geometry.head_dim);
    args.summaries = records.device();
    args.table = device_table.table();
    args.num_lists = lists;
    args.completed = contiguous<const SelectedPage>(device_completed.data(), kRequests, lists, capacity);
    args.num_completed = contiguous<const std::int32_t>(device_counts.data(), kRequests, lists);
    args.skipped_log_mass = contiguous<const float>(device_skipped.data(), kRequests, geometry.query_heads);
    args.workspace = workspace.span();
    queue(args, contiguous<float>(device_states.data(), kRequests, geometry.query_heads, 2 + geometry.head_dim));
    return device_states.read();
  }
  [[nodiscard]] std::vector<float> run() {
    return run([](const cuda::CompletionArgs& args, SoftmaxStates view) { cuda::complete(args, view, nullptr); });
  }
  [[nodiscard]] ScoreArgs score_args() const {
    ScoreArgs args;
    args.geometry = geometry;
    args.queries = contiguous<const float>(queries.data(), kRequests, geometry.query_heads, geometry.head_dim);
    args.summaries = records.host();
    args.table = table.table;
    return args;
  }
};

}  // namespace locks::test
