// The arithmetic of the steps. Every variant gives the same bits: products and sums are never fused, and sums and maxima
// over pages go through 16 lanes in the order of share.h, whatever the width of the machine's vectors.
#pragma once

#include <cstdint>
#include <span>

#include "locks/target.h"

namespace locks::select {

/// shares[i] = exp(log_mass[i]) / whole mass, +infinity where log_mass is. Returns the logarithm of the whole mass,
/// +infinity if there is none. `shares` may be `log_mass`.
struct HeadMass {
  const float* log_mass;
  float always_log_mass;
  int pages;
  float* shares;
};

/// Logits [heads, 16] of one page (a row per head, `head_stride` apart) and the logarithms of the heads' whole mass.
struct PageLogits {
  const float* logits;
  std::int64_t head_stride;
  std::span<const float> log_norm;
};

/// One target's variants.
struct Kernels {
  float (*head_shares)(const HeadMass& head) noexcept;
  /// into[i] combined with from[i].
  void (*combine)(const float* from, int pages, bool by_maximum, float* into) noexcept;
  /// parts[i] = combined share of part i. Sums run over the heads, then over the part's tokens; with by_maximum over the
  /// part's tokens, and the largest over the heads counts.
  void (*part_shares)(const PageLogits& page, int part_tokens, bool by_maximum, float* parts) noexcept;
  /// The share in one head of the tokens that `mask` leaves out.
  float (*unselected_share)(const float* logits, float log_norm, std::uint16_t mask) noexcept;
  /// Sets what is infinite to 0. Returns the sum.
  float (*clear_marked)(float* shares, int pages) noexcept;
};

[[nodiscard]] const Kernels& kernels(Target target) noexcept;
[[nodiscard]] const Kernels& reference_kernels() noexcept;

}  // namespace locks::select
