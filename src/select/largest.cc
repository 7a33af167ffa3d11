#include "select/largest.h"

namespace locks::select {
namespace {

constexpr int kBuckets = 2048;  // 11 of the 31 bits that a share can have set, then 11, then the last 9

/// The bucket that the `wanted`-th largest lies in, counted from the top; `wanted` becomes its rank inside that bucket.
int find_bucket(const std::array<std::int32_t, kBuckets>& sizes, int& wanted) noexcept {
  int bucket = kBuckets - 1;
  while (sizes[bucket] < wanted) wanted -= sizes[bucket--];
  return bucket;
}

}  // namespace

Threshold largest(std::span<const float> shares, int count, std::span<std::int32_t> scratch) noexcept {
  std::array<std::int32_t, kBuckets> sizes{};
  for (const float share : shares) ++sizes[std::bit_cast<std::uint32_t>(share) >> 20];
  std::uint32_t prefix = static_cast<std::uint32_t>(find_bucket(sizes, count)) << 20;
  int remaining = 0;
  for (const float share : shares) {
    const auto bits = std::bit_cast<std::uint32_t>(share);
    scratch[remaining] = static_cast<std::int32_t>(bits);
    remaining += (bits ^ prefix) >> 20 == 0 ? 1 : 0;
  }
  for (int shift = 9; remaining > 1; shift = 0) {
    sizes.fill(0);
    const std::uint32_t mask = shift == 9 ? kBuckets - 1 : 511;
    for (int i = 0; i < remaining; ++i) ++sizes[static_cast<std::uint32_t>(scratch[i]) >> shift & mask];
    prefix |= static_cast<std::uint32_t>(find_bucket(sizes, count)) << shift;
    if (shift == 0) return {prefix, count};
    int kept = 0;
    for (int i = 0; i < remaining; ++i) {
      const std::int32_t bits = scratch[i];
      scratch[kept] = bits;
      kept += (static_cast<std::uint32_t>(bits) ^ prefix) >> shift == 0 ? 1 : 0;
    }
    remaining = kept;
  }
  return {static_cast<std::uint32_t>(scratch[0]), count};
}

}  // namespace locks::select
