// Shares of attention mass: one exponential and one order of summation, so that every target gets the same bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace locks::select {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The exponential: x = n ln 2 + rest, |rest| <= ln(2) / 2, and the series of e^rest to rest^7; the next term is below 6e-9.
inline constexpr float kExpLowest = -87.0F;  // 2^-125.5: the result's exponent stays in the normal range
inline constexpr float kExpHighest = 64.0F;  // what is larger counts as this, so that sums stay finite
inline constexpr float kExpLog2E = 1.44269504F;
inline constexpr float kExpLn2High = 0.693145752F;  // 16 bits: its product with a whole number below 2^8 is exact
inline constexpr float kExpLn2Low = 1.42860682e-6F;
inline constexpr float kExpRound = 0x1.8p23F;  // adding it leaves a whole number in the low bits
inline constexpr std::array kExpSeries{1.0F / 5040.0F, 1.0F / 720.0F, 1.0F / 120.0F, 1.0F / 24.0F, 1.0F / 6.0F, 0.5F};

/// e^x for x <= 64, 0 below -87 and for NaN; relative error below 1.5e-7.
[[nodiscard]] inline float share_exp(float x) noexcept {
  const float bounded = x > kExpLowest ? (x < kExpHighest ? x : kExpHighest) : kExpLowest;
  const float shifted = bounded * kExpLog2E + kExpRound;
  const float whole = shifted - kExpRound;
  const float rest = (bounded - whole * kExpLn2High) - whole * kExpLn2Low;
  float sum = kExpSeries[0];
  for (std::size_t i = 1; i < kExpSeries.size(); ++i) sum = sum * rest + kExpSeries[i];
  sum = sum * (rest * rest) + rest;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kExpRound);
  const float power = std::bit_cast<float>((exponent + 127) << 23);
  return x >= kExpLowest ? sum * power + power : 0.0F;
}

/// What has no finite mass takes no part in a head's norm.
[[nodiscard]] inline float mass_or_none(float log_mass) noexcept { return log_mass < kInfinity ? log_mass : -kInfinity; }

/// Sums and maxima over pages: entry i goes to lane i mod 16; then lane i takes in lane i + half for half = 8, 4, 2, 1.
inline constexpr int kLanes = 16;
using Lanes = std::array<float, kLanes>;

[[nodiscard]] inline float fold_sum(Lanes lanes) noexcept {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

[[nodiscard]] inline float fold_largest(Lanes lanes) noexcept {
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

/// Sums of neighbours, of their sums and so on, until `part_tokens` are in each: mass[i] becomes part i.
inline void fold_parts(Lanes& mass, int part_tokens) noexcept {
  for (int parts = kLanes / 2; parts >= kLanes / part_tokens; parts /= 2) {
    for (int part = 0; part < parts; ++part) mass[part] = mass[2 * part] + mass[2 * part + 1];
  }
}

}  // namespace locks::select
