#include "score/query.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "locks/rotation.h"

namespace locks {
namespace {

/// Ties to even, for |x| <= 2^22: at 1.5 * 2^23 a float's last bit is worth one.
std::int32_t round_half_even(float x) noexcept {
  constexpr float kShift = 12582912.0F;
  return std::bit_cast<std::int32_t>(x + kShift) - std::bit_cast<std::int32_t>(kShift);
}

/// max |x_i|, or infinity if any is not finite.
float largest_magnitude(std::span<const float> x) noexcept {
  float largest = 0.0F;
  bool finite = true;
  for (const float value : x) {
    largest = std::max(largest, std::abs(value));
    finite &= std::abs(value) <= std::numeric_limits<float>::max();
  }
  return finite ? largest : std::numeric_limits<float>::infinity();
}

/// For vectors of `blocks` blocks whose bytes hold `parts` dimensions each.
void repeat(const std::int8_t* q8, int padded, int parts, int blocks, std::byte* out) noexcept {
  const int vectors = padded / 8 / (parts * blocks);
  for (int vector = 0; vector < vectors; ++vector) {
    for (int part = 0; part < parts; ++part) {
      for (int block = 0; block < blocks; ++block) {
        const std::int8_t* eight = q8 + 8 * (parts * (vector * blocks + block) + part);
        for (int rank = 0; rank < 4; ++rank, out += 8) std::memcpy(out, eight, 8);
      }
    }
  }
}

}  // namespace

void prepare_query(const float* query, int head_dim, bool rotated, int blocks_per_vector, std::byte* block) noexcept {
  std::array<float, kMaxHeadDim> q;
  std::copy_n(query, head_dim, q.begin());
  const std::span<float> values(q.data(), static_cast<std::size_t>(head_dim));
  if (rotated) rotate(values);

  const int padded = (head_dim + 63) / 64 * 64;
  const float largest = largest_magnitude(values);
  const float to8 = 127.0F / largest;
  const float to16 = 32767.0F / largest;
  QueryScales scales;
  auto* const q8 = reinterpret_cast<std::int8_t*>(block + QueryLayout::kQ8At);
  auto* const q16 = reinterpret_cast<std::int16_t*>(block + QueryLayout::kQ16At);
  std::memset(q8, 0, static_cast<std::size_t>(padded));
  std::memset(q16, 0, static_cast<std::size_t>(2 * padded));
  if (to16 > 0.0F && to16 <= std::numeric_limits<float>::max()) {
    scales.scale8 = largest / 127.0F;
    scales.scale16 = largest / 32767.0F;
    for (int dim = 0; dim < head_dim; ++dim) {
      const std::int32_t code = round_half_even(q[dim] * to8);
      q8[dim] = static_cast<std::int8_t>(code);
      q16[dim] = static_cast<std::int16_t>(round_half_even(q[dim] * to16));
      scales.sum8 += code;
    }
  }
  std::memcpy(block, &scales, sizeof scales);
  if (blocks_per_vector == 0) return;
  repeat(q8, padded, 2, blocks_per_vector, block + QueryLayout::repeated_at(4, blocks_per_vector));
  if (blocks_per_vector > 1)
    repeat(q8, padded, 4, blocks_per_vector, block + QueryLayout::repeated_at(2, blocks_per_vector));
}

}  // namespace locks
