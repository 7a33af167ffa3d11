// Attention of a part of a row: see README.md, "On the GPU".
//
// A warp takes 16 tokens at a time (a tile) and needs no other warp until a leaf ends. Tokens are the rows of the
// tensor cores' tile and query heads its 8 columns, in both products, so that what belongs to a head (max, scale) stays in
// the lanes of its column. Tiles come through a ring in shared memory, copied while earlier ones are computed.
#pragma once

#include <cfloat>

#include "attend/attend_cuda.h"
#include "attend/attend_numbers.cuh"
#include "attend/attend_tokens.cuh"
#include "cuda/check.h"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::attend_stage {

inline constexpr int kTileTokens = 16;
inline constexpr int kMaxWarps = 4;

template <DType kType_, int kHeadDim_, int kColumns_>
struct Shape {
  static constexpr DType kType = kType_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kColumns = kColumns_;  // tiles of 8 query heads
  static constexpr int kHeads = 8 * kColumns;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * Numbers<kType>::kBytes;
  static constexpr int kRowStride = kRowBytes + 16;  // an odd number of 16 bytes: 8 rows meet all banks
  static constexpr int kSideBytes = kTileTokens * kRowStride;
  static constexpr int kTileBytes = 2 * kSideBytes;  // keys, values
  // Two blocks should fit a multiprocessor of 227 KB.
  static constexpr int kStages = kColumns == 1 && 3 * kMaxWarps * kTileBytes <= 104 * 1024 ? 3 : 2;
  static constexpr int kBlocks = kColumns == 1 && kHeadDim <= 64 ? 3 : 2;  // that registers leave room for
  static constexpr int kStateStride = kHeadDim + 4;  // floats; stores of a column's lanes meet all banks

  // Queries stay in registers unless those would spill.
  static constexpr int kQueryRegisters = kColumns * kSteps * Numbers<kType>::kParts * 2;
  static constexpr bool kSharedQueries = kQueryRegisters + kColumns * kSteps * 4 >= 120;

  static constexpr int query_bytes() { return kSharedQueries ? kQueryRegisters * 32 * 4 : 0; }
  static constexpr int ring_bytes(int warps) { return warps * kStages * kTileBytes; }
  static constexpr int running_bytes() { return kHeads * kStateStride * 4; }
  static constexpr int shared_bytes(int warps) {
    return ring_bytes(warps) + query_bytes() + running_bytes() + kWindows * kWindow * 4 + warps * (32 * 8 + kHeads * 8 + 4);
  }
  static_assert(kHeads * kStateStride * 4 <= kTileBytes, "a warp's state passes through one tile of the ring");
};

/// Parts of the queries, as b fragments, and what turns their products into logits.
template <class S>
struct Queries {
  using N = Numbers<S::kType>;
  using Parts = std::uint32_t[N::kParts][2];
  Parts own[S::kSharedQueries ? 1 : S::kColumns * S::kSteps];
  const uint2* shared;                // [columns, steps, parts, lanes]
  float logit_scale[S::kColumns][2];  // of the columns that this lane's sums belong to

  __device__ __forceinline__ void get(Parts& parts, int column, int step, int lane) const {
    const int index = column * S::kSteps + step;
#pragma unroll
    for (int part = 0; part < N::kParts; ++part) {
      if constexpr (S::kSharedQueries) {
        const uint2 pair = shared[(index * N::kParts + part) * 32 + lane];
        parts[part][0] = pair.x;
        parts[part][1] = pair.y;
      } else {
        parts[part][0] = own[index][part][0];
        parts[part][1] = own[index][part][1];
      }
    }
  }

  /// With shared queries the block has to wait for all of its warps afterwards.
  __device__ __forceinline__ void load(const AttendParams& params, int request, int first_head, int end_head, uint2* memory,
                                       int warp, int warps, int lane) {
    shared = memory;
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      const int head = first_head + 8 * column + lane / 4;
      const bool exists = head < end_head;
      const float* const query = params.queries + request * params.query_request_stride +
                                 (exists ? head : first_head) * params.query_head_stride + 2 * (lane % 4);
      float scale = 1.0F;
      float inverse = 1.0F;
      if constexpr (S::kType == DType::kF16) {
        // The largest element comes to 2^14 ... 2^15, so that no part leaves the range of f16.
        float largest = 0.0F;
#pragma unroll
        for (int i = 0; i < 4 * S::kSteps; ++i) largest = fmaxf(largest, fabsf(query[i / 4 * 16 + i % 4 / 2 * 8 + i % 2]));
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
        const int exponent = min(max(268 - static_cast<int>(__float_as_uint(largest) >> 23), 27), 227);
        scale = __uint_as_float(static_cast<unsigned>(exponent) << 23);
        inverse = __uint_as_float(static_cast<unsigned>(254 - exponent) << 23);
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const int index = column * S::kSteps + step;
        if (S::kSharedQueries && index % warps != warp) continue;
        std::uint32_t parts[2][N::kParts];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = exists ? query[16 * step + 8 * half] * scale : 0.0F;
          const float y = exists ? query[16 * step + 8 * half + 1] * scale : 0.0F;
          mma16::split(parts[half], x, y);
        }
#pragma unroll
        for (int part = 0; part < N::kParts; ++part) {
          if constexpr (S::kSharedQueries) {
            memory[(index * N::kParts + part) * 32 + lane] = {parts[0][part], parts[1][part]};
          } else {
            own[index][part][0] = parts[0][part];
            own[index][part][1] = parts[1][part];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        logit_scale[column][i] = params.softmax_scale * __shfl_sync(~0U, inverse, 4 * (2 * (lane % 4) + i));
      }
    }
  }
};

/// A warp's state: of column c and its heads 2t, 2t + 1; sums of weights are those of the lane's own tokens.
template <class S>
struct WarpState {
  float max[S::kColumns][2];
  float sum[S::kColumns][2];
  float out[S::kColumns][S::kSteps][4];  // rows: dimensions

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max[column][i] = kNoLogit;
        sum[column][i] = 0.0F;
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[column][step][i] = 0.0F;
      }
    }
  }
};

/// Parts of a number that is not finite may cancel (infinity - infinity) where the number itself does not: such a logit is
/// computed again, plainly.
template <class S>
__device__ __forceinline__ float plain_logit(const AttendParams& params, int request, int head, const std::byte* key) {
  const float* const query = params.queries + request * params.query_request_stride + head * params.query_head_stride;
  float dot = 0.0F;
#pragma unroll 1
  for (int dim = 0; dim < S::kHeadDim; ++dim) dot = fmaf(query[dim], Numbers<S::kType>::element(key, dim), dot);
  return dot * params.softmax_scale;
}

/// Adds a tile of `valid` tokens to the state. `tile` holds zeros where there is no token.
template <class S>
__device__ __forceinline__ void add_tile(const AttendParams& params, int request, int first_head, int end_head,
                                         const std::byte* tile, int valid, const Queries<S>& queries, WarpState<S>& state,
                                         int lane) {
  using N = Numbers<S::kType>;
  const std::uint32_t keys = mma16::shared_address(tile);
  const std::uint32_t values = keys + S::kSideBytes;
  float products[S::kColumns][N::kSums][4] = {};
#pragma unroll(S::kSharedQueries ? 4 : S::kSteps)
  for (int step = 0; step < S::kSteps; ++step) {
    const auto fragment = N::template keys<S::kRowStride>(keys, step, lane);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      typename Queries<S>::Parts parts;
      queries.get(parts, column, step, lane);
      N::multiply(products[column], fragment, parts);
    }
  }
  std::uint32_t weights[S::kColumns][N::kParts][2];
  float rescale[S::kColumns][2];
#pragma unroll
  for (int column = 0; column < S::kColumns; ++column) {
    float logits[4];
    bool odd = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      logits[i] = N::total(products[column], i) * queries.logit_scale[column][i % 2];
      odd = odd || (lane / 4 + i / 2 * 8 < valid && !(fabsf(logits[i]) <= FLT_MAX));
    }
    if (__any_sync(~0U, odd)) {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const int token = lane / 4 + i / 2 * 8;
        const int head = first_head + 8 * column + 2 * (lane % 4) + i % 2;
        if (token >= valid || head >= end_head) continue;
        const float logit = plain_logit<S>(params, request, head, tile + token * S::kRowStride);
#pragma unroll
        for (int j = 0; j < 4; ++j) logits[j] = i == j ? logit : logits[j];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) logits[i] = lane / 4 + i / 2 * 8 < valid ? logits[i] : kNoLogit;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = fmaxf(logits[i], logits[i + 2]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
      const FoldScales scales = fold_scales(state.max[column][i], largest);
      rescale[column][i] = scales.into;
      state.max[column][i] = scales.max;
      const float reference = scales.max == kNoLogit ? 0.0F : scales.max;
      logits[i] = exp_difference(logits[i], reference);
      logits[i + 2] = exp_difference(logits[i + 2], reference);
      state.sum[column][i] = fmaf(state.sum[column][i], scales.into, logits[i] + logits[i + 2]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t parts[N::kParts];
      mma16::split(parts, logits[2 * half] * N::kWeightScale, logits[2 * half + 1] * N::kWeightScale);
#pragma unroll
      for (int part = 0; part < N::kParts; ++part) weights[column][part][half] = mma16::transpose(parts[part]);
    }
  }
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    const auto fragment = N::template values<S::kRowStride>(values, step, lane);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      // A tile's sum joins the state rounded to nearest; tensor cores would cut it off.
      float sum[4] = {};
      N::multiply(sum, fragment, weights[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        state.out[column][step][i] = fmaf(state.out[column][step][i], rescale[column][i % 2], sum[i]);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(32 * kMaxWarps, S::kBlocks) attend_kernel(const __grid_constant__ AttendParams params) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");  // what folds the parts waits for this grid's end by itself
#endif
  extern __shared__ __align__(16) std::byte shared[];
  using N = Numbers<S::kType>;
  const auto threads = static_cast<int>(blockDim.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warps = threads / 32;
  const int warp = thread / 32;
  const int lane = thread % 32;
  std::byte* const behind_ring = shared + S::ring_bytes(warps);
  auto* const running = reinterpret_cast<float*>(behind_ring + S::query_bytes());
  auto* const rows = reinterpret_cast<const std::byte**>(behind_ring + S::query_bytes() + S::running_bytes()) + 32 * warp;
  auto* const warp_states = reinterpret_cast<float2*>(rows + 32 * (warps - warp));  // [warps, heads]: max and sum
  auto* const names = reinterpret_cast<int*>(warp_states + warps * S::kHeads);
  int* const scan = names + kWindows * kWindow;

  const int request = static_cast<int>(blockIdx.z);
  const int list = static_cast<int>(blockIdx.y);
  const int part = static_cast<int>(blockIdx.x) / params.passes;
  const int pass = static_cast<int>(blockIdx.x) % params.passes;
  const int kv_head = list / params.lists_per_kv_head;
  const int first_head = list * params.list_heads + pass * S::kHeads;
  const int end_head = min((list + 1) * params.list_heads, first_head + S::kHeads);

  const RowTokens tokens(params, request, list, scan);
  const int leaf = leaf_tokens(tokens.total());
  if (part == 0 && pass == 0 && thread == 0) {
    params.partials.row_leaves[request * params.num_lists + list] = leaf == 0 ? 0 : (tokens.total() + leaf - 1) / leaf;
  }
  const int first = part * params.partials.leaves_per_part * leaf;
  const int end = min(tokens.total(), first + params.partials.leaves_per_part * leaf);
  if (first >= end) return;

  const int tile_stride = kTileTokens * warps;  // tokens that the warps take together
  const int num_tiles = (end - first + tile_stride - 1) / tile_stride;
  const int tiles_per_window = kWindow / tile_stride;
  std::byte* const ring = shared + warp * S::kStages * S::kTileBytes;
  const auto look_up = [&](int window) {
    const int from = first + window * kWindow;
    if (from < end) tokens.look_up(params, from, min(end, from + kWindow), names + window % kWindows * kWindow);
  };
  const auto valid_tokens = [&](int tile) {
    return min(max(end - first - tile * tile_stride - warp * kTileTokens, 0), kTileTokens);
  };
  const auto copy_tile = [&](int tile) {
    const int valid = tile < num_tiles ? valid_tokens(tile) : 0;
    if (valid > 0) {
      const int window = tile / tiles_per_window;
      const int offset = (tile - window * tiles_per_window) * tile_stride + warp * kTileTokens;
      const int name = names[window % kWindows * kWindow + offset + min(lane % 16, valid - 1)];
      rows[lane] = row_of_token(lane < 16 ? params.keys : params.values, kv_head, params.block_tokens, name);
      __syncwarp();
      const std::uint32_t target = mma16::shared_address(ring + tile % S::kStages * S::kTileBytes);
      constexpr int kChunks = S::kRowBytes / 16;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
#pragma unroll(S::kColumns == 1 ? 8 : 4)
        for (int i = 0; i < kTileTokens * kChunks / 32; ++i) {
          const int row = (32 * i + lane) / kChunks;
          const int chunk = (32 * i + lane) % kChunks;
          mma16::copy_async(target + side * S::kSideBytes + row * S::kRowStride + chunk * 16,
                            rows[16 * side + row] + chunk * 16, row < valid);
        }
      }
    }
    mma16::commit_copies();
  };

  look_up(0);
  look_up(1);
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < S::kStages - 1; ++tile) {
    copy_tile(tile);
    __syncwarp();
  }
  Queries<S> queries;
  queries.load(params, request, first_head, end_head, reinterpret_cast<uint2*>(behind_ring), warp, warps, lane);
  if constexpr (S::kSharedQueries) __syncthreads();
  WarpState<S> state;
  state.clear();

  // At a leaf's end the block's threads share its state out among them: these take `head`, every `head_threads`-th float4.
  const int head_threads = threads / S::kHeads;
  const int head = thread / head_threads;
  float* const running_row = running + head * S::kStateStride;
  float running_max = kNoLogit;
  float running_sum = 0.0F;
  for (int i = 4 * (thread % head_threads); i < S::kHeadDim; i += 4 * head_threads) {
    *reinterpret_cast<float4*>(running_row + i) = {0.0F, 0.0F, 0.0F, 0.0F};
  }
  const int tiles_per_leaf = leaf / tile_stride;
  int tiles_left = min(tiles_per_leaf, num_tiles);
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile % tiles_per_window == 0) {
      if (tile > 0) __syncthreads();  // nobody reads the window before the last any more, and the next one is complete
      look_up(tile / tiles_per_window + 2);
    }
    mma16::wait_copies<S::kStages - 2>();
    __syncwarp();
    copy_tile(tile + S::kStages - 1);
    std::byte* const current = ring + tile % S::kStages * S::kTileBytes;
    const int valid = valid_tokens(tile);
    if (valid > 0) add_tile<S>(params, request, first_head, end_head, current, valid, queries, state, lane);
    if (--tiles_left > 0) continue;
    tiles_left = min(tiles_per_leaf, num_tiles - tile - 1);

    // The leaf is done. Its tile of the ring is free until the next turn: the warp's state goes there.
    __syncwarp();
    auto* const own = reinterpret_cast<float*>(current);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = state.sum[column][i];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        const int row = 8 * column + 2 * (lane % 4) + i;
        if (lane < 4) warp_states[warp * S::kHeads + row] = {state.max[column][i], sum};
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            own[row * S::kStateStride + 16 * step + 8 * half + lane / 4] =
                state.out[column][step][2 * half + i] * (1.0F / N::kWeightScale);
          }
        }
      }
    }
    state.clear();
    __syncthreads();
    float max = kNoLogit;
    for (int other = 0; other < warps; ++other) max = fmaxf(max, warp_states[other * S::kHeads + head].x);
    float scale[kMaxWarps] = {};
    float sum = 0.0F;
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      if (other >= warps) break;
      const float2 from = warp_states[other * S::kHeads + head];
      scale[other] = from.x == max ? 1.0F : exp_difference(from.x, max);
      sum = fmaf(from.y, scale[other], sum);
    }
    const FoldScales scales = fold_scales(running_max, max);
    running_max = scales.max;
    running_sum = fold(running_sum, sum, scales);
    const bool last = tile + 1 == num_tiles;
    const std::int64_t slot =
        (std::int64_t{request} * params.query_heads + first_head + head) * params.partials.parts_per_row + part;
    const bool writes = last && first_head + head < end_head;
    if (writes && thread % head_threads == 0) {
      params.partials.max_and_sum[2 * slot] = running_max;
      params.partials.max_and_sum[2 * slot + 1] = running_sum;
    }
    const std::byte* const states = shared + tile % S::kStages * S::kTileBytes;
    for (int i = 4 * (thread % head_threads); i < S::kHeadDim; i += 4 * head_threads) {
      float4 out = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int other = 0; other < kMaxWarps; ++other) {
        if (other >= warps) break;
        const auto* const row = reinterpret_cast<const float*>(states + other * S::kStages * S::kTileBytes);
        const float4 from = *reinterpret_cast<const float4*>(row + head * S::kStateStride + i);
        out = {fmaf(from.x, scale[other], out.x), fmaf(from.y, scale[other], out.y), fmaf(from.z, scale[other], out.z),
               fmaf(from.w, scale[other], out.w)};
      }
      auto* const into = reinterpret_cast<float4*>(running_row + i);
      out = fold(*into, out, scales);
      *into = out;
      if (writes) *reinterpret_cast<float4*>(params.partials.out + slot * S::kHeadDim + i) = out;
    }
    __syncthreads();
  }
}

template <class S>
void launch(const AttendParams& params, int parts, Stream stream) {
  int device = 0;
  int most_shared = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  int warps = kMaxWarps;
  while (warps > 1 && S::shared_bytes(warps) > most_shared) warps /= 2;
  const int bytes = S::shared_bytes(warps);
  check(cudaFuncSetAttribute(attend_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(parts * params.passes), static_cast<unsigned>(params.num_lists),
                  static_cast<unsigned>(params.num_requests));
  attend_kernel<S><<<grid, 32 * warps, bytes, stream>>>(params);
  check_launch("attend_kernel");
}

template <int kHeadDim>
void launch_instance(const AttendParams& params, DType dtype, int parts, Stream stream) {
  if constexpr (has_wide_instance(DType::kF16, kHeadDim)) {
    if (params.list_heads > 8) {
      if (dtype == DType::kF16) return launch<Shape<DType::kF16, kHeadDim, 2>>(params, parts, stream);
      if (dtype == DType::kBF16) return launch<Shape<DType::kBF16, kHeadDim, 2>>(params, parts, stream);
    }
  }
  if (dtype == DType::kF16) return launch<Shape<DType::kF16, kHeadDim, 1>>(params, parts, stream);
  if (dtype == DType::kBF16) return launch<Shape<DType::kBF16, kHeadDim, 1>>(params, parts, stream);
  launch<Shape<DType::kF32, kHeadDim, 1>>(params, parts, stream);
}

}  // namespace locks::cuda::attend_stage
