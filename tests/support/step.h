// A whole decode step: caches, their summaries, queries; and what the step must give, from the formulas.
#pragma once

#include <vector>

#include "support/data.h"

namespace locks::test {

struct StepSpec {
  int head_dim = 64;
  int kv_heads = 2;
  int group = 3;
  DType dtype = DType::kF16;
  Layout layout = Layout::kTokenMajor;
  int block_tokens = 16;
  Content content = Content::kLowRank;
  const SummaryFormat* format = &kGraded8;
  std::vector<std::int32_t> lengths{1500};
  std::uint64_t seed = 1;
};

class StepData {
 public:
  explicit StepData(const StepSpec& spec);
  StepData(const StepData&) = delete;

  /// Again, after a change of the caches.
  void summarize_all();
  [[nodiscard]] DecodeInputs inputs() const;

  StepSpec spec;
  Geometry geometry;
  CacheData keys;
  CacheData values;
  TableData table;
  std::vector<float> queries;  // [requests, query_heads, head_dim]
  std::vector<std::byte> summary_memory;
  SummaryStore summaries;
};

struct StepResult {
  std::vector<float> out;  // [requests, query_heads, head_dim]
  std::vector<DecodeReport> reports;
  std::vector<float> coverage;  // [requests, kv_heads]
};

/// run() on a pool of `num_threads`.
StepResult run_step(const DecodeConfig& config, const StepData& data, Target target, int num_threads);

struct ExpectedStep {
  std::vector<double> out;
  std::vector<double> bound;  // of the error of float arithmetic, per element
  std::vector<DecodeReport> reports;
  std::vector<double> coverage;                     // [requests, kv_heads]
  std::vector<std::vector<SelectedPage>> selected;  // [requests * lists]
};

/// The step as a plain sequence: scores and selection by the stages (of `target`, so that what is selected is the same),
/// attention and completion by their formulas in double.
ExpectedStep expected_step(const DecodeConfig& config, const StepData& data, Target target);

}  // namespace locks::test
