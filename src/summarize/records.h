// Inside the stage: what every implementation of it shares.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/half.h"
#include "locks/summarize.h"

namespace locks::summarize_stage {

/// Larger components (after rotation) are treated like those that are not finite: scales, logits and their sums stay
/// within float for everything below it.
inline constexpr float kLargestComponent = 0x1p100F;
/// A direction with less than this share of the first one's energy is dropped.
inline constexpr double kNullEnergy = 1e-7;
/// Added to the diagonal of the normal matrix when coefficients are refitted; its basis rows are near unit length.
inline constexpr double kRefitRidge = 1e-4;
/// The same for the slopes of the values, as a share of the mean diagonal.
inline constexpr double kSlopeRidge = 1e-2;
/// Mid-rise steps tried, as shares of the step that just reaches the largest value.
inline constexpr float kStepShares[] = {1.0F, 0.9F, 0.8F, 0.7F, 0.6F};

/// A scale or variance as stored: nearest bf16, never infinite.
[[nodiscard]] inline std::uint16_t finite_bf16(double value) noexcept {
  constexpr double kLargest = 0x1.FEp127;
  return float_to_bf16(static_cast<float>(value < kLargest ? value : kLargest));
}

/// The record of a page that must never be skipped: zeros, the format and the flag.
void write_always_attend(const SummarizeArgs& args, std::int64_t page, int kv_head) noexcept;

/// check_summarize() for the GPU, which takes other caches; no cache is read.
void check_gpu_args(const SummarizeArgs& args);

/// Writes one record, and its value part if the store has one. False if the page is marked always-attend.
bool summarize_reference(const SummarizeArgs& args, std::int64_t page, int kv_head) noexcept;

/// The same for items [first, last): item i is KV head i % kv_heads of pages[i / kv_heads]. Returns how many were
/// marked.
std::int64_t summarize_simd(const SummarizeArgs& args, std::int64_t first, std::int64_t last, Target target) noexcept;

}  // namespace locks::summarize_stage
