// Attention of a leaf of 128 tokens by eight warps, a tile each: for few and short rows, where what counts is how soon the
// last block is done. The bits are those of attend_kernel.cuh, whose four warps take two tiles each, one after the other:
// of a pair, warp c has the first tile and warp c + 4 the second, which must know the first one's max.
#pragma once

#include <type_traits>

#include "attend/attend_share.cuh"
#include "attend/attend_turn.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx.cuh"
#include "cuda/shared.cuh"

namespace locks::cuda::attend_stage {

inline constexpr int kLeafWarps = 2 * kMaxWarps;
inline constexpr int kLeafBlockThreads = 32 * kLeafWarps;
static_assert(kLeafWarps * kTileTokens == kLeafTokens);

/// Shared memory of a block.
template <class S>
struct LeafShared {
  static constexpr int kTiles = kLeafWarps * S::kTileBytes;
  float2 max_and_sum[kMaxWarps][S::kHeads];  // of each pair
  float into[kMaxWarps][S::kHeads];          // what the first tile's sums are multiplied by
  float lane_sums[kMaxWarps][S::kColumns][2][32];
  TokenRows rows[kLeafTokens];
  int scan[kOwnEntries * kLeafWarps];
  bool pages[kLeafWarps];  // tiles that are pages

  static constexpr int bytes() { return kTiles + S::query_bytes() + static_cast<int>(sizeof(LeafShared)); }
};

template <class S>
__device__ __forceinline__ void attend_one_leaf(const AttendParams& params) {
  LOCKS_DYNAMIC_SHARED(std::byte, shared);
  using N = Numbers<S::kType>;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int pair = warp % kMaxWarps;
  const bool second = warp >= kMaxWarps;
  auto& notes = *reinterpret_cast<LeafShared<S>*>(shared + LeafShared<S>::kTiles + S::query_bytes());

  const int request = static_cast<int>(blockIdx.z);
  const int part = static_cast<int>(blockIdx.y);
  const int list = divide(static_cast<int>(blockIdx.x), params.passes);
  const int pass = static_cast<int>(blockIdx.x) - list * static_cast<int>(params.passes.divisor);
  const int kv_head = divide(list, params.lists_per_kv_head);
  const int first_head = list * params.list_heads + pass * S::kHeads;
  const int end_head = min((list + 1) * params.list_heads, first_head + S::kHeads);

  using Asked = std::conditional_t<S::kOnce, QueryShare<S, kLeafWarps>, AllQueries<S, kLeafWarps>>;
  Asked asked(params, request, first_head, end_head, warp, lane);
  const float value_scale = value_scale_of<S::kType>(params);
  if (thread < kLeafWarps) notes.pages[thread] = false;
  RowTokens tokens(params, request, list, notes.scan);
  if (part == 0 && pass == 0 && thread == 0) {
    params.partials.leaves[request * params.num_lists + list] = (tokens.total() + kLeafTokens - 1) / kLeafTokens;
  }
  const int first = part * kLeafTokens;
  const int end = min(tokens.total(), first + kLeafTokens);
  if (first >= end) return;

  const CacheRows cache(params, kv_head);
  int blocks[kThreadTokens];
  tokens.fetch(params, first, end, blocks);
  tokens.write(params, cache, first, end, blocks, notes.rows, notes.pages);
  if (thread < kLeafWarps && tokens.has_page(params, first + thread * kTileTokens, end)) notes.pages[thread] = true;
  __syncthreads();
  std::byte* const tile = shared + warp * S::kTileBytes;
  const int valid = min(max(end - first - warp * kTileTokens, 0), kTileTokens);
  const TokenRows* const rows = notes.rows + warp * kTileTokens;
  if (notes.pages[warp]) {
    copy_page<S>(params, *rows, mma16::shared_address(tile), lane);
  } else if (valid > 0) {
    copy_rows<S>(rows, mma16::shared_address(tile), valid, lane);
  }
  mma16::commit_copies();
  Queries<S> queries;
  asked.convert(params, reinterpret_cast<uint2*>(shared + LeafShared<S>::kTiles), warp, lane, queries);
  if constexpr (S::kSharedQueries) __syncthreads();

  WarpState<S> state;
  state.clear();
  float logits[S::kColumns][4];
  float largest[S::kColumns][2];
  mma16::wait_copies<0>();
  __syncwarp();
  TileProducts<S> products = {};
  if (valid > 0) multiply_keys<S>(tile, queries, lane, products);
#pragma unroll
  for (int column = 0; column < S::kColumns; ++column) {
    if (valid > 0) {
      column_logits<S>(params, request, first_head, end_head, tile, valid, queries, lane, column, products, logits[column]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[column][i] = valid > 0 ? largest_of_head(logits[column][i], logits[column][i + 2]) : kNoLogit;
      // As the state keeps it: a max that is not a number was passed over.
      if (!second && lane < 4) {
        notes.max_and_sum[pair][8 * column + 2 * lane + i].x = fold_scales(kNoLogit, largest[column][i]).max;
      }
    }
  }
  ptx::meet_of_two_warps(1 + pair);
  if (second) {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) state.max[column][i] = notes.max_and_sum[pair][8 * column + 2 * (lane % 4) + i].x;
    }
  }
  float rescale[S::kColumns][2];
  if (valid > 0) {
    std::uint32_t weights[S::kColumns][N::kParts][2];
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      weigh<S>(logits[column], largest[column], column, state, rescale[column], weights[column]);
    }
    add_values<S>(tile, lane, rescale, weights, state);
  } else {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) rescale[column][0] = rescale[column][1] = 1.0F;
  }

  // The tile was read: its sums go there. A pair's become one as one warp would have added its tiles.
  __syncwarp();
  float* const own = reinterpret_cast<float*>(tile) + lane % 4 * (2 * S::kStateStride) + N::kSumStep * (lane / 4);
#pragma unroll
  for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          own[(8 * column + i) * S::kStateStride + 16 * step + N::kSumHalf * half] = state.out[column][step][2 * half + i];
        }
      }
      if (!second) notes.lane_sums[pair][column][i][lane] = state.sum[column][i];
    }
  }
  ptx::meet_of_two_warps(1 + pair);
  if (second) {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = state.sum[column][i];
        // Without tokens of its own it has added nothing; with some, its sum is that of its own alone.
        sum = fmaf(notes.lane_sums[pair][column][i][lane], rescale[column][i], sum);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        const int head = 8 * column + 2 * lane + i;
        if (lane < 4) {
          notes.max_and_sum[pair][head] = {state.max[column][i], sum};
          notes.into[pair][head] = rescale[column][i];
        }
      }
    }
  }
  __syncthreads();

  constexpr int kHeadThreads = kLeafBlockThreads / S::kHeads;
  const int head = thread / kHeadThreads;
  float2 from[kMaxWarps];
  float into[kMaxWarps];
  float max = kNoLogit;
#pragma unroll
  for (int other = 0; other < kMaxWarps; ++other) {
    from[other] = notes.max_and_sum[other][head];
    into[other] = notes.into[other][head];
    max = fmaxf(max, from[other].x);
  }
  float scale[kMaxWarps];
  float sum = 0.0F;
#pragma unroll
  for (int other = 0; other < kMaxWarps; ++other) {
    scale[other] = from[other].x == max ? 1.0F : exp_difference(from[other].x, max);
    sum = fmaf(from[other].y, scale[other], sum);
  }
  if (first_head + head >= end_head) return;
  const FoldScales scales = fold_scales(kNoLogit, max);
  const std::int64_t slot =
      (std::int64_t{request} * params.query_heads + first_head + head) * params.partials.parts_per_row + part;
  if (thread % kHeadThreads == 0) {
    *reinterpret_cast<float2*>(params.partials.max_and_sum + 2 * slot) = {scales.max, fold(0.0F, sum, scales)};
  }
#pragma unroll 1
  for (int i = 4 * (thread % kHeadThreads); i < S::kHeadDim; i += 4 * kHeadThreads) {
    float4 out = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      const auto* const one = reinterpret_cast<const float*>(shared + other * S::kTileBytes);
      const auto* const two = reinterpret_cast<const float*>(shared + (kMaxWarps + other) * S::kTileBytes);
      const float4 a = *reinterpret_cast<const float4*>(one + head * S::kStateStride + i);
      const float4 b = *reinterpret_cast<const float4*>(two + head * S::kStateStride + i);
      const auto add = [&](float& sum_of, float a_value, float b_value) {
        sum_of = fmaf(fmaf(a_value, into[other], b_value) * value_scale, scale[other], sum_of);
      };
      add(out.x, a.x, b.x);
      add(out.y, a.y, b.y);
      add(out.z, a.z, b.z);
      add(out.w, a.w, b.w);
    }
    out = fold(float4{0.0F, 0.0F, 0.0F, 0.0F}, out, scales);
    *reinterpret_cast<float4*>(params.partials.out + slot * S::kHeadDim + i) = out;
  }
}

template <class S>
__global__ void __launch_bounds__(kLeafBlockThreads, S::kColumns == 1 ? 2 : 1)
    attend_leaf(const __grid_constant__ AttendParams params) {
  in_turn<true>(params, [&](int) { attend_one_leaf<S>(params); });
}

}  // namespace locks::cuda::attend_stage
