// The parts of a list become the completion of a head: scaled to the skipped mass and rotated back. For kernels that take a
// head a CTA; one of them merges attention's parts beside.
#pragma once

#include "attend/complete_launch.h"
#include "cuda/rotation.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kFolds = 16;  // every 16th part is folded apart, whatever the threads, so that their number changes no bit
constexpr int kMergeThreads = 32 * kFolds;

/// Parts of a head, at most kMost. A lane has four dimensions (and with two quads, above 128 dimensions, four that lie 128
/// behind), a warp one of the folds or several.
template <int kQuads, int kThreads = kMergeThreads, int kMost = kMaxParts>
class HeadParts {
  static constexpr int kDims = 128 * kQuads;
  static_assert(kThreads >= kDims && kFolds % (kThreads / 32) == 0 && kMost % kFolds == 0);

 public:
  struct Shared {
    float4 sums[kFolds][32 * kQuads];
    float mean[kDims];
  };

  /// Asks for as many as a list can have, before it is known how many there are.
  __device__ __forceinline__ void ask(const Merge& args, int request, int head) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int list = head / args.list_heads;
    const std::int64_t first = first_part(request, args.query_heads, head);
    const float* const values = args.parts.values + first * args.head_dim;
    const auto* const max_and_sum = reinterpret_cast<const float2*>(args.parts.max_and_sum) + first;
    entries_ = args.num_completed[request * args.num_request_stride + list * args.num_list_stride];
    log_mass_ = args.skipped_log_mass[request * args.skipped_request_stride + head * args.skipped_head_stride];
    const int most = parts_of(args.capacity);
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) {
      if (32 * i + lane < most) own_[i] = max_and_sum[32 * i + lane];
    }
#pragma unroll
    for (int own = 0; own < kOwnFolds; ++own) {
#pragma unroll
      for (int i = 0; i < kFoldParts; ++i) {
        const int part = kFolds * i + kWarps * own + warp;
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          const int dim = 4 * (32 * quad + lane);
          if (part < most && dim < args.head_dim) {
            values_[own][i][quad] = *reinterpret_cast<const float4*>(values + part * args.head_dim + dim);
          }
        }
      }
    }
  }

  /// Leaves the rotated mean in `shared.mean`. False, for the whole CTA, if there is nothing to complete.
  __device__ __forceinline__ bool fold(const Merge& args, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int parts = parts_of(min(max(entries_, 0), args.capacity));
    float largest = kNoLogit;
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) {
      if (32 * i + lane >= parts) own_[i] = {kNoLogit, 0.0F};
      largest = fmaxf(largest, own_[i].x);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    float scale[kLaneParts];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i) {
      scale[i] = own_[i].x == kNoLogit ? 0.0F : exp2_difference(own_[i].x, largest);
      sum = __fmaf_rn(own_[i].y, scale[i], sum);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (sum == 0.0F || log_mass_ == kNoLogit) return false;

#pragma unroll
    for (int own = 0; own < kOwnFolds; ++own) {
      const int fold = kWarps * own + warp;
      float4 total[kQuads] = {};
#pragma unroll
      for (int i = 0; i < kFoldParts; ++i) {
        const int part = kFolds * i + fold;
        const float factor = __shfl_sync(kAllLanes, scale[i * kFolds / 32], part % 32);
        if (factor == 0.0F) continue;  // nobody wrote the values of a part that does not exist
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          const float4 value = values_[own][i][quad];
          float4& into = total[quad];
          into = {__fmaf_rn(value.x, factor, into.x), __fmaf_rn(value.y, factor, into.y), __fmaf_rn(value.z, factor, into.z),
                  __fmaf_rn(value.w, factor, into.w)};
        }
      }
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        if (4 * (32 * quad + lane) < args.head_dim) shared.sums[fold][32 * quad + lane] = total[quad];
      }
    }
    __syncthreads();
    if (thread < kDims) {
      float value = 0.0F;
      if (thread < args.head_dim) {
#pragma unroll
        for (int i = 0; i < kFolds; ++i) value += reinterpret_cast<const float*>(shared.sums[i])[thread];
      }
      shared.mean[thread] = value / sum;
    }
    __syncthreads();
    if (warp == 0) {
      constexpr int kWords = kDims / 32;
      float x[kWords];
#pragma unroll
      for (int k = 0; k < kWords; ++k) x[k] = shared.mean[32 * k + lane];
      hadamard(x, args.rotation, lane);
      change_signs(x, args.rotation, lane);
#pragma unroll
      for (int k = 0; k < kWords; ++k) shared.mean[32 * k + lane] = x[k];
    }
    __syncthreads();
    return true;
  }
  [[nodiscard]] __device__ __forceinline__ float log_mass() const { return log_mass_; }

 private:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kOwnFolds = kFolds / kWarps;
  static constexpr int kFoldParts = kMost / kFolds;
  static constexpr int kLaneParts = (kMost + 31) / 32;
  int entries_ = 0;
  float log_mass_ = kNoLogit;
  float2 own_[kLaneParts];  // largest logit and sum of weights
  float4 values_[kOwnFolds][kFoldParts][kQuads];
};

}  // namespace locks::cuda::complete_kernels
