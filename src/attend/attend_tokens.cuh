// Which tokens of the cache a row has, in packed order, and where their keys and values lie.
#pragma once

#include "attend/attend_cuda.h"

namespace locks::cuda::attend_stage {

inline constexpr int kThreadTokens = 2;  // that a thread looks up at a time; a window is what all threads do
inline constexpr int kWindows = 3;       // being read, read ahead of, and being filled
inline constexpr int kOwnEntries = 4;    // of a list, that a thread keeps
inline constexpr int kMostWarps = 8;     // of a block

struct TokenRows {
  const std::byte* key;
  const std::byte* value;
};

__device__ __forceinline__ int divide(int number, const Divider& by) {
  return static_cast<int>(__umulhi(2 * static_cast<std::uint32_t>(number), by.magic) >> by.shift);
}

/// Whether a request's context is attended whole, whatever is listed.
__device__ __forceinline__ bool is_whole(const AttendParams& params, int request) {
  return params.whole_tokens > 0 && params.context_tokens[request] <= params.whole_tokens;
}

__device__ __forceinline__ bool at_equal_distances(const AttendParams& params) {
  return params.keys.page_slots == nullptr && params.values.page_slots == nullptr;
}

/// Rows of the cache of one KV head. Token t of the cache is token t % 16 of page t / 16.
class CacheRows {
 public:
  __device__ __forceinline__ CacheRows(const AttendParams& params, int kv_head)
      : keys_(params.keys.data + kv_head * params.keys.head_stride),
        values_(params.values.data + kv_head * params.values.head_stride) {}

  [[nodiscard]] __device__ __forceinline__ TokenRows operator()(const AttendParams& params, int token) const {
    return {row(params, params.keys, keys_, token), row(params, params.values, values_, token)};
  }

 private:
  static __device__ __forceinline__ const std::byte* row(const AttendParams& params, const Rows& rows, const std::byte* data,
                                                         int token) {
    if (rows.page_slots != nullptr) return data + rows.page_slots[token] * rows.token_stride;
    const int page = token / kPageTokens;
    const int block = divide(page, params.block_pages);
    const int in_block = token - block * static_cast<int>(params.block_pages.divisor) * kPageTokens;
    return data + block * rows.block_stride + in_block * rows.token_stride;
  }
  const std::byte* keys_;
  const std::byte* values_;
};

/// A thread's view of its block's row. With lists each thread knows how many tokens precede its own entries.
class RowTokens {
 public:
  /// All threads of the block; `sums` has kOwnEntries ints for each warp.
  __device__ __forceinline__ RowTokens(const AttendParams& params, int request, int list, int* sums)
      : table_(params.blocks + request * params.block_request_stride) {
    if (params.selected == nullptr || is_whole(params, request)) {
      take_every(params, request);
      return;
    }
    entries_ = params.selected + request * params.selected_request_stride + list * params.selected_list_stride;
    const auto threads = static_cast<int>(blockDim.x);
    const auto thread = static_cast<int>(threadIdx.x);
    // Entries are asked for together with their number, and all at once.
    SelectedPage own[kOwnEntries];
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i) {
      if (i * threads + thread < params.capacity) own[i] = load(i * threads + thread);
    }
    count_ =
        min(params.num_selected[request * params.count_request_stride + list * params.count_list_stride], params.capacity);
    in_registers_ = count_ <= kOwnEntries * threads;
    int tokens[kOwnEntries] = {};
    int blocks[kOwnEntries];
    if (in_registers_) {
#pragma unroll
      for (int i = 0; i < kOwnEntries; ++i) {
        if (i * threads + thread >= count_) continue;
        blocks[i] = block(divide(own[i].page, params.block_pages), params);
        own_[i].mask = own[i].mask;
        tokens[i] = __popc(own[i].mask);
      }
    } else {
      // A run of the entries, counted as the first of the thread's own.
#pragma unroll 1
      for (int entry = run_begin(); entry < run_end(); ++entry) tokens[0] += __popc(load(entry).mask);
    }
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i) {
      if (i > 0 && (i * threads >= count_ || !in_registers_)) break;
      int before = tokens[i];  // inclusive, within the warp
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0U, before, step);
        if (threadIdx.x % 32 >= step) before += other;
      }
      if (threadIdx.x % 32 == 31) sums[i * (blockDim.x / 32) + threadIdx.x / 32] = before;
      before_[i] = before - tokens[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i) {
      if (i > 0 && (i * threads >= count_ || !in_registers_)) break;
      before_[i] += total_;
#pragma unroll
      for (unsigned warp = 0; warp < kMostWarps; ++warp) {  // all sums at once
        const int sum = warp < blockDim.x / 32 ? sums[i * (blockDim.x / 32) + warp] : 0;
        if (warp < threadIdx.x / 32) before_[i] += sum;
        total_ += sum;
      }
    }
    total_ = min(total_, params.listed_tokens);
    // The table has been on its way since.
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i) {
      if (in_registers_ && i * threads + thread < count_) own_[i].token = token_of_page(params, own[i].page, blocks[i]);
    }
  }

  [[nodiscard]] __device__ __forceinline__ int total() const { return total_; }
  /// Whether the row is every token of its context, and 16 of them from `token` on, below `end`, lie at equal distances.
  [[nodiscard]] __device__ __forceinline__ bool has_page(const AttendParams& params, int token, int end) const {
    return entries_ == nullptr && at_equal_distances(params) && token + kPageTokens <= end;
  }

  /// Tokens are looked up in two steps, so that something else can be done while the table is read: fetch() asks for what
  /// write() needs to write where tokens [first, end) of the row lie. Every thread does its share of both.
  __device__ __forceinline__ void fetch(const AttendParams& params, int first, int end, int (&blocks)[kThreadTokens]) const {
    if (entries_ != nullptr) return;
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      const auto token = static_cast<int>(first + i * blockDim.x + threadIdx.x);
      if (token < end) blocks[i] = block(divide(token / kPageTokens, params.block_pages), params);
    }
  }
  /// Of a page that is a tile of its own only the first token is written, if there is `pages` to tell which tiles are such:
  /// all false before.
  __device__ __forceinline__ void write(const AttendParams& params, const CacheRows& cache, int first, int end,
                                        const int (&blocks)[kThreadTokens], TokenRows* rows, bool* pages = nullptr) const {
    if (entries_ == nullptr) {
      const int block_tokens = static_cast<int>(params.block_pages.divisor) * kPageTokens;
#pragma unroll
      for (int i = 0; i < kThreadTokens; ++i) {
        const auto token = static_cast<int>(first + i * blockDim.x + threadIdx.x);
        if (token >= end) continue;
        const int in_block = token - divide(token / kPageTokens, params.block_pages) * block_tokens;
        store(rows + token - first, cache(params, blocks[i] * block_tokens + in_block));
      }
      return;
    }
    const int entries_end = in_registers_ ? run() : run_end();  // own ones, or of the list
    int rank = before_[0];
#pragma unroll 1
    for (int entry = in_registers_ ? 0 : run_begin(); entry < entries_end && rank < end; ++entry) {
      Named page{};
      if (in_registers_) {
#pragma unroll
        for (int i = 0; i < kOwnEntries; ++i) {
          if (entry == i) {
            page = own_[i];
            rank = before_[i];
          }
        }
      } else {
        page.mask = load(entry).mask;
      }
      const int next = rank + __popc(page.mask);
      if (next > first && next > rank && rank < end) {
        if (!in_registers_) page.token = token_of_page(params, load(entry).page);
        write_page(params, cache, page, rank, first, end, rows, pages);
      }
      rank = next;
    }
  }

 private:
  struct Named {
    int token;
    unsigned mask;
  };
  __device__ __forceinline__ void take_every(const AttendParams& params, int request) {
    total_ = min(params.context_tokens[request], params.most_tokens);
  }
  static __device__ __forceinline__ void store(TokenRows* into, const TokenRows& rows) {
    *reinterpret_cast<ulonglong2*>(into) = {reinterpret_cast<unsigned long long>(rows.key),
                                            reinterpret_cast<unsigned long long>(rows.value)};
  }
  /// Tokens of one page, the first of which is the row's `rank`-th.
  static __device__ __forceinline__ void write_page(const AttendParams& params, const CacheRows& cache, const Named& page,
                                                    int rank, int first, int end, TokenRows* rows, bool* pages) {
    const bool even = at_equal_distances(params);
    TokenRows begin = cache(params, page.token);
    if (even && page.mask == kWholePage && rank >= first && rank + kPageTokens <= end) {
      if (pages != nullptr && (rank - first) % kPageTokens == 0) {
        store(rows + rank - first, begin);
        pages[(rank - first) / kPageTokens] = true;
        return;
      }
#pragma unroll
      for (int i = 0; i < kPageTokens; ++i) {
        store(rows + rank - first + i, begin);
        begin.key += params.keys.token_stride;
        begin.value += params.values.token_stride;
      }
      return;
    }
#pragma unroll 1
    for (unsigned left = page.mask; left != 0; left &= left - 1, ++rank) {
      if (rank < first || rank >= end) continue;
      const int token = __ffs(static_cast<int>(left)) - 1;
      store(rows + rank - first,
            even ? TokenRows{begin.key + token * params.keys.token_stride, begin.value + token * params.values.token_stride}
                 : cache(params, page.token + token));
    }
  }
  [[nodiscard]] __device__ __forceinline__ int run() const {  // threads are a power of two
    return (count_ + static_cast<int>(blockDim.x) - 1) >> (__ffs(static_cast<int>(blockDim.x)) - 1);
  }
  [[nodiscard]] __device__ __forceinline__ int run_begin() const {
    return min(static_cast<int>(threadIdx.x) * run(), count_);
  }
  [[nodiscard]] __device__ __forceinline__ int run_end() const { return min(run_begin() + run(), count_); }
  [[nodiscard]] __device__ __forceinline__ SelectedPage load(int entry) const {
    // A copy of the whole would be made byte by byte.
    return {entries_[entry].page, entries_[entry].mask};
  }
  [[nodiscard]] __device__ __forceinline__ int block(int index, const AttendParams& params) const {
    return table_[index * params.block_entry_stride];
  }
  [[nodiscard]] __device__ __forceinline__ int token_of_page(const AttendParams& params, int page) const {
    return token_of_page(params, page, block(divide(page, params.block_pages), params));
  }
  [[nodiscard]] static __device__ __forceinline__ int token_of_page(const AttendParams& params, int page, int block) {
    const int pages = static_cast<int>(params.block_pages.divisor);
    return (block * pages + page - divide(page, params.block_pages) * pages) * kPageTokens;
  }

  const std::int32_t* table_;
  const SelectedPage* entries_ = nullptr;  // null: the row is every token of the context
  int total_ = 0;
  int count_ = 0;
  // Entry i * threads + thread is a thread's i-th own one; of a longer list it has a run, and looks it up again and again.
  bool in_registers_ = false;
  Named own_[kOwnEntries] = {};
  int before_[kOwnEntries] = {};
};

}  // namespace locks::cuda::attend_stage
