// The k largest of many shares, equal ones by index: a count by leading bits finds the k-th largest among few.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace locks::select {

/// Chosen are the entries above `bits`, and the first `equal` of those that equal it. Shares are not negative, so their
/// bits order as they do.
struct Threshold {
  std::uint32_t bits = 0;
  int equal = 0;

  /// Called once for every entry in ascending order of index.
  [[nodiscard]] bool takes(float share) noexcept {
    const auto own = std::bit_cast<std::uint32_t>(share);
    const bool equals = own == bits && equal > 0;
    equal -= equals ? 1 : 0;
    return own > bits || equals;
  }
};

/// The threshold that `count` of the shares pass, 0 < count <= shares.size(). `scratch` has an entry per share.
[[nodiscard]] Threshold largest(std::span<const float> shares, int count, std::span<std::int32_t> scratch) noexcept;

}  // namespace locks::select
