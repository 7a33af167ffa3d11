// What the kernels of one selection share: the arguments, the workspace, and one list's place in both.
#pragma once

#include <cstdint>

#include "locks/cuda.h"
#include "select/counts.h"
#include "select/share.h"

namespace locks::cuda::select_kernels {

using select::kBlockPages;
using select::kInfinity;
using select::kLanes;

/// Cut from the workspace; sizes are maxima.
struct Buffers {
  int max_blocks = 0;                         // of pages
  int max_pages = 0;                          // max_blocks * kBlockPages
  int capacity = 0;                           // of candidates
  select::BlockMass* masses = nullptr;        // [requests, query_heads, max_blocks]
  select::WholeMass* whole_masses = nullptr;  // [requests, query_heads]
  float* share = nullptr;                     // [requests, lists, max_pages], from the first selectable page on
  std::uint32_t* completed = nullptr;         // [requests, lists, max_pages / 32]: a bit a page, those selected among them
  std::uint32_t* candidate_words = nullptr;   // [requests, lists]: see candidate_words()
};

/// What is kept of a list's candidates: pages, masks, and shares of all parts and of the heads. Of whole pages, if there are
/// no parts: their shares for each head, and a bit for each that is marked.
[[nodiscard]] constexpr std::int64_t candidate_words(int capacity, int parts, int heads) noexcept {
  const std::int64_t of_parts = std::int64_t{capacity} * (2 + parts + heads + parts * heads);
  const std::int64_t words = parts > 1 ? of_parts : std::int64_t{capacity} * heads + (capacity + 31) / 32;
  constexpr std::int64_t kRow = 4;  // what is written at once
  return (words + kRow - 1) / kRow * kRow;
}

struct Lists {
  SelectArgs args;
  Buffers buffers;
  int query_heads = 0;
  int heads = 0;  // of a list
  std::uint32_t heads_inverse = 0;

  /// A number below 2^32 / heads, divided by the heads of a list.
  struct Divided {
    int whole;
    int head;
  };
  [[nodiscard]] constexpr Divided divided(int number) const noexcept {
    const auto high = static_cast<int>(std::uint64_t{heads_inverse} * static_cast<std::uint32_t>(number) >> 32U);
    const int whole = heads == 1 ? number : high;
    return {whole, number - whole * heads};
  }

  [[nodiscard]] constexpr bool selects_pages() const noexcept { return args.config.part_tokens == kPageTokens; }
  [[nodiscard]] constexpr std::int64_t words_of_candidates() const noexcept {
    return candidate_words(buffers.capacity, kPageTokens / args.config.part_tokens, heads);
  }
  [[nodiscard]] constexpr int requests() const noexcept { return static_cast<int>(args.context_tokens.size()); }
  [[nodiscard]] constexpr AlwaysAttended always(int request) const noexcept {
    return always_attended(args.config, args.context_tokens[request], args.min_context_tokens);
  }
  [[nodiscard]] constexpr std::int64_t list_at(int request, int list) const noexcept {
    return std::int64_t{request} * args.num_lists + list;
  }
  [[nodiscard]] constexpr std::int64_t head_at(int request, int head) const noexcept {
    return std::int64_t{request} * query_heads + head;
  }
};

}  // namespace locks::cuda::select_kernels
