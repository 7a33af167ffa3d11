// The host's KV cache of one layer, as the library reads it: pages of 16 tokens inside blocks of the host's own size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/types.h"
#include "locks/view.h"

namespace locks {

/// Keys or values of one layer. Borrowed; strides are in bytes; the head_dim values of one token and head lie side by side.
///
/// A page is named by its number in the cache: page = block * (block_tokens / 16) + page inside the block.
/// If `page_slots` is set, the 16 tokens of a page may lie anywhere: token i of page p is row page_slots[16 p + i], at
/// data + row * token_stride, and blocks play no part (block_tokens must be 16).
struct PagedCache {
  const std::byte* data = nullptr;
  DType dtype = DType::kF16;
  std::int64_t num_pages = 0;
  int block_tokens = kPageTokens;  // a multiple of 16
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  const std::int32_t* page_slots = nullptr;  // [num_pages, 16] or null
  std::int64_t num_slots = 0;                // rows that data holds; read only with page_slots
  const float* scale = nullptr;  // of e4m3: a value is its element times *scale, read when it is needed; null is 1

  [[nodiscard]] constexpr const std::byte* token(std::int64_t page, int token_in_page, int kv_head) const noexcept {
    if (page_slots != nullptr) {
      return data + page_slots[page * kPageTokens + token_in_page] * token_stride + kv_head * head_stride;
    }
    const std::int64_t pages_per_block = block_tokens / kPageTokens;
    const std::int64_t token_in_block = page % pages_per_block * kPageTokens + token_in_page;
    return data + page / pages_per_block * block_stride + token_in_block * token_stride + kv_head * head_stride;
  }
};

/// Which pages belong to which request, and how many tokens each has.
struct PageTable {
  View<const std::int32_t, 2> blocks;            // [requests, blocks of the longest request]
  int block_tokens = kPageTokens;                // as in the caches
  std::span<const std::int32_t> context_tokens;  // [requests], the token being decoded included

  [[nodiscard]] constexpr int num_requests() const noexcept { return static_cast<int>(context_tokens.size()); }
  [[nodiscard]] constexpr int filled_pages(int request) const noexcept { return context_tokens[request] / kPageTokens; }
  /// Number in the cache of the request's page `index`.
  [[nodiscard]] constexpr std::int64_t page(int request, int index) const noexcept {
    const int pages_per_block = block_tokens / kPageTokens;
    return std::int64_t{blocks(request, index / pages_per_block)} * pages_per_block + index % pages_per_block;
  }
};

}  // namespace locks
