// The parts of a list become one, for one head a CTA: scaled to the skipped
// mass, rotated back, merged into its state.
#include "attend/complete_launch.h"
#include "cuda/check.h"
#include "cuda/rotation.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::complete_kernels {
namespace {

constexpr int kThreads = kMaxHeadDim;  // one a dimension
static_assert(kParts == 32, "a lane a part");

__global__ void __launch_bounds__(kThreads) merge_completion(const __grid_constant__ Merge args) {
  constexpr int kWords = kMaxHeadDim / 32;
  __shared__ float mean[kMaxHeadDim];
  const int dim = static_cast<int>(threadIdx.x);
  const int lane = dim % 32;
  const int head = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.y);
  const bool exists = dim < args.head_dim;
  const int floats = partial_floats(args.head_dim);
  const float* const parts = args.partials + static_cast<std::int64_t>(request * args.query_heads + head) * kParts * floats;
  float* const state = args.states + request * args.states_request_stride + head * args.states_head_stride;

  // All that is read, at once.
  const float log_mass = args.skipped_log_mass[request * args.skipped_request_stride + head * args.skipped_head_stride];
  const float own_largest = parts[lane * floats + args.head_dim];
  float sum = parts[lane * floats + args.head_dim + 1];
  float values[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) values[part] = exists ? parts[part * floats + dim] : 0.0F;
  const float state_max = state[0];
  const float state_sum = state[1];
  const float state_value = exists ? state[2 + dim] : 0.0F;

  float largest = own_largest;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const float scale = own_largest == kNoLogit ? 0.0F : exp_difference(own_largest, largest);
  if (own_largest != kNoLogit) sum *= scale;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (sum == 0.0F || log_mass == kNoLogit) return;  // the whole CTA

  float value = 0.0F;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const float factor = __shfl_sync(kAllLanes, scale, part);
    if (factor != 0.0F) value = __fmaf_rn(values[part], factor,
                                          value);  // nobody wrote the values of an empty part
  }
  mean[dim] = value / sum;
  __syncthreads();
  if (dim < 32) {
    float x[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) x[k] = mean[32 * k + lane];
    hadamard(x, args.rotation, lane);
    change_signs(x, args.rotation, lane);
#pragma unroll
    for (int k = 0; k < kWords; ++k) mean[32 * k + lane] = x[k];
  }
  __syncthreads();
  const FoldScales scales = fold_scales(state_max, log_mass);
  if (dim == 0) {
    state[0] = scales.max;
    state[1] = fold(state_sum, 1.0F, scales);
  }
  if (exists) state[2 + dim] = fold(state_value, mean[dim], scales);
}

}  // namespace

void launch(const Merge& args, Stream stream) {
  merge_completion<<<dim3(args.query_heads, args.requests), kThreads, 0, stream>>>(args);
  check_launch("merge_completion");
}

}  // namespace locks::cuda::complete_kernels
