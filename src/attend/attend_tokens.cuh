// Which tokens of the cache a row has, in packed order. A token of the cache is named by block * block_tokens + token in the
// block, which is page * 16 + token in the page as well.
#pragma once

#include "attend/attend_cuda.h"

namespace locks::cuda::attend_stage {

inline constexpr int kWindow = 256;  // tokens that are looked up at a time
inline constexpr int kWindows = 3;   // being read, read ahead of, and being filled

/// A thread's view of its block's row. With lists each thread knows how many tokens precede its own run of entries.
class RowTokens {
 public:
  /// All threads of the block; `sums` has an int for each warp.
  __device__ __forceinline__ RowTokens(const AttendParams& params, int request, int list, int* sums)
      : table_(params.blocks + request * params.block_request_stride) {
    if (params.selected == nullptr) {
      const std::int64_t most = std::int64_t{params.table_blocks} * params.block_tokens;
      const int tokens = params.context_tokens[request];
      total_ = static_cast<int>(tokens < most ? tokens : most);
      return;
    }
    entries_ = params.selected + request * params.selected_request_stride + list * params.selected_list_stride;
    const auto threads = static_cast<int>(blockDim.x);
    const auto thread = static_cast<int>(threadIdx.x);
    // Most lists have no more entries than a block has threads: the entry is asked for together with the count.
    SelectedPage own;
    if (thread < params.capacity) own = load(thread);
    const int listed = params.num_selected[request * params.count_request_stride + list * params.count_list_stride];
    const int count = max(0, min(listed, params.capacity));
    const int run = (count + threads - 1) / threads;
    first_ = min(thread * run, count);
    end_ = min(first_ + run, count);
    int tokens = 0;
    if (run == 1) {
      if (first_ < end_) {
        own_ = {token_of_page(params, own.page), own.mask};
        tokens = __popc(own.mask);
      }
    } else {
      for (int entry = first_; entry < end_; ++entry) tokens += __popc(load(entry).mask);
    }
    one_each_ = run == 1;
    int before = tokens;  // inclusive, within the warp
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, before, step);
      if (thread % 32 >= step) before += other;
    }
    if (thread % 32 == 31) sums[thread / 32] = before;
    __syncthreads();
    before_ = before - tokens;
    for (int warp = 0; warp < threads / 32; ++warp) {
      if (warp < thread / 32) before_ += sums[warp];
      total_ += sums[warp];
    }
  }

  [[nodiscard]] __device__ __forceinline__ int total() const { return total_; }

  /// Writes the names of tokens [first, end) of the row to `names`. Every thread writes some.
  __device__ __forceinline__ void look_up(const AttendParams& params, int first, int end, int* names) const {
    if (params.selected == nullptr) {
      for (int token = first + static_cast<int>(threadIdx.x); token < end; token += static_cast<int>(blockDim.x)) {
        const int index = token / params.block_tokens;
        names[token - first] = block(params, index) * params.block_tokens + (token - index * params.block_tokens);
      }
      return;
    }
    int rank = before_;
    for (int entry = first_; entry < end_ && rank < end; ++entry) {
      Named page = own_;
      if (!one_each_) {
        const SelectedPage listed = load(entry);
        page = {0, listed.mask};
        if (rank + __popc(page.mask) > first && page.mask != 0) page.token = token_of_page(params, listed.page);
      }
      if (rank + __popc(page.mask) <= first) {
        rank += __popc(page.mask);
        continue;
      }
      for (unsigned left = page.mask; left != 0; left &= left - 1, ++rank) {
        if (rank >= first && rank < end) names[rank - first] = page.token + __ffs(static_cast<int>(left)) - 1;
      }
    }
  }

 private:
  struct Named {
    int token;
    unsigned mask;
  };
  [[nodiscard]] __device__ __forceinline__ SelectedPage load(int entry) const {
    // A copy of the whole would be made byte by byte.
    return {entries_[entry].page, entries_[entry].mask};
  }
  [[nodiscard]] __device__ __forceinline__ int block(const AttendParams& params, int index) const {
    return table_[index * params.block_entry_stride];
  }
  [[nodiscard]] __device__ __forceinline__ int token_of_page(const AttendParams& params, int page) const {
    const int pages = params.block_tokens / kPageTokens;
    const int index = page / pages;
    return block(params, index) * params.block_tokens + (page - index * pages) * kPageTokens;
  }

  const std::int32_t* table_;
  const SelectedPage* entries_ = nullptr;
  int total_ = 0;
  int first_ = 0;
  int end_ = 0;
  int before_ = 0;
  bool one_each_ = false;
  Named own_{};
};

/// Where a token's row of keys or values begins.
__device__ __forceinline__ const std::byte* row_of_token(const Rows& rows, int kv_head, int block_tokens, int token) {
  const std::byte* const head = rows.data + kv_head * rows.head_stride;
  if (rows.page_slots != nullptr) return head + rows.page_slots[token] * rows.token_stride;
  const int block = token / block_tokens;
  return head + block * rows.block_stride + (token - block * block_tokens) * rows.token_stride;
}

}  // namespace locks::cuda::attend_stage
