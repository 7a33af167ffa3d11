// The fixed rotation of the graded formats: random signs, then a Hadamard transform. It spreads a vector's energy over
// its components, so that few bits a component suffice. Being orthogonal, it leaves every q.k as it was.
#pragma once

#include <span>

namespace locks {

/// x -> H (signs * x) / sqrt(block), in place, float arithmetic in a fixed order: the same bits on every target.
/// Dimensions that are not a power of two rotate in blocks, the largest power of two first (80 = 64 + 16).
void rotate(std::span<float> x) noexcept;
/// The inverse.
void rotate_back(std::span<float> x) noexcept;
/// +1 or -1 for dimension i.
[[nodiscard]] float rotation_sign(int dimension) noexcept;

}  // namespace locks
