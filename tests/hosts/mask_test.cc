#include "mask.h"

#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace locks::llamacpp {
namespace {

constexpr std::uint16_t kHidden = 0xFC00;

TEST(MaskTest, ReadsEveryLengthAndPattern) {
  std::mt19937 random(1);
  for (std::int64_t length = 1; length < 300; ++length) {
    std::vector<std::uint16_t> mask(static_cast<std::size_t>(length));
    for (auto& value : mask) {
      constexpr std::array<std::uint16_t, 3> kValues{0, 0x8000, kHidden};
      value = kValues[random() % (length % 2 == 0 ? 3 : 2) + (length % 2 == 0 ? 0 : 1)];
    }
    std::vector<std::uint64_t> seen(static_cast<std::size_t>(length + 63) / 64, ~std::uint64_t{0});
    ASSERT_TRUE(read_mask_row(mask.data(), length, seen));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(seen.size()) * 64; ++i) {
      const bool expected = i < length && mask[static_cast<std::size_t>(i)] != kHidden;
      ASSERT_EQ((seen[i / 64] >> (i % 64) & 1U) != 0, expected) << "cell " << i << " of " << length;
    }
  }
}

TEST(MaskTest, RefusesAnythingElseWhereverItStands) {
  for (const std::uint16_t value : {0x0001, 0x3C00, 0xBC00, 0x7C00, 0xFBFF, 0xFE00, 0x7E01}) {
    for (std::size_t at = 0; at < 200; ++at) {
      std::vector<std::uint16_t> mask(200, at % 3 == 0 ? kHidden : std::uint16_t{0});
      mask[at] = value;
      std::array<std::uint64_t, 4> seen{};
      ASSERT_FALSE(read_mask_row(mask.data(), 200, seen)) << value << " at " << at;
    }
  }
}

}  // namespace
}  // namespace locks::llamacpp
