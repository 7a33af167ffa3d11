// Shares of attention mass: one exponential and fixed orders of summation, so that every machine gets the same bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace locks::select {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// e^x for x <= 64 (larger counts as 64, so that sums stay finite), 0 below -87 and for NaN; relative error below 2e-7.
/// Without branches, calls and fused operations: loops over it vectorise, and the width does not change a bit.
[[nodiscard]] inline float share_exp(float x) noexcept {
  constexpr float kLowest = -87.0F;  // 2^-125.5: the result's exponent stays in the normal range
  constexpr float kHighest = 64.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693145752F;   // 16 bits: its product with a whole number below 2^8 is exact
  constexpr float kLn2Low = 1.42860677e-6F;
  constexpr float kRound = 0x1.8p23F;        // adding it leaves a whole number in the low bits
  const float bounded = x > kLowest ? (x < kHighest ? x : kHighest) : kLowest;
  const float shifted = bounded * kLog2E + kRound;
  const float whole = shifted - kRound;
  const float rest = (bounded - whole * kLn2High) - whole * kLn2Low;  // |rest| <= ln(2) / 2
  float sum = 1.0F / 720.0F;
  sum = sum * rest + 1.0F / 120.0F;
  sum = sum * rest + 1.0F / 24.0F;
  sum = sum * rest + 1.0F / 6.0F;
  sum = sum * rest + 0.5F;
  sum = sum * (rest * rest) + rest;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const float power = std::bit_cast<float>((exponent + 127) << 23);
  const float result = sum * power + power;
  return x >= kLowest ? result : 0.0F;
}

/// The order of every sum and maximum over pages: entry i goes to lane i mod 16; then lane i takes in lane i + half for
/// half = 8, 4, 2, 1.
inline constexpr int kLanes = 16;
template <class Combine>
[[nodiscard]] inline float fold(std::array<float, kLanes> lanes, const Combine& combine) noexcept {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

/// combine(...) over value(0), ..., value(count - 1) in that order.
template <class Value, class Combine>
[[nodiscard]] inline float reduce(int count, float start, const Value& value, const Combine& combine) noexcept {
  std::array<float, kLanes> lanes;
  lanes.fill(start);
  const int whole = count / kLanes * kLanes;
  for (int first = 0; first < whole; first += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = combine(lanes[lane], value(first + lane));
  }
  for (int i = whole; i < count; ++i) lanes[i - whole] = combine(lanes[i - whole], value(i));
  return fold(lanes, combine);
}

}  // namespace locks::select
