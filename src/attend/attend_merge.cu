// Folds the partial states of rows, in the order of the tokens and whatever the blocks were: the second launch of attention.
#include "attend/attend_cuda.h"
#include "cuda/check.h"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::attend_stage {
namespace {

struct MergeParams {
  Partials partials;
  SoftmaxStates states;
  int num_lists = 0;
  int list_heads = 0;
  int query_heads = 0;
  int head_dim = 0;
  bool accumulate = false;
};

/// Waits for the kernel before this one, which let it start early.
__device__ __forceinline__ void wait_for_parts() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ int row_leaves(const MergeParams& params, int request, int head) {
  return params.partials.row_leaves[request * params.num_lists + head / params.list_heads];
}

/// Elements dim, dim + step ... of a row's result join what the states hold.
template <class Result>
__device__ __forceinline__ void store(const MergeParams& params, int request, int head, float max, float sum,
                                      const Result& result, int thread, int threads) {
  float* const state = params.states.at(request, head, 0);
  FoldScales scales = {max, 0.0F, 1.0F};
  float into_sum = 0.0F;
  if (params.accumulate) {
    scales = fold_scales(state[0], max);
    into_sum = state[1];
  }
  __syncwarp();
  for (int dim = thread; dim < params.head_dim; dim += threads) {
    state[2 + dim] = params.accumulate ? fold(state[2 + dim], result(dim), scales) : result(dim);
  }
  // Everyone has read the old max by the time it is overwritten.
  if (threads > 32) __syncthreads();
  __syncwarp();
  if (thread == 0) {
    state[0] = scales.max;
    state[1] = params.accumulate ? fold(into_sum, sum, scales) : sum;
  }
}

/// A leaf a part: a block for a query head, a warp for a group of leaves.
constexpr int kLeafThreads = 32 * kMaxGroups;
__global__ void __launch_bounds__(kLeafThreads) merge_leaves(const __grid_constant__ MergeParams params) {
  __shared__ float4 out[kMaxGroups][kMaxHeadDim / 4];
  __shared__ float group_max[kMaxGroups];
  __shared__ float group_sum[kMaxGroups];
  const auto head = static_cast<int>(blockIdx.x);
  const auto request = static_cast<int>(blockIdx.y);
  const auto thread = static_cast<int>(threadIdx.x);
  const int group = thread / 32;
  const int lane = thread % 32;
  const std::int64_t row = (std::int64_t{request} * params.query_heads + head) * params.partials.parts_per_row;
  wait_for_parts();
  // Everything is asked for at once, before it is known how many leaves there are: the parts that a longest row would have.
  const int leaves = row_leaves(params, request, head);
  const int first = group * kGroupLeaves;
  if (first < params.partials.parts) {
    const int parts = params.partials.parts - first;
    float2 own = {kNoLogit, 0.0F};
    if (lane < min(kGroupLeaves, parts)) {
      own = reinterpret_cast<const float2*>(params.partials.max_and_sum)[row + first + lane];
    }
    const int quads = params.head_dim / 4;
    const auto* const part_out = reinterpret_cast<const float4*>(params.partials.out) + (row + first) * quads;
    float4 leaf_out[kGroupLeaves];
#pragma unroll
    for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
      if (lane < quads && leaf < parts) leaf_out[leaf] = part_out[leaf * quads + lane];
    }
    FoldScales scales[kGroupLeaves];
    float max = kNoLogit;
    float sum = 0.0F;
#pragma unroll
    for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
      scales[leaf] = fold_scales(max, __shfl_sync(~0U, own.x, leaf));
      const float from = __shfl_sync(~0U, own.y, leaf);
      if (first + leaf >= leaves) continue;
      max = scales[leaf].max;
      sum = fold(sum, from, scales[leaf]);
    }
    if (lane == 0) {
      group_max[group] = max;
      group_sum[group] = sum;
    }
    for (int quad = lane; quad < quads; quad += 32) {
      float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
        if (first + leaf < leaves) total = fold(total, leaf_out[leaf], scales[leaf]);
      }
      out[group][quad] = total;
#pragma unroll
      for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
        if (quad + 32 < quads && first + leaf < leaves) leaf_out[leaf] = part_out[leaf * quads + quad + 32];
      }
    }
  }
  __syncthreads();
  const int groups = (leaves + kGroupLeaves - 1) / kGroupLeaves;
  if (groups == 0 && params.accumulate) return;
  float max = kNoLogit;
  float sum = 0.0F;
  float total = 0.0F;  // of this thread's dimension; there are more threads than dimensions
  for (int i = 0; i < groups; ++i) {
    const FoldScales scales = fold_scales(max, group_max[i]);
    max = scales.max;
    sum = fold(sum, group_sum[i], scales);
    if (thread < params.head_dim) total = fold(total, reinterpret_cast<const float*>(out[i])[thread], scales);
  }
  store(params, request, head, max, sum, [total](int) { return total; }, thread, kLeafThreads);
}

/// A group a part: a warp for a query head.
constexpr int kGroupThreads = 128;
__global__ void __launch_bounds__(kGroupThreads) merge_groups(const __grid_constant__ MergeParams params) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) * (kGroupThreads / 32) + thread / 32;
  const auto request = static_cast<int>(blockIdx.y);
  wait_for_parts();
  if (head >= params.query_heads) return;
  const int groups = (row_leaves(params, request, head) + kGroupLeaves - 1) / kGroupLeaves;
  if (groups == 0 && params.accumulate) return;
  const std::int64_t row = (std::int64_t{request} * params.query_heads + head) * params.partials.parts_per_row;
  float2 own = {kNoLogit, 0.0F};
  if (lane < groups) own = reinterpret_cast<const float2*>(params.partials.max_and_sum)[row + lane];
  const float* const parts = params.partials.out + row * params.head_dim;
  float total[kMaxHeadDim / 32] = {};
  float max = kNoLogit;
  float sum = 0.0F;
#pragma unroll 4
  for (int i = 0; i < groups; ++i) {
    const FoldScales scales = fold_scales(max, __shfl_sync(~0U, own.x, i));
    max = scales.max;
    sum = fold(sum, __shfl_sync(~0U, own.y, i), scales);
#pragma unroll
    for (int k = 0; k < kMaxHeadDim / 32; ++k) {
      const int dim = lane + 32 * k;
      if (dim < params.head_dim) total[k] = fold(total[k], parts[std::int64_t{i} * params.head_dim + dim], scales);
    }
  }
  const auto result = [&](int dim) {
    float value = 0.0F;
#pragma unroll
    for (int k = 0; k < kMaxHeadDim / 32; ++k) value = dim / 32 == k ? total[k] : value;
    return value;
  };
  store(params, request, head, max, sum, result, lane, 32);
}

__global__ void finish_kernel(const __grid_constant__ SoftmaxStates states, const __grid_constant__ View<float, 3> out) {
  const float* const state = states.at(blockIdx.y, blockIdx.x, 0);
  const float sum = state[1];
  for (auto dim = static_cast<int>(threadIdx.x); dim < out.shape[2]; dim += static_cast<int>(blockDim.x)) {
    out(blockIdx.y, blockIdx.x, dim) = sum == 0.0F ? 0.0F : state[2 + dim] / sum;
  }
}

/// A merge may be launched while the parts are still computed if it waits for their end. Code for architectures before 9.0
/// does not, whatever the device is that runs it.
template <class Kernel>
bool waits_for_parts(Kernel* merge) {
  constexpr int kFirstThatWaits = 90;
  cudaFuncAttributes compiled{};
  check(cudaFuncGetAttributes(&compiled, merge), "cudaFuncGetAttributes");
  return compiled.ptxVersion >= kFirstThatWaits;
}

}  // namespace

void launch_merge(const AttendParams& params, int head_dim, SoftmaxStates states, bool accumulate, Stream stream) {
  const MergeParams merge{params.partials,    states,   params.num_lists, params.list_heads,
                          params.query_heads, head_dim, accumulate};
  const bool leaves = params.partials.leaves_per_part == 1;
  auto* const kernel = leaves ? merge_leaves : merge_groups;
  const auto heads = static_cast<unsigned>(params.query_heads);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = leaves ? kLeafThreads : kGroupThreads;
  config.gridDim = dim3(leaves ? heads : (heads + kGroupThreads / 32 - 1) / (kGroupThreads / 32),
                        static_cast<unsigned>(params.num_requests));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = waits_for_parts(kernel) ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, merge), "cudaLaunchKernelEx");
}

void launch_finish(SoftmaxStates states, View<float, 3> out, Stream stream) {
  const dim3 grid(static_cast<unsigned>(out.shape[1]), static_cast<unsigned>(out.shape[0]));
  finish_kernel<<<grid, 128, 0, stream>>>(states, out);
  check_launch("finish_kernel");
}

}  // namespace locks::cuda::attend_stage
