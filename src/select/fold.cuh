// Sums over pages in the order of share.h, by half-warps: lane i of 16 is thread i.
#pragma once

#include <cstdint>

#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr unsigned kWarp = 0xFFFFFFFFU;

/// Sum of the 16 lanes of each half-warp, in its lane 0. All threads of the warp take part.
__device__ inline float fold_half_warp(float lane_sum) {
  const unsigned lane = threadIdx.x % kLanes;
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kWarp, lane_sum, half, kLanes);
    if (lane < half) lane_sum += other;
  }
  return lane_sum;
}

__device__ inline float largest_of_half_warp(float value) {
  for (unsigned half = kLanes / 2; half > 0; half /= 2) value = fmaxf(value, __shfl_xor_sync(kWarp, value, half, kLanes));
  return value;
}

__device__ inline float from_lane_0(float value) { return __shfl_sync(kWarp, value, 0, kLanes); }

/// A head's whole mass, in every lane of the half-warp that asks. A lane keeps its first blocks: those of
/// contexts up to half a million tokens, which it asks for all at once.
__device__ inline select::WholeMass half_warp_whole_mass(const select::BlockMass* blocks, int num_blocks,
                                                         float always_log_mass) {
  constexpr int kKept = 8;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  float2 kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {  // no branches: the reads go out together
    const int block = lane + i * kLanes;
    kept[i] = block < num_blocks ? *reinterpret_cast<const float2*>(blocks + block) : float2{-kInfinity, 0.0F};
  }
  float peak = always_log_mass;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (kept[i].y > 0.0F) peak = fmaxf(peak, kept[i].x);
  }
#pragma unroll 1
  for (int block = lane + kKept * kLanes; block < num_blocks; block += kLanes) {
    if (blocks[block].sum > 0.0F) peak = fmaxf(peak, blocks[block].origin);
  }
  peak = largest_of_half_warp(peak);
  const float origin = peak > -kInfinity ? peak : 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (i * kLanes < num_blocks) sum += select::from_origin({kept[i].x, kept[i].y}, origin);
  }
#pragma unroll 1
  for (int block = lane + kKept * kLanes; block < num_blocks; block += kLanes) {
    sum += select::from_origin(blocks[block], origin);
  }
  return select::whole_mass(always_log_mass, origin, from_lane_0(fold_half_warp(sum)));
}

/// The logarithm of the mass of what is always attended; a NaN is no mass.
__device__ inline float always_log_mass(const Lists& lists, int request, int head) {
  const float* const state = lists.args.states.at(request, head);
  // A state's sum of weights is at least 1, or 0 if it saw nothing.
  const float log_mass = state[1] > 0.0F ? state[0] + select::share_log(state[1]) : -kInfinity;
  return log_mass >= -kInfinity ? log_mass : -kInfinity;
}

}  // namespace locks::cuda::select_kernels
