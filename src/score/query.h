// A query as the scorer reads it: two sets of integers with their scales, in one block of the workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/target.h"
#include "locks/types.h"

namespace locks {

/// The first bytes of a block.
struct QueryScales {
  float scale8 = 0.0F;
  float scale16 = 0.0F;
  std::int32_t sum8 = 0;  // sum_i q8_i: what the basis codes' common zero is multiplied with
};

/// Basis blocks of 32 bytes that a vector of the target holds; 0 if the target reads q8 itself.
[[nodiscard]] constexpr int blocks_per_vector(Target target) noexcept {
  return target == Target::kAvx512 ? 2 : target == Target::kAvx2 ? 1 : 0;
}

/// Byte offsets in the block of one query; the same for every head_dim, so that kernels know them. Arrays are zero from
/// head_dim to the next multiple of 64, so that vectors may run over the end of a record's quad or mean: what they find
/// there meets a zero.
///
/// A basis block holds eight dimensions of four ranks side by side, so the query's eight are repeated four times:
/// `repeated` for 4 bits has, for every vector of blocks, the dimensions of the low and then those of the high half
/// bytes; for 2 bits those of the four bit pairs. Vectors of one block see both in plain order and share the array.
struct QueryLayout {
  static constexpr int kQ16At = 64;
  static constexpr int kQ8At = kQ16At + 2 * kMaxHeadDim;
  static constexpr int kRepeatedAt = kQ8At + kMaxHeadDim;
  static constexpr int kBytes = kRepeatedAt + 8 * kMaxHeadDim;

  [[nodiscard]] static constexpr int repeated_at(int bits, int blocks_per_vector) noexcept {
    return kRepeatedAt + (bits == 2 && blocks_per_vector > 1 ? 4 * kMaxHeadDim : 0);
  }
};

/// Quantises one query by the rule of score.h and lays it out for vectors of that many blocks.
void prepare_query(const float* query /* [head_dim] */, int head_dim, bool rotated, int blocks_per_vector,
                   std::byte* block) noexcept;

}  // namespace locks
