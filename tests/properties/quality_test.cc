// What the default buys at one budget, on pages like real ones: keys of low rank, values that depend on them. Parts of pages
// lose less than whole pages, and completion repairs most of what is left.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "support/step.h"

namespace locks {
namespace {

constexpr int kDim = 64;

test::StepSpec spec_of(std::uint64_t seed) {
  test::StepSpec spec;
  spec.head_dim = kDim;
  spec.dtype = DType::kF32;
  spec.lengths = {4099, 4099};
  spec.seed = seed;
  return spec;
}

/// values = a page's own vector + a linear image of the key + a little noise.
void relate_values_to_keys(test::StepData& data, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t page = 0; page < data.keys.view().num_pages; ++page) {
    for (int head = 0; head < data.spec.kv_heads; ++head) {
      float own[kDim];
      for (float& value : own) value = normal(random);
      for (int token = 0; token < kPageTokens; ++token) {
        for (int dim = 0; dim < kDim; ++dim) {
          const float linear =
              0.5F * (data.keys.value(page, token, head, dim) - data.keys.value(page, token, head, (dim + 7) % kDim));
          data.values.set_value(page, token, head, dim, own[dim] + linear + 0.1F * normal(random));
        }
      }
    }
  }
  data.summarize_all();
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(difference / size);
}

TEST(Quality, PartsAndCompletionLoseLessThanWholePages) {
  const Target target = supported_targets().back();
  double whole = 0.0;
  double parts = 0.0;
  double completed = 0.0;
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    test::StepData data(spec_of(100 + 10 * round));
    for (float& value : data.queries) value *= 0.8F;  // logits with a deviation of a few nats
    relate_values_to_keys(data, 7 + round);
    DecodeConfig config;
    config.select.budget_tokens = 256;
    const auto step = [&](int part_tokens, float completion) {
      config.select.part_tokens = part_tokens;
      config.select.completion_fraction = completion;
      test::StepResult result = test::run_step(config, data, target, 1);
      for (const DecodeReport& report : result.reports) {
        EXPECT_LE(report.attended_tokens, 256.0F);
        EXPECT_GT(report.attended_tokens, 240.0F);
      }
      return result.out;
    };
    DecodeConfig everything;
    everything.select.budget_tokens = 1 << 20;
    const std::vector<float> dense = test::run_step(everything, data, target, 1).out;
    whole += relative_error(step(16, 0.0F), dense) / kRounds;
    parts += relative_error(step(4, 0.0F), dense) / kRounds;
    completed += relative_error(step(4, 0.1F), dense) / kRounds;
  }
  RecordProperty("relative_error", "whole pages " + std::to_string(whole) + ", parts " + std::to_string(parts) +
                                       ", parts and completion " + std::to_string(completed));
  SCOPED_TRACE("whole pages " + std::to_string(whole) + ", parts " + std::to_string(parts) + ", completed " +
               std::to_string(completed));
  EXPECT_LT(parts, 0.9 * whole);
  EXPECT_LT(completed, 0.5 * whole);
  EXPECT_LT(completed, 0.7 * parts);
}

}  // namespace
}  // namespace locks
