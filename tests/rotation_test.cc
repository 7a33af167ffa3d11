#include "locks/rotation.h"

#include <cmath>

#include <gtest/gtest.h>

#include "support/data.h"

namespace locks {
namespace {

class RotationTest : public testing::TestWithParam<int> {};

TEST_P(RotationTest, KeepsDotProductsAndUndoesItself) {
  const int head_dim = GetParam();
  const auto original = test::normal_floats(static_cast<std::size_t>(head_dim), 1);
  const auto other = test::normal_floats(static_cast<std::size_t>(head_dim), 2);
  auto a = original;
  auto b = other;
  rotate(a);
  rotate(b);
  double before = 0.0;
  double after = 0.0;
  double size = 0.0;
  for (int i = 0; i < head_dim; ++i) {
    before += static_cast<double>(original[i]) * other[i];
    after += static_cast<double>(a[i]) * b[i];
    size += std::abs(static_cast<double>(a[i]) * b[i]);
  }
  EXPECT_NEAR(before, after, 32 * 1.2e-7 * size);
  rotate_back(a);
  for (int i = 0; i < head_dim; ++i) EXPECT_NEAR(a[i], original[i], 1e-5F);
}

TEST_P(RotationTest, SpreadsOneComponentOverItsBlock) {
  const int head_dim = GetParam();
  std::vector<float> x(static_cast<std::size_t>(head_dim));
  x[3] = 1.0F;
  rotate(x);
  const auto block = static_cast<float>(1 << static_cast<int>(std::log2(head_dim)));
  EXPECT_FLOAT_EQ(std::abs(x[0]), 1.0F / std::sqrt(block));
  EXPECT_FLOAT_EQ(std::abs(x[7]), 1.0F / std::sqrt(block));
}

INSTANTIATE_TEST_SUITE_P(HeadDims, RotationTest, testing::Values(64, 80, 96, 128, 192, 256));

}  // namespace
}  // namespace locks
