// What the door of the GPU's scorer hands to the kernels. One instance a format, number of units of 64 dimensions (1, 2 or
// 4) and tiles of 8 query heads (1 or 2).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/args.h"
#include "cuda/start.h"
#include "cuda/step.h"
#include "locks/cuda.h"

namespace locks::cuda::score_kernels {

struct PageScores {
  bool in_step = false;  // only what `pages` says, or every filled page
  StepPages pages;
  RecordShape shape;
  RecordArray records;
  DeviceTable table;
  QueryArgs queries;
  const std::int32_t* context_tokens = nullptr;
  int requests = 0;
  int max_pages = 0;
  float* log_mass = nullptr;  // [requests, query_heads, pages]
  std::int64_t request_stride = 0;
  std::int64_t head_stride = 0;
};

struct TokenScores {
  Start start = Start::kAfterPrevious;
  int whole_tokens = 0;  // contexts of no more have no pages here, whatever is written of them
  const std::int32_t* context_tokens = nullptr;
  RecordShape shape;
  RecordArray records;
  DeviceTable table;
  QueryArgs queries;
  int requests = 0;
  int lists = 0;
  int capacity = 0;
  const std::int32_t* pages = nullptr;
  std::int64_t pages_request_stride = 0;
  std::int64_t pages_list_stride = 0;
  const std::int32_t* num_pages = nullptr;
  std::int64_t num_request_stride = 0;
  std::int64_t num_list_stride = 0;
  float* logits = nullptr;  // [requests, lists, capacity, heads, 16]
  std::int64_t logits_request_stride = 0;
  std::int64_t logits_list_stride = 0;
  std::int64_t logits_page_stride = 0;
};

/// How many thread blocks share the pages of all requests, for each of `columns` sets of query heads: as many as run at
/// once, but not more than have pages for each of their warps.
[[nodiscard]] constexpr std::int64_t page_shares(int resident_blocks, int columns, int requests, int max_pages,
                                                 int warps) noexcept {
  const std::int64_t at_once = std::int64_t{kPagesAtOnce} * warps;
  const std::int64_t most = requests * ((max_pages + at_once - 1) / at_once);
  return std::clamp<std::int64_t>(resident_blocks / columns, 1, most);
}

template <FormatId kId>
void launch(const PageScores& args, Stream stream);
template <FormatId kId>
void launch(const TokenScores& args, Stream stream);

}  // namespace locks::cuda::score_kernels
