// Shares of attention mass: one exponential and one order of summation, so that every target gets the same bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace locks::select {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The exponential: x log2(e) = n + rest, |rest| <= 1/2, and a polynomial for 2^rest, within 9.2e-8 of it and exact at 0.
inline constexpr float kExpLowest = -43.0F;  // 2^-62.04: even the product of two is a normal number
inline constexpr float kExpHighest = 64.0F;  // what is larger counts as this, so that sums stay finite
inline constexpr float kExpLog2E = 1.44269504F;
inline constexpr float kExpRound =
    0x1.8p23F;  // adding it leaves a whole number in the low bits; shifted left by 23, none of its own
inline constexpr std::array kExpSeries{0.00132647366F, 0.00967151672F, 0.0555073358F, 0.240222424F, 0.693147004F, 1.0F};

/// e^x for x <= 64, 0 below -43 and for NaN; relative error below 3e-7 + 8e-8 |x|, most of it from rounding x log2(e).
[[nodiscard]] constexpr float share_exp(float x) noexcept {
  const float bounded = x < kExpHighest ? x : kExpHighest;  // below kExpLowest the outcome does not matter
  const float scaled = bounded * kExpLog2E;
  const float shifted = scaled + kExpRound;
  const float rest = scaled - (shifted - kExpRound);
  constexpr auto kSeries = kExpSeries;  // a GPU sees no array of the host's
  float sum = kSeries[0];
  for (std::size_t i = 1; i < kSeries.size(); ++i) sum = sum * rest + kSeries[i];
  const std::uint32_t power = std::bit_cast<std::uint32_t>(shifted) << 23;
  return x >= kExpLowest ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) + power) : 0.0F;
}

/// Natural logarithm of a positive normal x, absolute error below 1.3e-7 + 1.2e-7 |log x|. With x = 2^n m, m in
/// [sqrt(1/2), sqrt(2)), and s = (m - 1) / (m + 1): log m = 2 (s + s^3/3 + s^5/5 + s^7/7), the rest is below 2.9e-8.
[[nodiscard]] constexpr float share_log(float x) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t exponent = (bits - 0x3F3504F3) >> 23;  // from the bits of sqrt(1/2) on
  const float m = std::bit_cast<float>(bits - exponent * (1 << 23));
  const float s = (m - 1.0F) / (m + 1.0F);
  const float s2 = s * s;
  float sum = s2 * (2.0F / 7.0F) + 2.0F / 5.0F;
  sum = sum * s2 + 2.0F / 3.0F;
  sum = sum * s2 + 2.0F;
  return static_cast<float>(exponent) * 0.693147181F + s * sum;
}

/// What has no finite mass takes no part in a head's norm.
[[nodiscard]] constexpr float mass_or_none(float log_mass) noexcept { return log_mass < kInfinity ? log_mass : -kInfinity; }

/// Sums over pages go by blocks of kBlockPages, so that many processors can share one list: inside a block, page i goes to
/// lane i mod 16; then lane i takes in lane i + half for half = 8, 4, 2, 1. The blocks' sums are summed in the same way.
inline constexpr int kBlockPages = 256;
inline constexpr int kLanes = 16;
using Lanes = std::array<float, kLanes>;

[[nodiscard]] constexpr float fold_sum(Lanes lanes) noexcept {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

/// The mass of a block's pages: sum * e^origin, where origin is the largest log-mass among them, or 0 if none has any.
struct BlockMass {
  float origin = 0.0F;
  float sum = 0.0F;
};

/// What a block adds to its lane of the whole mass, which is counted from `origin`.
[[nodiscard]] constexpr float from_origin(const BlockMass& block, float origin) noexcept {
  return block.sum * share_exp(block.origin - origin);
}

/// A head's whole mass: its logarithm, +infinity if there is none, and the share that the blocks have of it.
struct WholeMass {
  float log_norm = kInfinity;
  float block_share = 0.0F;
};

/// From what is always attended and the sum over the blocks, both counted from `origin`.
[[nodiscard]] constexpr WholeMass whole_mass(float always_log_mass, float origin, float blocks) noexcept {
  const float whole = share_exp(always_log_mass - origin) + blocks;
  if (!(whole > 0.0F)) return {};
  return {origin + share_log(whole), blocks / whole};
}

/// A page's share: e^(its log-mass - its block's origin), `from_block`, times e^(origin - logarithm of the whole mass).
[[nodiscard]] constexpr float page_share(float from_block, float block_factor) noexcept {
  return from_block == kInfinity ? kInfinity : from_block * block_factor;
}
[[nodiscard]] constexpr float from_block(float log_mass, float origin) noexcept {
  return log_mass == kInfinity ? kInfinity : share_exp(log_mass - origin);
}

[[nodiscard]] constexpr float fold_largest(Lanes lanes) noexcept {
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

/// Sums of neighbours, of their sums and so on, until `part_tokens` are in each: mass[i] becomes part i.
constexpr void fold_parts(Lanes& mass, int part_tokens) noexcept {
  for (int parts = kLanes / 2; parts >= kLanes / part_tokens; parts /= 2) {
    for (int part = 0; part < parts; ++part) mass[part] = mass[2 * part] + mass[2 * part + 1];
  }
}

}  // namespace locks::select
