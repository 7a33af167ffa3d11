// The parts of a list become one, for one head a CTA: scaled to the skipped mass, rotated back, merged into its state.
#include "attend/complete_launch.h"
#include "cuda/check.h"
#include "cuda/rotation.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::complete_kernels {
namespace {

constexpr int kThreads = 128;
static_assert(kParts == 32, "a lane a part");

__global__ void __launch_bounds__(kThreads) merge_completion(const __grid_constant__ Merge args) {
  constexpr int kWords = kMaxHeadDim / 32;
  __shared__ float mean[kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.y);
  const float log_mass = args.skipped_log_mass[request * args.skipped_request_stride + head * args.skipped_head_stride];
  const int floats = partial_floats(args.head_dim);
  const float* const parts = args.partials + static_cast<std::int64_t>(request * args.query_heads + head) * kParts * floats;

  const float own_largest = parts[lane * floats + args.head_dim];
  float sum = parts[lane * floats + args.head_dim + 1];
  float largest = own_largest;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const float scale = own_largest == kNoLogit ? 0.0F : exp_difference(own_largest, largest);
  sum = own_largest == kNoLogit && sum == 0.0F ? 0.0F : sum * (own_largest == kNoLogit ? 1.0F : scale);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (sum == 0.0F || log_mass == kNoLogit) return;  // the whole CTA

  for (int dim = static_cast<int>(threadIdx.x); dim < kMaxHeadDim; dim += kThreads) {
    const float* const own = parts + min(dim, args.head_dim - 1);
    float values[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) values[part] = own[part * floats];
    float value = 0.0F;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float factor = __shfl_sync(kAllLanes, scale, part);
      if (factor != 0.0F) value = __fmaf_rn(values[part], factor, value);  // nobody wrote the values of an empty part
    }
    mean[dim] = value / sum;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float x[kWords];
#pragma unroll
  for (int k = 0; k < kWords; ++k) x[k] = mean[32 * k + lane];
  hadamard(x, args.rotation, lane);
  change_signs(x, args.rotation, lane);

  float* const state = args.states + request * args.states_request_stride + head * args.states_head_stride;
  const FoldScales scales = fold_scales(state[0], log_mass);
  const float state_sum = fold(state[1], 1.0F, scales);
  __syncwarp();
  if (lane == 0) {
    state[0] = scales.max;
    state[1] = state_sum;
  }
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int dim = 32 * k + lane;
    if (dim < args.head_dim) state[2 + dim] = fold(state[2 + dim], x[k], scales);
  }
}

}  // namespace

void launch(const Merge& args, Stream stream) {
  merge_completion<<<dim3(args.query_heads, args.requests), kThreads, 0, stream>>>(args);
  check_launch("merge_completion");
}

}  // namespace locks::cuda::complete_kernels
