#include "select/largest.h"

#include <algorithm>
#include <functional>

namespace locks::select {
namespace {

constexpr int kShift = 21;  // a bucket is an exponent and two bits of the fraction: what a share's top bits can be
constexpr int kBuckets = 1 << 10;

}  // namespace

Threshold largest(std::span<const float> shares, int count, std::span<std::int32_t> scratch) noexcept {
  // Neighbours often fall into the same bucket; two tables keep one increment from waiting for the other.
  std::array<std::array<std::int32_t, kBuckets>, 2> sizes{};
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(shares[i]);
    most = std::max(most, bits);
    ++sizes[i % 2][bits >> kShift];
  }
  std::uint32_t bucket = most >> kShift;
  for (int size; (size = sizes[0][bucket] + sizes[1][bucket]) < count; --bucket) count -= size;
  int members = 0;
  for (const float share : shares) {
    const auto bits = std::bit_cast<std::uint32_t>(share);
    scratch[members] = static_cast<std::int32_t>(bits);
    members += bits >> kShift == bucket ? 1 : 0;
  }
  std::int32_t* const first = scratch.data();
  std::nth_element(first, first + count - 1, first + members, std::greater<>());
  const std::int32_t threshold = first[count - 1];
  const auto above =
      static_cast<int>(std::count_if(first, first + count, [=](std::int32_t bits) { return bits > threshold; }));
  return {static_cast<std::uint32_t>(threshold), count - above};
}

}  // namespace locks::select
