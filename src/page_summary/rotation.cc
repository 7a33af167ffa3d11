#include "locks/rotation.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace locks {
namespace {

/// splitmix64: the sign of dimension i is a bit of its i-th output, so it never depends on head_dim.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

void hadamard(std::span<float> x) noexcept {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t block = 0; block < x.size(); block += 2 * half) {
      for (std::size_t i = block; i < block + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(x.size()));
  for (float& value : x) value *= scale;
}

void hadamard_blocks(std::span<float> x) noexcept {
  while (!x.empty()) {
    const std::size_t block = std::bit_floor(x.size());
    hadamard(x.first(block));
    x = x.subspan(block);
  }
}

void apply_signs(std::span<float> x) noexcept {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= rotation_sign(static_cast<int>(i));
}

}  // namespace

float rotation_sign(int dimension) noexcept { return (mix(static_cast<std::uint64_t>(dimension)) & 1U) != 0 ? -1.0F : 1.0F; }

void rotate(std::span<float> x) noexcept {
  apply_signs(x);
  hadamard_blocks(x);
}

void rotate_back(std::span<float> x) noexcept {
  hadamard_blocks(x);
  apply_signs(x);
}

}  // namespace locks
