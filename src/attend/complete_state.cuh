// What a warp has seen of a list's completed pages, for up to eight query heads, and how the warps of a CTA become one part.
//
// A lane holds dimensions k head_dim / 4 + kBytes g + i (k 0..3, i below kBytes): what kBytes bytes of a slope's row hold.
#pragma once

#include <bit>

#include "attend/complete_launch.h"
#include "cuda/rotation.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::complete_kernels {

constexpr int kMaxWarps = 8;
constexpr float kNoReference = -1e38F;  // finite, so that it can be taken from what weighs nothing

// Codes of slopes are used as the bf16 that they are where they stand: a byte with some of its bits is so many times 2^-133,
// a subnormal number, which tensor cores multiply exactly. So a code costs one instruction and a half, but
//   - codes count from 0 and not from -1.5, which is made up for at the end by the sum of all weights of slopes;
//   - those weights come 2^kUp times as large: they may be up to 2^63, and what is below 2^-57 is lost;
//   - sums of quarter k are 2^(kUp - 133 + kShift[k]) times what they mean, and means join them as such.
constexpr int kUp = 64;
constexpr int kDown = 133 - kUp;
constexpr int shift_of_quarter(int k) { return k < 2 ? 2 * k : 4; }
constexpr float power_of_two(int exponent) { return std::bit_cast<float>((127 + exponent) << 23); }

/// Tile 2 i + k / 2 of `values` holds byte i of quarters k (row g) and k + 1 (row g + 8), of heads 2 j and 2 j + 1.
template <int kUnits>
struct State {
  static constexpr int kBytes = 2 * kUnits;
  /// What weights are relative to, of heads 2 j and 2 j + 1, in units of log 2: the largest logit or at most kSlack less.
  float reference[2] = {kNoReference, kNoReference};
  float sum = 0.0F;            // of weights, for head g
  float slope_weights = 0.0F;  // sums of this lane's weights of slopes, for head g
  float values[2 * kBytes][4] = {};

  __device__ __forceinline__ void scale(const float (&factor)[2], float factor_of_g) {
    sum *= factor_of_g;
    slope_weights *= factor_of_g;
#pragma unroll
    for (int head = 0; head < 2; ++head) {
#pragma unroll
      for (int tile = 0; tile < 2 * kBytes; ++tile) {
        values[tile][head] *= factor[head];
        values[tile][2 + head] *= factor[head];
      }
    }
  }
};

/// Bytes of a warp's states on their way to the others.
constexpr int state_bytes(int head_dim) { return kHeads * state_floats(head_dim) * static_cast<int>(sizeof(float)); }

/// Merges the states of a CTA's warps in their order and writes the part's. `shared` holds state_bytes for each warp.
template <int kUnits>
__device__ __forceinline__ void write_part(const State<kUnits>& state, int head_dim, int head_count, int warps,
                                           float* shared, const Parts& part) {
  constexpr int kBytes = State<kUnits>::kBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int j = lane % 4;
  const int floats = state_floats(head_dim);
  const int quarter = head_dim / 4;
  float* const states = shared + warp * kHeads * floats;
  if (j == 0) states[g * floats + head_dim + 1] = state.sum;
  float slope_weights = state.slope_weights;
  slope_weights += __shfl_xor_sync(kAllLanes, slope_weights, 1);
  slope_weights += __shfl_xor_sync(kAllLanes, slope_weights, 2);
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const float too_much = __shfl_sync(kAllLanes, slope_weights, 8 * j + 4 * head) * (1.5F * power_of_two(-kUp));
    float* const own = states + (2 * j + head) * floats;
    if (g == 0) own[head_dim] = state.reference[head];
    if (kBytes * g >= quarter) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < kBytes; i += 2) {
        const float unit = power_of_two(kDown - shift_of_quarter(k));
        *reinterpret_cast<float2*>(own + k * quarter + kBytes * g + i) = {
            __fmaf_rn(state.values[2 * i + k / 2][k % 2 * 2 + head], unit, -too_much),
            __fmaf_rn(state.values[2 * i + 2 + k / 2][k % 2 * 2 + head], unit, -too_much)};
      }
    }
  }
  __syncthreads();
  for (int head = warp; head < head_count; head += warps) {
    const float* const own = shared + head * floats;
    float2 from[kMaxWarps];  // a warp that does not exist saw nothing
    float largest = kNoLogit;
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      from[other] = {kNoLogit, 0.0F};
      if (other < warps) from[other] = *reinterpret_cast<const float2*>(own + other * kHeads * floats + head_dim);
      largest = fmaxf(largest, from[other].x);
    }
    float sum = 0.0F;
#pragma unroll
    for (int other = 0; other < kMaxWarps; ++other) {
      from[other].x = exp2_difference(from[other].x, largest);
      sum = __fmaf_rn(from[other].y, from[other].x, sum);
    }
    const std::int64_t own_part = first_part(0, 0, head);
    float* const into = part.values + own_part * head_dim;
    if (lane == 0) *reinterpret_cast<float2*>(part.max_and_sum + 2 * own_part) = {largest, sum};
    for (int dim = 4 * lane; dim < head_dim; dim += 128) {
      float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int other = 0; other < kMaxWarps; ++other) {
        if (other >= warps) continue;
        const float4 value = *reinterpret_cast<const float4*>(own + other * kHeads * floats + dim);
        const float scale = from[other].x;
        total = {__fmaf_rn(value.x, scale, total.x), __fmaf_rn(value.y, scale, total.y), __fmaf_rn(value.z, scale, total.z),
                 __fmaf_rn(value.w, scale, total.w)};
      }
      *reinterpret_cast<float4*>(into + dim) = total;
    }
  }
}

}  // namespace locks::cuda::complete_kernels
