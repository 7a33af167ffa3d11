// What the door hands to the kernels. Plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attend/attend_cut.h"
#include "attend/complete_launch.h"
#include "locks/cuda.h"

namespace locks::cuda::attend_stage {

/// Numbers below 2^31 by a divisor that is known on the host.
struct Divider {
  std::uint32_t divisor = 1;
  std::uint32_t shift = 0;         // 2^shift >= divisor
  std::uint32_t magic = 1U << 31;  // 2^(31 + shift) / divisor, rounded up: less than divisor / 2^(31 + shift) too much
};
[[nodiscard]] constexpr Divider make_divider(std::uint32_t divisor) noexcept {
  Divider divider{divisor};
  while ((std::uint64_t{1} << divider.shift) < divisor) ++divider.shift;
  divider.magic = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + divider.shift)) + divisor - 1) / divisor);
  return divider;
}

struct Rows {
  const std::byte* data = nullptr;
  const std::int32_t* page_slots = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

/// Partial states: sums of a part, relative to its max.
struct Partials {
  Cut cut;
  int parts_per_row = 0;  // slots
  int parts = 0;          // of them that rows of the longest possible length would use
  int leaves_per_part = 0;
  std::int32_t* leaves = nullptr;  // [requests, lists]
  float* max_and_sum = nullptr;    // [requests, query_heads, parts, 2]
  float* out = nullptr;            // [requests, query_heads, parts, head_dim]
};

struct AttendParams {
  const float* queries = nullptr;
  std::int64_t query_request_stride = 0;
  std::int64_t query_head_stride = 0;
  Rows keys;
  Rows values;
  const std::int32_t* blocks = nullptr;
  std::int64_t block_request_stride = 0;
  std::int64_t block_entry_stride = 0;
  int most_tokens = 0;    // of a row
  int listed_tokens = 0;  // of a row that is a list
  /// Contexts of no more tokens are attended whole, and begin before the kernels in front have ended: what those write is
  /// not read for them. 0: there are none.
  int whole_tokens = 0;
  Divider block_pages;
  const std::int32_t* context_tokens = nullptr;
  const SelectedPage* selected = nullptr;  // null: every token
  std::int64_t selected_request_stride = 0;
  std::int64_t selected_list_stride = 0;
  int capacity = 0;
  const std::int32_t* num_selected = nullptr;
  std::int64_t count_request_stride = 0;
  std::int64_t count_list_stride = 0;
  int num_requests = 0;
  int num_lists = 0;
  Divider lists_per_kv_head;
  int list_heads = 0;  // query heads that share a list
  int query_heads = 0;
  Divider passes;  // over a row, for all of its heads
  float softmax_scale = 0.0F;
  const float* key_scale = nullptr;  // of e4m3, on the device; null is 1
  const float* value_scale = nullptr;
  bool leaf_blocks = false;  // whether eight warps may take a leaf, none of which is longer than kLeafTokens
  int blocks_at_once = 0;    // that the device holds, of blocks of four warps
  Partials partials;
};

/// Query heads that one pass over a row takes: 8, or 16 where their state leaves room in the registers.
[[nodiscard]] constexpr bool has_wide_instance(DType dtype, int head_dim) noexcept {
  return dtype != DType::kF32 && (head_dim == 64 || head_dim == 128);
}
[[nodiscard]] constexpr int heads_per_pass(DType dtype, int head_dim, int list_heads) noexcept {
  return list_heads > 8 && has_wide_instance(dtype, head_dim) ? 16 : 8;
}
/// Launches the instance for this kind of cache.
void launch_attend(const AttendParams& params, DType dtype, int head_dim, Stream stream);
/// Where a row's result goes.
struct Result {
  SoftmaxStates states;
  bool accumulate = false;  // with what the states hold
  HeadRows out;             // if it has data, the states are not written, but what finish() would make of them
};
/// Folds the partial states, and what `completion` adds if it has partials; that only with a leaf a part.
void launch_merge(const AttendParams& params, int head_dim, const Result& result, const complete_kernels::Merge& completion,
                  Stream stream);
void launch_finish(SoftmaxStates states, const HeadRows& out, Stream stream);
void check_out(SoftmaxStates states, const HeadRows& out);

// One per head dimension, in instances/.
template <int kHeadDim>
void launch_instance(const AttendParams& params, DType dtype, Stream stream);

}  // namespace locks::cuda::attend_stage
