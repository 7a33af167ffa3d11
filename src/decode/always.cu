// The tokens that a request always attends: their list, and for each query head their exact mass, which the selection weighs
// the scores against. Their values are attended later, together with what is selected.
//
// A thread block takes four query heads: it is small, to run beside those of the scorer. A
// row of keys is read by 16 or 32 lanes, 8 dimensions each; products are summed across lanes in halves, so that in the end
// each lane has one token's logit of one head.
#include "cuda/chain.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/rows.cuh"
#include "cuda/softmax_state.cuh"
#include "decode/always_cuda.h"

namespace locks::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kHeads = kRowSums;  // of a thread block

/// The tokens, packed: those of the first pages, then the last ones.
struct AlwaysTokens {
  AlwaysAttended always;
  [[nodiscard]] __device__ __forceinline__ int position(int i) const {
    const int sink = always.sink_pages * kPageTokens;
    return i < sink ? i : i - sink + always.first_recent_page * kPageTokens;
  }
};

__device__ void list_always(const AlwaysArgs& args, const AlwaysAttended& always, int request, int list) {
  const int filled = always.filled_pages - always.selectable_pages();
  for (int i = static_cast<int>(threadIdx.x); i < args.entries.shape[2]; i += 32 * kWarps) {
    SelectedPage entry;
    if (i < filled) entry = {i < always.sink_pages ? i : i + always.selectable_pages(), kWholePage};
    if (i == filled && always.tail_tokens > 0)
      entry = {always.filled_pages, static_cast<std::uint16_t>((1U << always.tail_tokens) - 1U)};
    args.entries(request, list, i) = entry;
  }
}

/// Grid: KV heads times passes over their query heads, requests. `kRowLanes` * 8 dimensions hold a head.
template <class Pair, int kRowLanes>
__global__ void __launch_bounds__(32 * kWarps, 7) always_kernel(const __grid_constant__ AlwaysArgs args) {
  __shared__ float2 of_warps[kWarps][kHeads];
  let_next_start();
  const int group = args.geometry.query_heads / args.geometry.kv_heads;
  const int passes = (group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.x) / passes;
  const int first = static_cast<int>(blockIdx.x) % passes * kHeads;
  const int request = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const AlwaysTokens tokens{always_attended(args.config, args.table.context_tokens[request], args.min_context_tokens)};
  const int lists = args.num_lists / args.geometry.kv_heads;
  if (tokens.always.everything) return only_first_block_waits();  // without a list
  for (int i = 0; first == 0 && i < lists; ++i) list_always(args, tokens.always, request, kv_head * lists + i);

  constexpr int kAtOnce = 32 / kRowLanes;  // tokens of a warp
  constexpr int kAhead = sizeof(Numbers<Pair>) > sizeof(uint4) ? 2 : 4;
  const int count = tokens.always.tokens;
  const bool has_dims = lane * kLaneDims < args.geometry.head_dim;
  const int head_count = min(kHeads, group - first);
  float scale = args.geometry.softmax_scale;
  if (args.keys.scale != nullptr) scale *= *args.keys.scale;
  float q[kHeads][kLaneDims];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const float* const row = args.queries.at(request, kv_head * group + first + min(head, head_count - 1));
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      q[head][i] = has_dims && head < head_count ? row[lane * kLaneDims + i] * scale : 0.0F;
    }
  }
  float max = kNoLogit;
  float sum = 0.0F;
  const int stride = kWarps * kAtOnce;
  for (int base = 0; base < count; base += kAhead * stride) {  // whole warps
    Numbers<Pair> keys[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int token = base + i * stride + warp * kAtOnce + static_cast<int>(threadIdx.x) % 32 / kRowLanes;
      keys[i] = {};
      if (token < count && has_dims)
        keys[i].read(token_row(args.keys, args.table, request, kv_head, tokens.position(token)), lane);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int token = base + i * stride + warp * kAtOnce + static_cast<int>(threadIdx.x) % 32 / kRowLanes;
      float key[kLaneDims];
      keys[i].unpack(key);
      float products[kHeads];
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        products[head] = 0.0F;
#pragma unroll
        for (int dim = 0; dim < kLaneDims; ++dim) products[head] = fmaf(q[head][dim], key[dim], products[head]);
      }
      const float logit = sum_row<kRowLanes>(products, lane);
      if (token >= count) continue;
      const FoldScales scales = fold_scales(max, logit);
      max = scales.max;
      sum = fold(sum, 1.0F, scales);
    }
  }
  if (kAtOnce == 2) {
    const float other_max = __shfl_xor_sync(kWholeWarp, max, 16);
    const float other_sum = __shfl_xor_sync(kWholeWarp, sum, 16);
    const FoldScales scales = fold_scales(max, other_max);
    max = scales.max;
    sum = fold(sum, other_sum, scales);
  }
  constexpr int kHeadLanes = kRowLanes / kHeads;
  if (lane % kHeadLanes == 0 && threadIdx.x % 32 < kRowLanes) of_warps[warp][lane / kHeadLanes] = {max, sum};
  __syncthreads();
  if (threadIdx.x < head_count) {
    max = kNoLogit;
    sum = 0.0F;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float2 from = of_warps[other][threadIdx.x];
      const FoldScales scales = fold_scales(max, from.x);
      max = scales.max;
      sum = fold(sum, from.y, scales);
    }
    float* const state = args.states.at(request, kv_head * group + first + static_cast<int>(threadIdx.x), 0);
    state[0] = max;
    state[1] = sum;
  }
  wait_for_previous();
}

template <class Pair>
void launch_type(const AlwaysArgs& args, Stream stream) {
  const int group = args.geometry.query_heads / args.geometry.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.geometry.kv_heads * ((group + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(args.table.num_requests()));
  const Launch launch{"always_kernel", Start::kEarly, grid, 32 * kWarps, 0, stream};
  if (args.geometry.head_dim <= 16 * kLaneDims) return launch_kernel<always_kernel<Pair, 16>>(launch, args);
  launch_kernel<always_kernel<Pair, 32>>(launch, args);
}

}  // namespace

void launch_always(const AlwaysArgs& args, Stream stream) {
  if (args.keys.dtype == DType::kF16) return launch_type<__half2>(args, stream);
  if (args.keys.dtype == DType::kBF16) return launch_type<__nv_bfloat162>(args, stream);
  if (args.keys.dtype == DType::kE4M3) return launch_type<E4M3>(args, stream);
  launch_type<float>(args, stream);
}

}  // namespace locks::cuda
