// Scalar conversions between float and its kin of 16 and 8 bits, by the bits: the same on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace locks {

[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even. NaN stays NaN.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x0040U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

[[nodiscard]] inline float f16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13);
  if (magnitude >= 0x0400U) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// Round to nearest, ties to even; overflow gives infinity.
[[nodiscard]] inline std::uint16_t float_to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // below the normal range: let float addition round at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

/// Exact: f16 has every e4m3 times 2^-8, so that its bits are moved and the exponent is corrected.
[[nodiscard]] inline float e4m3_to_float(std::uint8_t bits) noexcept {
  if ((bits & 0x7FU) == 0x7FU) return std::bit_cast<float>(bits == 0x7FU ? 0x7FC00000U : 0xFFC00000U);
  return 256.0F * f16_to_float(static_cast<std::uint16_t>((bits & 0x80U) << 8 | (bits & 0x7FU) << 7));
}

/// Round to nearest, ties to even; what is larger than 448 becomes 448. NaN stays NaN.
[[nodiscard]] inline std::uint8_t float_to_e4m3(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  if (magnitude >= 0x43E00000U) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < 0x3C800000U) {  // below the normal range: let float addition round at 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000U));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFFU + (magnitude >> 20 & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded - 0x3C000000U) >> 20));
}

[[nodiscard]] inline std::uint16_t load_u16(const void* at) noexcept {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
inline void store_u16(void* at, std::uint16_t bits) noexcept { std::memcpy(at, &bits, sizeof bits); }

}  // namespace locks
