// The completion of a head joins its state: a CTA a head.
#include "attend/complete_merge.cuh"
#include "cuda/chain.cuh"
#include "cuda/head_rows.cuh"
#include "cuda/launch_kernel.cuh"

namespace locks::cuda::complete_kernels {
namespace {

template <int kQuads, int kThreads, int kMost>
__global__ void __launch_bounds__(kThreads)
    merge_completion(const __grid_constant__ Merge args, const __grid_constant__ SoftmaxStates states,
                     const __grid_constant__ HeadRows out) {
  using Parts = HeadParts<kQuads, kThreads, kMost>;
  __shared__ typename Parts::Shared shared;
  wait_for_previous();
  let_next_start();
  const auto dim = static_cast<int>(threadIdx.x);
  const auto head = static_cast<int>(blockIdx.x);
  const auto request = static_cast<int>(blockIdx.y);
  const bool exists = dim < args.head_dim;
  float* const state = states.at(request, head, 0);
  Parts parts;
  parts.ask(args, request, head);
  const float state_max = state[0];
  const float state_sum = state[1];
  const float state_value = exists ? state[2 + dim] : 0.0F;
  FoldScales scales = {state_max, 1.0F, 0.0F};
  float sum = state_sum;
  float value = state_value;
  if (parts.fold(args, shared)) {
    scales = fold_scales(state_max, parts.log_mass());
    sum = fold(state_sum, 1.0F, scales);
    if (exists) value = fold(state_value, shared.mean[dim], scales);
  } else if (out.data == nullptr) {
    return;
  }
  if (out.data != nullptr) {
    if (exists) write_element(out, offset_of(out, request, head, dim), sum == 0.0F ? 0.0F : value / sum);
    return;
  }
  if (exists) state[2 + dim] = value;
  if (dim == 0) {
    state[0] = scales.max;
    state[1] = sum;
  }
}

/// With few parts a warp has four of them, and no warp is without.
template <int kQuads>
void launch_for(const Merge& args, SoftmaxStates states, const HeadRows& out, Stream stream) {
  constexpr int kFewParts = kFolds;
  constexpr int kFewThreads = 128 * kQuads;
  const dim3 grid(static_cast<unsigned>(args.query_heads), static_cast<unsigned>(args.requests));
  const bool few = parts_of(args.capacity) <= kFewParts;
  const Launch launch{"merge_completion", Start::kEarly, grid, few ? kFewThreads : kMergeThreads, 0, stream};
  if (few) return launch_kernel<merge_completion<kQuads, kFewThreads, kFewParts>>(launch, args, states, out);
  launch_kernel<merge_completion<kQuads, kMergeThreads, kMaxParts>>(launch, args, states, out);
}

}  // namespace

void launch(const Merge& args, SoftmaxStates states, const HeadRows& out, Stream stream) {
  if (args.head_dim > 128) return launch_for<2>(args, states, out, stream);
  launch_for<1>(args, states, out, stream);
}

}  // namespace locks::cuda::complete_kernels
