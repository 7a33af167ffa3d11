// The partial states of a row, a leaf each, become one: leaf by leaf in a group, then group by group.
#pragma once

#include "attend/attend_cuda.h"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::attend_stage {

/// One dimension of a head's state, its max and sum beside it.
struct Element {
  float max = kNoLogit;
  float sum = 0.0F;
  float value = 0.0F;

  __device__ __forceinline__ void join(float other_max, float other_sum, float other_value) {
    const FoldScales scales = fold_scales(max, other_max);
    max = scales.max;
    sum = fold(sum, other_sum, scales);
    value = fold(value, other_value, scales);
  }
};

/// Of a group of leaves: what their values are multiplied by.
struct Group {
  float max;
  float sum = 0.0F;
  FoldScales scales[kGroupLeaves];

  /// All lanes of a warp. Lane `base` + i (`base` a multiple of the group) holds max and sum of the i-th of `leaves` leaves.
  __device__ __forceinline__ Group(float2 own, int base, int leaves) {
    // Each lane makes the scales of its leaf, from the largest max before it.
    const auto index = static_cast<int>(threadIdx.x % kGroupLeaves);
    const float own_max = index < leaves ? own.x : kNoLogit;
    max = own_max;
#pragma unroll
    for (int step = 1; step < kGroupLeaves; step *= 2) {
      const float before = __shfl_up_sync(~0U, max, step);
      if (index >= step) max = fmaxf(before, max);
    }
    float before = __shfl_up_sync(~0U, max, 1);
    if (index == 0) before = kNoLogit;
    const FoldScales own_scales = fold_scales(before, own_max);
#pragma unroll
    for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
      scales[leaf] = {0.0F, __shfl_sync(~0U, own_scales.into, base + leaf), __shfl_sync(~0U, own_scales.from, base + leaf)};
      const float from = __shfl_sync(~0U, own.y, base + leaf);
      if (leaf < leaves) sum = fold(sum, from, scales[leaf]);
    }
    max = __shfl_sync(~0U, max, base + kGroupLeaves - 1);
  }
};

/// A row of few parts: a thread for a dimension asks for all of them, and waits for no other.
class FewParts {
 public:
  static constexpr int kMost = 4 * kGroupLeaves;

  __device__ __forceinline__ void ask(const Partials& partials, int parts, int head_dim, std::int64_t row) {
    const auto dim = static_cast<int>(threadIdx.x);
    const auto lane = static_cast<int>(threadIdx.x % 32);
    if (lane < parts) own_ = reinterpret_cast<const float2*>(partials.max_and_sum)[row + lane];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < parts && dim < head_dim) values_[i] = partials.out[(row + i) * head_dim + dim];
    }
  }
  [[nodiscard]] __device__ __forceinline__ Element fold(int leaves) const {
    Element row;
#pragma unroll
    for (int first = 0; first < kMost; first += kGroupLeaves) {
      if (first >= leaves) break;
      const Group group(own_, first, leaves - first);
      float value = 0.0F;
#pragma unroll
      for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
        if (first + leaf < leaves) value = cuda::fold(value, values_[first + leaf], group.scales[leaf]);
      }
      row.join(group.max, group.sum, value);
    }
    return row;
  }

 private:
  float2 own_ = {kNoLogit, 0.0F};  // max and sum of the lane's part
  float values_[kMost];
};

/// A row of any number of parts: a warp for a group.
class ManyParts {
 public:
  struct Shared {
    float4 out[kMaxGroups][kMaxHeadDim / 4];
    float max[kMaxGroups];
    float sum[kMaxGroups];
  };

  __device__ __forceinline__ void ask(const Partials& partials, int head_dim, std::int64_t row) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const int first = first_leaf();
    const int parts = partials.parts - first;
    const int quads = head_dim / 4;
    out_ = reinterpret_cast<const float4*>(partials.out) + (row + first) * quads;
    if (lane < min(kGroupLeaves, parts)) {
      own_ = reinterpret_cast<const float2*>(partials.max_and_sum)[row + first + lane];
    }
#pragma unroll
    for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
      if (lane < quads && leaf < parts) values_[leaf] = out_[leaf * quads + lane];
    }
  }
  /// What a thread has of its dimension; all threads of the block.
  [[nodiscard]] __device__ __forceinline__ Element fold(int head_dim, int leaves, Shared& shared) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const int first = first_leaf();
    const int quads = head_dim / 4;
    if (first < leaves) {
      const Group group(own_, 0, leaves - first);
      if (lane == 0) {
        shared.max[thread / 32] = group.max;
        shared.sum[thread / 32] = group.sum;
      }
      for (int quad = lane; quad < quads; quad += 32) {
        float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
        for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
          if (first + leaf < leaves) total = cuda::fold(total, values_[leaf], group.scales[leaf]);
        }
        shared.out[thread / 32][quad] = total;
#pragma unroll
        for (int leaf = 0; leaf < kGroupLeaves; ++leaf) {
          if (quad + 32 < quads && first + leaf < leaves) values_[leaf] = out_[leaf * quads + quad + 32];
        }
      }
    }
    __syncthreads();
    Element row;  // there are more threads than dimensions
    for (int i = 0; i * kGroupLeaves < leaves; ++i) {
      const float value = thread < head_dim ? reinterpret_cast<const float*>(shared.out[i])[thread] : 0.0F;
      row.join(shared.max[i], shared.sum[i], value);
    }
    return row;
  }

 private:
  static __device__ __forceinline__ int first_leaf() { return static_cast<int>(threadIdx.x / 32) * kGroupLeaves; }
  const float4* out_;
  float2 own_ = {kNoLogit, 0.0F};
  float4 values_[kGroupLeaves];
};

}  // namespace locks::cuda::attend_stage
