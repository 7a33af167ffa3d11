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

/// Byte offsets in the block of one query. Every array is a multiple of 64 bytes and zero past head_dim, so that vectors
/// may run over the end of a record's quad or mean: what they find there meets a zero.
///
/// A basis block holds eight dimensions of four ranks side by side, so the query's eight are repeated four times:
/// `repeated` 4 has, for every vector of blocks, the dimensions of the low and then those of the high half bytes;
/// `repeated` 2 those of the four bit pairs. Vectors of one block see both in plain order and share the array.
struct QueryLayout {
  int q16_at = 0;
  int q8_at = 0;
  int repeated4_at = 0;
  int repeated2_at = 0;
  int bytes = 0;
};

/// Basis blocks of 32 bytes that a vector of the target holds; 0 if the target reads q8 itself.
[[nodiscard]] constexpr int blocks_per_vector(Target target) noexcept {
  return target == Target::kAvx512 ? 2 : target == Target::kAvx2 ? 1 : 0;
}

[[nodiscard]] constexpr QueryLayout query_layout(int head_dim, int blocks_per_vector) noexcept {
  const int padded = (head_dim + 63) / 64 * 64;
  QueryLayout at;
  at.q16_at = 64;
  at.q8_at = at.q16_at + 2 * padded;
  at.repeated4_at = at.q8_at + padded;
  at.repeated2_at = at.repeated4_at + (blocks_per_vector > 1 ? 4 * padded : 0);
  at.bytes = 64 + 11 * padded;
  return at;
}

/// Quantises one query by the rule of score.h and lays it out for vectors of that many blocks.
void prepare_query(const float* query /* [head_dim] */, int head_dim, bool rotated, int blocks_per_vector,
                   std::byte* block) noexcept;

}  // namespace locks
