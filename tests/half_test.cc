#include "cpu/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace locks {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(HalfTest, EveryF16BecomesTheFloatThatTheCompilerGives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float want = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
    const float got = f16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << "f16 bits " << bits;
    } else {
      ASSERT_EQ(bits_of(got), bits_of(want)) << "f16 bits " << bits << ": got " << got << ", want " << want;
    }
  }
}

void check_to_f16(float value) {
  const auto want = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
  const std::uint16_t got = float_to_f16(value);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(f16_to_float(got))) << "float bits " << bits_of(value);
  } else {
    ASSERT_EQ(got, want) << "float bits " << bits_of(value) << " = " << value;
  }
}

// Every float decides by its upper 20 bits and by whether anything is set below them: 1 sign, 8 exponent, 10 kept and 1
// rounding bit, and the sticky rest. Below the normal range the rounding bit moves up, into the bits that all vary.
TEST(HalfTest, FloatsRoundToF16AsTheCompilerDoes) {
  for (std::uint32_t upper = 0; upper < 1U << 20; ++upper) {
    for (const std::uint32_t rest : {0x000U, 0x001U, 0x800U, 0xFFFU}) {
      check_to_f16(std::bit_cast<float>(upper << 12 | rest));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HalfTest, EveryF16SurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_f16(value), bits);
  }
}

TEST(HalfTest, EveryBf16IsTheUpperHalfOfAFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_EQ(bits_of(bf16_to_float(static_cast<std::uint16_t>(bits))), bits << 16);
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_bf16(value), bits);
  }
}

// By definition: the nearer of the two neighbours, the even one in the middle. Distances are exact in double; above the
// largest bf16, infinity stands where the next one would be.
TEST(HalfTest, FloatsRoundToTheNearestBf16) {
  const auto place = [](std::uint32_t bf16) {
    return bf16 == 0x7F80U ? 0x1p128 : static_cast<double>(bf16_to_float(static_cast<std::uint16_t>(bf16)));
  };
  for (std::uint32_t upper = 0; upper < 0x7F80U; ++upper) {
    for (const std::uint32_t rest : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const float value = std::bit_cast<float>(upper << 16 | rest);
      const double below = static_cast<double>(value) - place(upper);
      const double above = place(upper + 1) - static_cast<double>(value);
      const bool up = above < below || (above == below && upper % 2 == 1);
      ASSERT_EQ(float_to_bf16(value), up ? upper + 1 : upper) << value;
      ASSERT_EQ(float_to_bf16(-value), (up ? upper + 1 : upper) | 0x8000U) << -value;
    }
  }
}

// By definition: sign, four bits of exponent, three of mantissa; the largest magnitude is no number.
TEST(HalfTest, EveryE4m3IsWhatItsBitsSay) {
  for (std::uint32_t bits = 0; bits < 0x100; ++bits) {
    const float got = e4m3_to_float(static_cast<std::uint8_t>(bits));
    const std::uint32_t exponent = bits >> 3 & 15U;
    const std::uint32_t mantissa = bits & 7U;
    if ((bits & 0x7FU) == 0x7FU) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      continue;
    }
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                     : std::ldexp(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
    EXPECT_EQ(bits_of(got), bits_of(bits >= 0x80U ? -size : size)) << bits;
  }
}

TEST(HalfTest, FloatsRoundToTheNearestE4m3) {
  for (std::uint32_t lower = 0; lower < 0x7EU; ++lower) {
    const float below = e4m3_to_float(static_cast<std::uint8_t>(lower));
    const float above = e4m3_to_float(static_cast<std::uint8_t>(lower + 1));
    const float middle = (below + above) / 2;
    const std::uint32_t even = lower % 2 == 0 ? lower : lower + 1;
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t of_sign = sign < 0.0F ? 0x80U : 0U;
      EXPECT_EQ(float_to_e4m3(sign * below), lower | of_sign);
      EXPECT_EQ(float_to_e4m3(sign * std::nextafter(middle, below)), lower | of_sign) << middle;
      EXPECT_EQ(float_to_e4m3(sign * middle), even | of_sign) << middle;
      EXPECT_EQ(float_to_e4m3(sign * std::nextafter(middle, above)), (lower + 1) | of_sign) << middle;
    }
  }
  for (const float large : {448.0F, 463.0F, 465.0F, 1e30F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_to_e4m3(large), 0x7EU);
    EXPECT_EQ(float_to_e4m3(-large), 0xFEU);
  }
}

TEST(HalfTest, NotANumberStaysNotANumber) {
  for (const std::uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0x7FC00000U, 0xFFFFFFFFU}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << bits;
    EXPECT_TRUE(std::isnan(e4m3_to_float(float_to_e4m3(value)))) << bits;
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_bf16(kInfinity), 0x7F80U);
  EXPECT_EQ(float_to_f16(-kInfinity), 0xFC00U);
}

}  // namespace
}  // namespace locks
