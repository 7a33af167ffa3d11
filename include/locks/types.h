// Element types of a KV cache, and the sizes that every stage shares.
#pragma once

#include <cstdint>
#include <string_view>

namespace locks {

inline constexpr int kPageTokens = 16;  // tokens in a page; a cache block holds a whole number of pages
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxRank = 16;
inline constexpr int kQ8BlockElements = 32;  // a q8_0 block: one f16 scale, then 32 signed bytes
inline constexpr int kQ8BlockBytes = 34;

/// e4m3 is fp8 with 4 bits of exponent and 3 of mantissa, no infinity, and one NaN of each sign: on the GPU only.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kE4M3 };

[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;

/// Bytes of one row of `elements` values (head_dim of them for keys and values).
[[nodiscard]] constexpr std::int64_t row_bytes(DType dtype, int elements) noexcept {
  switch (dtype) {
    case DType::kF32:
      return std::int64_t{4} * elements;
    case DType::kF16:
    case DType::kBF16:
      return std::int64_t{2} * elements;
    case DType::kQ8_0:
      return std::int64_t{elements} / kQ8BlockElements * kQ8BlockBytes;
    case DType::kE4M3:
      return elements;
  }
  return 0;
}

/// What the model fixes for one layer.
struct Geometry {
  int head_dim = 0;  // 64, 80, 96, 128, 192 or 256
  int kv_heads = 0;
  int query_heads = 0;         // a multiple of kv_heads
  float softmax_scale = 0.0F;  // usually 1 / sqrt(head_dim)

  [[nodiscard]] constexpr int group_size() const noexcept { return query_heads / kv_heads; }
};

[[nodiscard]] constexpr bool is_supported_head_dim(int head_dim) noexcept {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 192 || head_dim == 256;
}

}  // namespace locks
