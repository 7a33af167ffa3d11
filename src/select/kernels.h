// The arithmetic of the steps. Every variant gives the same bits: products and sums are never fused, and sums over pages go
// through blocks and lanes in the order of share.h, whatever the width of the machine's vectors.
#pragma once

#include <cstdint>
#include <span>

#include "locks/target.h"
#include "select/share.h"

namespace locks::select {

/// shares[i] = exp(log_mass[i] - logarithm of the whole mass), +infinity where log_mass is. `shares` may be `log_mass`.
struct HeadMass {
  const float* log_mass;
  float always_log_mass;
  int pages;
  float* shares;
  std::int32_t* origins;  // [blocks of pages], scratch for the bits of their origins; pages are enough
};

/// The parts of some pages: `logits` [pages, heads, 16], strides as given, and the logarithms of the heads' whole mass.
struct PartLogits {
  const float* logits;
  std::int64_t page_stride;
  std::int64_t head_stride;
  int pages;
  std::span<const float> log_norm;  // [heads]
  int part_tokens;                  // 1, 2, 4 or 8
  bool by_maximum;
};

/// One target's variants.
struct Kernels {
  WholeMass (*head_shares)(const HeadMass& head) noexcept;
  /// into[i] combined with from[i].
  void (*combine)(const float* from, int pages, bool by_maximum, float* into) noexcept;
  /// The shares of the parts: of_heads [pages, heads, 16 / part_tokens], and combined [pages, 16 / part_tokens], their sums
  /// over the heads, or with by_maximum the largest. Inside a part, sums of two tokens are summed, then sums of four and
  /// so on.
  void (*part_shares)(const PartLogits& parts, float* combined, float* of_heads) noexcept;
};

[[nodiscard]] const Kernels& kernels(Target target) noexcept;
[[nodiscard]] const Kernels& reference_kernels() noexcept;

}  // namespace locks::select
