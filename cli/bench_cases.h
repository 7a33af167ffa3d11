// The measurements that `locks bench` knows. Each is made only when its turn comes: its data takes gigabytes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure.h"
#include "workload.h"

namespace locks::cli {

struct BenchOptions {
  std::vector<int> head_dims;
  int kv_heads = 8;
  int group_size = 4;
  std::vector<int> contexts;
  std::vector<std::string> formats;
  std::vector<Target> targets;
  int threads = 1;
};

struct PreparedCase {
  Work work;
  double bytes_per_step = 0.0;  // 0: not bound by memory
  double flops_per_step = 0.0;  // 0: not bound by arithmetic
  Work baseline;
  /// What the baseline is and what the ratio of the two times says.
  enum class Against : std::uint8_t { kNothing, kDense, kDecodeStep, kPrefill } against = Against::kNothing;
  double baseline_scale = 1.0;  // the baseline's time is multiplied by this first
  std::string detail;           // for the table: what one step is
};

struct BenchCase {
  std::string name;
  Target target;
  std::function<PreparedCase()> prepare;
};

[[nodiscard]] std::vector<BenchCase> score_cases(const BenchOptions& options);
[[nodiscard]] std::vector<BenchCase> attend_cases(const BenchOptions& options);
[[nodiscard]] std::vector<BenchCase> summarize_cases(const BenchOptions& options);
[[nodiscard]] std::vector<BenchCase> prefill_cases(const BenchOptions& options);
[[nodiscard]] std::vector<BenchCase> decode_cases(const BenchOptions& options);

/// A whole decode step of one layer over `context_tokens`: `steps` layers with their own summaries and cache regions.
[[nodiscard]] Work decode_work(const Shape& shape, const DecodeConfig& config, int context_tokens, int threads,
                               Target target);

/// Exact attention of `rows` consecutive rows, the last of which sees `context_tokens`.
[[nodiscard]] Work prefill_work(const Shape& shape, int context_tokens, int rows, int threads, Target target);

/// Bytes of different data that one timed run should read at least: long against a thread's wake-up.
inline constexpr std::int64_t kRunBytes = 100'000'000;
/// Bytes of a cache or a summary store that is read as a whole.
inline constexpr std::int64_t kColdBytes = 640'000'000;

}  // namespace locks::cli
