// Quest on the GPU: the bounds of pages, and their scores.
#include "cuda/chain.cuh"
#include "selectors/queries.cuh"

namespace locks::cuda::rivals {
namespace {

// ---- bounds

template <class Raw>
__device__ __forceinline__ float number(Raw raw, DType dtype) {
  if constexpr (sizeof(Raw) == 4) return __uint_as_float(raw);
  if constexpr (sizeof(Raw) == 2) {
    if (dtype == DType::kBF16) return __uint_as_float(std::uint32_t{raw} << 16);
    return __half2float(__ushort_as_half(raw));
  }
  const std::uint32_t pair = e4m3_pair_to_f16(raw);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
}

constexpr int kBoundThreads = 256;

/// A thread block takes a page, a thread one dimension of a KV head at a time. What it keeps is one of the page's elements,
/// bit for bit.
template <class Raw>
__global__ void __launch_bounds__(kBoundThreads) bound_kernel(const __grid_constant__ Bounds args) {
  std::int64_t page = -1;
  if (args.pages != nullptr) {
    page = args.pages[blockIdx.x];
  } else if (const std::int64_t slot = args.slots[blockIdx.x]; slot >= 0 && slot % kPageTokens == kPageTokens - 1) {
    page = slot / kPageTokens;
  }
  if (page < 0 || page >= args.num_pages) return;
  const DType dtype = args.out.dtype;
  const int head_dim = args.out.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.kv_heads * head_dim; i += kBoundThreads) {
    const int kv_head = i / head_dim;
    const int dim = i % head_dim;
    Raw keys[kPageTokens];
#pragma unroll
    for (int token = 0; token < kPageTokens; ++token) {
      keys[token] = reinterpret_cast<const Raw*>(args.keys.token(page, token, kv_head))[dim];
    }
    Raw most = keys[0];
    Raw least = keys[0];
#pragma unroll
    for (int token = 1; token < kPageTokens; ++token) {
      const float own = number(keys[token], dtype);
      if (number(most, dtype) < own) most = keys[token];
      if (own < number(least, dtype)) least = keys[token];
    }
    Raw* const out = reinterpret_cast<Raw*>(args.out.data + page * args.out.page_stride + kv_head * args.out.head_stride);
    out[dim] = most;
    out[head_dim + dim] = least;
  }
}

// ---- scores

constexpr int kScoreWarps = 4;

/// The bounds of the pages that a lane works for, as they come.
template <class Pair>
struct HeldBounds {
  Numbers<Pair> most[kRowSums];
  Numbers<Pair> least[kRowSums];
};

/// Grid: KV heads, shares of a request's pages, requests. The lanes of a row take four pages at once and hold their bounds,
/// while query heads come from shared memory: their positive parts meet the largest keys, the negative ones the smallest.
/// The next pages are on their way meanwhile.
template <class Pair, int kRowLanes>
__global__ void __launch_bounds__(32 * kScoreWarps) score_kernel(const __grid_constant__ BoundScores scores) {
  __shared__ QueryRows<kRowLanes> positive;
  __shared__ QueryRows<kRowLanes> negative;
  let_next_start();
  const BoundScoreArgs& args = scores.args;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.z);
  const int pages = min(scores.scored.count(args.table.context_tokens[request]), scores.max_pages);
  const int group = args.geometry.group_size();
  const int heads = min(kHeadsAtOnce, group - scores.first_head);
  constexpr int kAtOnce = 32 / kRowLanes * kRowSums;  // pages of a warp
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int row_page = static_cast<int>(threadIdx.x) % 32 / kRowLanes * kRowSums;  // of the row's lanes
  if (static_cast<int>(blockIdx.y) * kScoreWarps * kAtOnce >= pages) return;       // the whole block

  const bool has_dims = lane * kLaneDims < args.geometry.head_dim;
  const std::byte* const bounds = args.bounds.data + kv_head * args.bounds.head_stride;
  const int row_bytes = static_cast<int>(locks::row_bytes(args.bounds.dtype, args.geometry.head_dim));
  HeldBounds<Pair> next;
  const auto read = [&](int base) {
#pragma unroll
    for (int i = 0; i < kRowSums; ++i) {
      const PagePlace place = place_of(scores.table, request, min(base + row_page + i, pages - 1));
      const std::byte* const own = bounds + page_number(scores.table, place) * args.bounds.page_stride;
      next.most[i] = next.least[i] = {};
      if (!has_dims) continue;
      next.most[i].read(own, lane);
      next.least[i].read(own + row_bytes, lane);
    }
  };
  const int stride = static_cast<int>(gridDim.y) * kScoreWarps * kAtOnce;
  const int first = (static_cast<int>(blockIdx.y) * kScoreWarps + warp) * kAtOnce;
  if (first < pages) read(first);
  read_queries<kRowLanes>(args.queries, args.geometry.head_dim, request, kv_head * group + scores.first_head, heads,
                          args.key_scale == nullptr ? 1.0F : *args.key_scale, [&](int head, int dim, float value) {
                            positive.set(head, dim, value < 0.0F ? 0.0F : value);
                            negative.set(head, dim, value < 0.0F ? value : 0.0F);
                          });
  __syncthreads();

  const bool own_lists = args.combine == GroupCombine::kPerQueryHead;
  for (int base = first; base < pages; base += stride) {  // whole warps
    float high[kRowSums][kLaneDims];
    float low[kRowSums][kLaneDims];
#pragma unroll
    for (int i = 0; i < kRowSums; ++i) {
      next.most[i].unpack(high[i]);
      next.least[i].unpack(low[i]);
    }
    if (base + stride < pages) read(base + stride);
    const int page = base + row_page + lane / (kRowLanes / kRowSums);
    const bool writes = lane % (kRowLanes / kRowSums) == 0 && page < pages;
    float* out = args.scores.at(request, own_lists ? kv_head * group + scores.first_head : kv_head, page);
    float all = writes && !own_lists && scores.first_head > 0 ? *out : 0.0F;
#pragma unroll 1
    for (int head = 0; head < heads; ++head) {
      float sums[kRowSums] = {};
      float query[kLaneDims];
      positive.get(head, lane, query);
#pragma unroll
      for (int i = 0; i < kRowSums; ++i) {
#pragma unroll
        for (int dim = 0; dim < kLaneDims; ++dim) sums[i] = fmaf(query[dim], high[i][dim], sums[i]);
      }
      negative.get(head, lane, query);
#pragma unroll
      for (int i = 0; i < kRowSums; ++i) {
#pragma unroll
        for (int dim = 0; dim < kLaneDims; ++dim) sums[i] = fmaf(query[dim], low[i][dim], sums[i]);
      }
      const float bound = sum_row<kRowLanes>(sums, lane);
      if (own_lists) {
        if (writes) *out = bound;
        out += args.scores.stride[1];
      } else if (scores.first_head + head == 0) {
        all = bound;
      } else if (args.combine == GroupCombine::kMax) {
        all = all < bound ? bound : all;
      } else {
        all += bound;
      }
    }
    if (writes && !own_lists) *out = all;
  }
}

template <class Raw>
void launch_bounds(const Bounds& args, Stream stream) {
  const dim3 grid(static_cast<unsigned>(args.items));
  launch_kernel<bound_kernel<Raw>>({"bound_kernel", Start::kAfterPrevious, grid, kBoundThreads, 0, stream}, args);
}

}  // namespace

void launch(const Bounds& args, Stream stream) {
  if (args.items == 0) return;
  if (args.out.dtype == DType::kE4M3) return launch_bounds<std::uint8_t>(args, stream);
  if (args.out.dtype == DType::kF32) return launch_bounds<std::uint32_t>(args, stream);
  launch_bounds<std::uint16_t>(args, stream);
}

void launch(const BoundScores& scores, Stream stream) {
  const Geometry& geometry = scores.args.geometry;
  with_rows(scores.args.bounds.dtype, geometry.head_dim, [&]<class Pair, int kRowLanes>() {
    const dim3 grid =
        grid_of(geometry, scores.args.table.num_requests(), scores.max_pages, kScoreWarps * 32 / kRowLanes * kRowSums);
    launch_kernel<score_kernel<Pair, kRowLanes>>({"score_kernel", Start::kAfterPrevious, grid, 32 * kScoreWarps, 0, stream},
                                                 scores);
  });
}

}  // namespace locks::cuda::rivals
