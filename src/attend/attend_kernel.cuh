// Attention of some leaves of a row: see README.md, "On the GPU".
//
// A warp takes a tile of 16 tokens at a time and needs no other warp until a leaf ends, except that all of them look up
// where the tokens of the next windows lie. Tiles come through a ring in shared memory, copied while earlier ones are
// computed.
#pragma once

#include "attend/attend_leaf.cuh"
#include "cuda/launch.cuh"
#include "cuda/shared.cuh"

namespace locks::cuda::attend_stage {

/// Whether blocks may take several leaves that have a partial state each: with f32 there are no registers for it.
template <class S>
inline constexpr bool kSeveralLeaves = S::kType != DType::kF32;

/// `leaves`: that the block takes.
template <class S>
__device__ __forceinline__ void attend_leaves(const AttendParams& params, int leaves) {
  LOCKS_DYNAMIC_SHARED(std::byte, shared);
  using N = Numbers<S::kType>;
  const auto threads = static_cast<int>(blockDim.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warps = threads / 32;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  std::byte* const behind_ring = shared + S::ring_bytes(warps);
  auto* const running = reinterpret_cast<float*>(behind_ring + S::query_bytes());
  auto* const token_rows = reinterpret_cast<TokenRows*>(behind_ring + S::query_bytes() + S::running_bytes());
  const int window_tokens = threads * kThreadTokens;
  auto* const warp_states = reinterpret_cast<float2*>(token_rows + kWindows * window_tokens);  // [warps, heads]: max, sum
  auto* const scan = reinterpret_cast<int*>(warp_states + warps * S::kHeads);

  const int request = static_cast<int>(blockIdx.z);
  const int block = static_cast<int>(blockIdx.y);
  // Lists run side by side: in most caches so do their rows.
  const int list = divide(static_cast<int>(blockIdx.x), params.passes);
  const int pass = static_cast<int>(blockIdx.x) - list * static_cast<int>(params.passes.divisor);
  const int kv_head = divide(list, params.lists_per_kv_head);
  const int first_head = list * params.list_heads + pass * S::kHeads;
  const int end_head = min((list + 1) * params.list_heads, first_head + S::kHeads);

  Queries<S> queries;
  queries.ask(params, request, first_head, end_head, lane);
  const float value_scale = value_scale_of<S::kType>(params);
  const RowTokens tokens(params, request, list, scan);
  const int leaf = leaf_tokens(tokens.total(), params.partials.cut);
  const int row_leaves = leaves_of(tokens.total(), params.partials.cut);
  if (block == 0 && pass == 0 && thread == 0) params.partials.leaves[request * params.num_lists + list] = row_leaves;
  const int first = min(block * leaves, row_leaves) * leaf;
  const int end = min(tokens.total(), min(block * leaves + leaves, row_leaves) * leaf);
  if (first >= end) return;

  const int tile_stride = kTileTokens * warps;  // tokens that the warps take together
  const int tile_shift = __ffs(tile_stride) - 1;
  const int num_tiles = (end - first + tile_stride - 1) >> tile_shift;
  constexpr int kWindowTiles = 32 * kThreadTokens / kTileTokens;
  std::byte* const ring = shared + warp * S::kStages * S::kTileBytes;
  const CacheRows cache(params, kv_head);
  int blocks[kThreadTokens];
  const auto fetch = [&](int window) { tokens.fetch(params, first + window * window_tokens, end, blocks); };
  const auto write = [&](int window) {
    const int from = first + window * window_tokens;
    if (from < end) {
      tokens.write(params, cache, from, min(end, from + window_tokens), blocks,
                   token_rows + window % kWindows * window_tokens);
    }
  };
  const auto valid_tokens = [&](int tile) {
    return min(max(end - first - tile * tile_stride - warp * kTileTokens, 0), kTileTokens);
  };
  const auto copy_tile = [&](int tile) {
    const int valid = valid_tokens(tile);
    if (valid > 0) {
      copy_rows<S>(token_rows + tile % (kWindows * kWindowTiles) * tile_stride + warp * kTileTokens,
                   mma16::shared_address(ring + tile % S::kStages * S::kTileBytes), valid, lane);
    }
    mma16::commit_copies();
  };

  fetch(0);
  queries.convert(params, reinterpret_cast<uint2*>(behind_ring), warp, warps, lane);
#pragma unroll 1
  for (int window = 0; window < 2; ++window) {
    if (window > 0) fetch(window);
    write(window);
  }
  __syncthreads();
#pragma unroll 1
  for (int tile = 0; tile < S::kStages - 1; ++tile) copy_tile(tile);
  WarpState<S> state;
  state.clear();

  // At a leaf's end the block's threads share its state out among them: these take `head`, every `head_threads`-th float4.
  const int head_threads = threads / S::kHeads;
  const int head = thread >> (__ffs(head_threads) - 1);
  float* const running_row = running + head * S::kStateStride;
  const bool part_is_leaf = kSeveralLeaves<S> && params.partials.leaves_per_part == 1;
  std::int64_t slot = (std::int64_t{request} * params.query_heads + first_head + head) * params.partials.parts_per_row +
                      (part_is_leaf ? block * leaves : block);
  float running_max = kNoLogit;
  float running_sum = 0.0F;
#pragma unroll 1
  for (int i = 4 * (thread & (head_threads - 1)); i < S::kHeadDim; i += 4 * head_threads) {
    *reinterpret_cast<float4*>(running_row + i) = {0.0F, 0.0F, 0.0F, 0.0F};
  }
  const int tiles_per_leaf = leaf >> tile_shift;
  int tiles_left = min(tiles_per_leaf, num_tiles);
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int window = tile / kWindowTiles;
    const bool starts_window = tile % kWindowTiles == 0;
    if (starts_window) {
      if (tile > 0) __syncthreads();  // nobody reads the window before this one any more, and the next one is complete
      fetch(window + 2);
    }
    mma16::wait_copies<S::kStages - 2>();
    __syncwarp();
    copy_tile(tile + S::kStages - 1);
    std::byte* const current = ring + tile % S::kStages * S::kTileBytes;
    const int valid = valid_tokens(tile);
    if (valid > 0) add_tile<S>(params, request, first_head, end_head, current, valid, queries, state, lane);
    if (starts_window) write(window + 2);
    if (--tiles_left > 0) continue;
    tiles_left = min(tiles_per_leaf, num_tiles - tile - 1);

    // The leaf is done. Its tile of the ring is free until the next turn: the warp's state goes there.
    __syncwarp();
    float* const own = reinterpret_cast<float*>(current) + lane % 4 * (2 * S::kStateStride) + N::kSumStep * (lane / 4);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = state.sum[column][i];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        if (lane < 4) warp_states[warp * S::kHeads + 8 * column + 2 * lane + i] = {state.max[column][i], sum};
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            own[(8 * column + i) * S::kStateStride + 16 * step + N::kSumHalf * half] =
                state.out[column][step][2 * half + i] * value_scale;
          }
        }
      }
    }
    state.clear();
    __syncthreads();
    // Warps that do not exist weigh nothing; branches would cost more.
    float2 from[kMaxWarps];
    float max = kNoLogit;
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      from[other] = other < warps ? warp_states[other * S::kHeads + head] : float2{kNoLogit, 0.0F};
      max = fmaxf(max, from[other].x);
    }
    float scale[kMaxWarps];
    float sum = 0.0F;
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      scale[other] = from[other].x == max ? 1.0F : exp_difference(from[other].x, max);
      sum = fmaf(from[other].y, scale[other], sum);
    }
    const FoldScales scales = fold_scales(running_max, max);
    running_max = scales.max;
    running_sum = fold(running_sum, sum, scales);
    const bool ends_part = part_is_leaf || tile + 1 == num_tiles;
    const bool writes = ends_part && first_head + head < end_head;
    if (writes && (thread & (head_threads - 1)) == 0) {
      params.partials.max_and_sum[2 * slot] = running_max;
      params.partials.max_and_sum[2 * slot + 1] = running_sum;
    }
    const std::byte* const states = shared + tile % S::kStages * S::kTileBytes;
    for (int i = 4 * (thread & (head_threads - 1)); i < S::kHeadDim; i += 4 * head_threads) {
      float4 out = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int other = 0; other < kMaxWarps; ++other) {
        const auto* const row = reinterpret_cast<const float*>(states + other * S::kStages * S::kTileBytes);
        float4 part_out = {0.0F, 0.0F, 0.0F, 0.0F};
        if (other < warps) part_out = *reinterpret_cast<const float4*>(row + head * S::kStateStride + i);
        out = {fmaf(part_out.x, scale[other], out.x), fmaf(part_out.y, scale[other], out.y),
               fmaf(part_out.z, scale[other], out.z), fmaf(part_out.w, scale[other], out.w)};
      }
      auto* const into = reinterpret_cast<float4*>(running_row + i);
      out = fold(*into, out, scales);
      *into = part_is_leaf ? float4{0.0F, 0.0F, 0.0F, 0.0F} : out;
      if (writes) *reinterpret_cast<float4*>(params.partials.out + slot * S::kHeadDim + i) = out;
    }
    if (part_is_leaf) {
      running_max = kNoLogit;
      running_sum = 0.0F;
      ++slot;
    }
    __syncthreads();
  }
}

template <class S>
__global__ void __launch_bounds__(32 * kMaxWarps, S::kBlocks) attend_kernel(const __grid_constant__ AttendParams params) {
  in_turn<!kSeveralLeaves<S>>(params, [&](int leaves) { attend_leaves<S>(params, leaves); });
}

template <class S>
void launch(AttendParams params, Stream stream) {
  const int most_shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  params.blocks_at_once = 2 * device_attribute(cudaDevAttrMultiProcessorCount);  // of every instance
  dim3 grid(static_cast<unsigned>(params.num_lists) * params.passes.divisor, static_cast<unsigned>(params.partials.parts),
            static_cast<unsigned>(params.num_requests));
  if constexpr (S::kType != DType::kF32) {
    // To scale queries takes all of their elements: there each warp converts its own.
    using Leaf = Shape<S::kType, S::kHeadDim, S::kColumns, !Numbers<S::kType>::kScalesQueries>;
    constexpr int kBytes = LeafShared<Leaf>::bytes();
    if (params.leaf_blocks && kBytes <= most_shared) {
      check(cudaFuncSetAttribute(attend_leaf<Leaf>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "cudaFuncSetAttribute");
      return launch_kernel<attend_leaf<Leaf>>({"attend_leaf", Start::kEarly, grid, kLeafBlockThreads, kBytes, stream},
                                              params);
    }
  }
  if (kSeveralLeaves<S> && params.partials.leaves_per_part == 1) {
    const Cut& cut = params.partials.cut;
    const auto rows = static_cast<int>(grid.x * grid.z);
    const bool listed = params.selected != nullptr;
    const int known_tokens = listed ? std::min(params.whole_tokens, params.most_tokens) : params.most_tokens;
    const int row_blocks = blocks_of_rows(known_tokens, cut, rows, params.blocks_at_once);
    const int list_blocks = listed ? blocks_of_lists(params.listed_tokens, cut, rows, params.blocks_at_once) : 1;
    grid.y = static_cast<unsigned>(std::max(row_blocks, list_blocks));
  }
  int warps = kMaxWarps;
  while (warps > 1 && S::shared_bytes(warps) > most_shared) warps /= 2;
  const int bytes = S::shared_bytes(warps);
  check(cudaFuncSetAttribute(attend_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  launch_kernel<attend_kernel<S>>(
      {"attend_kernel", Start::kEarly, grid, 32 * warps, static_cast<std::size_t>(bytes), stream}, params);
}

template <int kHeadDim>
void launch_instance(const AttendParams& params, DType dtype, Stream stream) {
  if constexpr (has_wide_instance(DType::kF16, kHeadDim)) {
    if (params.list_heads > 8) {
      if (dtype == DType::kF16) return launch<Shape<DType::kF16, kHeadDim, 2>>(params, stream);
      if (dtype == DType::kBF16) return launch<Shape<DType::kBF16, kHeadDim, 2>>(params, stream);
      if (dtype == DType::kE4M3) return launch<Shape<DType::kE4M3, kHeadDim, 2>>(params, stream);
    }
  }
  if (dtype == DType::kF16) return launch<Shape<DType::kF16, kHeadDim, 1>>(params, stream);
  if (dtype == DType::kBF16) return launch<Shape<DType::kBF16, kHeadDim, 1>>(params, stream);
  if (dtype == DType::kE4M3) return launch<Shape<DType::kE4M3, kHeadDim, 1>>(params, stream);
  launch<Shape<DType::kF32, kHeadDim, 1>>(params, stream);
}

}  // namespace locks::cuda::attend_stage
