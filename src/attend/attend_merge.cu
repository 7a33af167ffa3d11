// Folds the partial states of rows, in the order of the tokens and whatever the blocks were: the second launch of attention.
#include <algorithm>
#include <type_traits>

#include "attend/attend_parts.cuh"
#include "attend/complete_merge.cuh"
#include "cuda/chain.cuh"
#include "cuda/head_rows.cuh"
#include "cuda/launch_kernel.cuh"

namespace locks::cuda::attend_stage {
namespace {

struct MergeParams {
  Partials partials;
  const std::int32_t* context_tokens = nullptr;
  int whole_tokens = 0;  // AttendParams has both
  int listed_tokens = 0;
  Result result;
  complete_kernels::Merge completion;
  int num_lists = 0;
  int list_heads = 0;
  int query_heads = 0;
  int head_dim = 0;
};

__device__ __forceinline__ int leaves_of_row(const MergeParams& params, int request, int head) {
  return params.partials.leaves[request * params.num_lists + head / params.list_heads];
}

/// Of the request's rows at most: known before those are.
__device__ __forceinline__ int most_leaves_of(const MergeParams& params, int request) {
  const int context = params.whole_tokens > 0 ? params.context_tokens[request] : 0;
  const bool whole = params.whole_tokens > 0 && context <= params.whole_tokens;
  return whole ? leaves_of(context, params.partials.cut) : most_leaves(params.listed_tokens, params.partials.cut);
}

/// What the states hold of a dimension, if that counts. To be read by all before one writes.
__device__ __forceinline__ Element held(const Result& result, int request, int head, int dim, int head_dim) {
  if (!result.accumulate) return {};
  const float* const state = result.states.at(request, head, 0);
  return {state[0], state[1], dim < head_dim ? state[2 + dim] : 0.0F};
}
__device__ __forceinline__ void write(const Result& result, int request, int head, int dim, const Element& element) {
  if (result.out.data != nullptr) {
    write_element(result.out, offset_of(result.out, request, head, dim),
                  element.sum == 0.0F ? 0.0F : element.value / element.sum);
    return;
  }
  float* const state = result.states.at(request, head, 0);
  state[2 + dim] = element.value;
  if (dim > 0) return;
  state[0] = element.max;
  state[1] = element.sum;
}

/// A leaf a part: a block for a query head. With `kQuads` of completion's parts, or none of them.
constexpr int kLeafThreads = 32 * kMaxGroups;
static_assert(kLeafThreads == complete_kernels::kMergeThreads);
template <bool kFew, int kQuads>
__global__ void __launch_bounds__(kLeafThreads) merge_leaves(const __grid_constant__ MergeParams params) {
  const auto head = static_cast<int>(blockIdx.x);
  const auto request = static_cast<int>(blockIdx.y);
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = (std::int64_t{request} * params.query_heads + head) * params.partials.parts_per_row;
  const int most = most_leaves_of(params, request);
  wait_for_previous();
  let_next_start();
  // Everything is asked for at once, before it is known how many leaves there are.
  constexpr bool kCompletes = kQuads > 0;
  complete_kernels::HeadParts<std::max(1, kQuads)> completion;
  if constexpr (kCompletes) completion.ask(params.completion, request, head);
  const int leaves = leaves_of_row(params, request, head);
  Element element = held(params.result, request, head, thread, params.head_dim);
  Element own;
  if (kFew || most <= FewParts::kMost) {
    FewParts parts;
    parts.ask(params.partials, most, params.head_dim, row);
    own = parts.fold(leaves);
    if (params.result.accumulate) __syncthreads();  // all have read what the states hold
  } else {
    __shared__ ManyParts::Shared shared;
    ManyParts parts;
    parts.ask(params.partials, params.head_dim, row);
    own = parts.fold(params.head_dim, leaves, shared);
  }
  if (params.result.accumulate) {
    element.join(own.max, own.sum, own.value);
  } else {
    element = own;
  }
  if constexpr (kCompletes) {
    __shared__ typename complete_kernels::HeadParts<kQuads>::Shared shared;
    if (completion.fold(params.completion, shared)) {
      element.join(completion.log_mass(), 1.0F, thread < params.head_dim ? shared.mean[thread] : 0.0F);
    }
  }
  if (thread < params.head_dim) write(params.result, request, head, thread, element);
}

/// A group a part: a warp for a query head.
constexpr int kGroupThreads = 128;
__global__ void __launch_bounds__(kGroupThreads) merge_groups(const __grid_constant__ MergeParams params) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) * (kGroupThreads / 32) + thread / 32;
  const auto request = static_cast<int>(blockIdx.y);
  wait_for_previous();
  let_next_start();
  if (head >= params.query_heads) return;
  const int groups = (leaves_of_row(params, request, head) + kGroupLeaves - 1) / kGroupLeaves;
  const std::int64_t row = (std::int64_t{request} * params.query_heads + head) * params.partials.parts_per_row;
  float2 own = {kNoLogit, 0.0F};
  if (lane < groups) own = reinterpret_cast<const float2*>(params.partials.max_and_sum)[row + lane];
  const float* const parts = params.partials.out + row * params.head_dim;
  Element elements[kMaxHeadDim / 32];
#pragma unroll 4
  for (int i = 0; i < groups; ++i) {
    const float max = __shfl_sync(~0U, own.x, i);
    const float sum = __shfl_sync(~0U, own.y, i);
#pragma unroll
    for (int k = 0; k < kMaxHeadDim / 32; ++k) {
      const int dim = lane + 32 * k;
      const float value = dim < params.head_dim ? parts[std::int64_t{i} * params.head_dim + dim] : 0.0F;
      elements[k].join(max, sum, value);
    }
  }
  Element before[kMaxHeadDim / 32];
#pragma unroll
  for (int k = 0; k < kMaxHeadDim / 32; ++k) before[k] = held(params.result, request, head, lane + 32 * k, params.head_dim);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kMaxHeadDim / 32; ++k) {
    if (params.result.accumulate) {
      before[k].join(elements[k].max, elements[k].sum, elements[k].value);
    } else {
      before[k] = elements[k];
    }
    if (lane + 32 * k < params.head_dim) write(params.result, request, head, lane + 32 * k, before[k]);
  }
}

__global__ void finish_kernel(const __grid_constant__ SoftmaxStates states, const __grid_constant__ HeadRows out) {
  wait_for_previous();
  let_next_start();
  const float* const state = states.at(blockIdx.y, blockIdx.x, 0);
  const float sum = state[1];
  for (auto dim = static_cast<int>(threadIdx.x); dim < out.shape[2]; dim += static_cast<int>(blockDim.x)) {
    const std::int64_t at = offset_of(out, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), dim);
    write_element(out, at, sum == 0.0F ? 0.0F : state[2 + dim] / sum);
  }
}

template <bool kFew>
void launch_leaves(int quads, Launch launch, const MergeParams& params) {
  if (quads == 1) return launch_kernel<merge_leaves<kFew, 1>>(launch, params);
  if (quads == 2) return launch_kernel<merge_leaves<kFew, 2>>(launch, params);
  if (kFew) launch.threads = (params.head_dim + 31) / 32 * 32;
  launch_kernel<merge_leaves<kFew, 0>>(launch, params);
}

}  // namespace

void launch_merge(const AttendParams& params, int head_dim, const Result& result, const complete_kernels::Merge& completion,
                  Stream stream) {
  const MergeParams merge{params.partials, params.context_tokens, params.whole_tokens, params.listed_tokens, result,
                          completion,      params.num_lists,      params.list_heads,   params.query_heads,   head_dim};
  const auto heads = static_cast<unsigned>(params.query_heads);
  const auto requests = static_cast<unsigned>(params.num_requests);
  if (params.partials.leaves_per_part == 1) {
    const Launch launch{"merge_leaves", Start::kEarly, dim3(heads, requests), kLeafThreads, 0, stream};
    const int quads = completion.parts.values == nullptr ? 0 : head_dim <= 128 ? 1 : 2;
    if (params.partials.parts <= FewParts::kMost) return launch_leaves<true>(quads, launch, merge);
    return launch_leaves<false>(quads, launch, merge);
  }
  constexpr unsigned kHeads = kGroupThreads / 32;
  launch_kernel<merge_groups>(
      {"merge_groups", Start::kEarly, dim3((heads + kHeads - 1) / kHeads, requests), kGroupThreads, 0, stream}, merge);
}

void launch_finish(SoftmaxStates states, const HeadRows& out, Stream stream) {
  const dim3 grid(static_cast<unsigned>(out.shape[1]), static_cast<unsigned>(out.shape[0]));
  launch_kernel<finish_kernel>({"finish_kernel", Start::kEarly, grid, 128, 0, stream}, states, out);
}

}  // namespace locks::cuda::attend_stage
