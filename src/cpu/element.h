// Cached rows in plain numbers, for code that is not SIMD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/half.h"
#include "locks/paged_cache.h"
#include "locks/types.h"

namespace locks {

/// Exact for every type: a q8_0 value is a product of 11 and 8 bits. Of e4m3, without the cache's scale.
[[nodiscard]] inline float row_element(DType dtype, const std::byte* row, int dim) noexcept {
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, row + 4 * dim, sizeof value);
      return value;
    }
    case DType::kF16:
      return f16_to_float(load_u16(row + 2 * dim));
    case DType::kBF16:
      return bf16_to_float(load_u16(row + 2 * dim));
    case DType::kQ8_0: {
      const std::byte* const block = row + dim / kQ8BlockElements * kQ8BlockBytes;
      return f16_to_float(load_u16(block)) * static_cast<float>(static_cast<std::int8_t>(block[2 + dim % kQ8BlockElements]));
    }
    case DType::kE4M3:
      return e4m3_to_float(static_cast<std::uint8_t>(row[dim]));
  }
  return 0.0F;
}

[[nodiscard]] inline double scale_of(const PagedCache& cache) noexcept {
  return cache.scale == nullptr ? 1.0 : *cache.scale;
}

inline void load_row(DType dtype, const std::byte* row, int head_dim, float* out) noexcept {
  for (int dim = 0; dim < head_dim; ++dim) out[dim] = row_element(dtype, row, dim);
}

}  // namespace locks
