// Scales as they are stored, and the codes that go with them.
#pragma once

#include <cstdint>

#include "summarize/fragments.cuh"

namespace locks::cuda::summarize_stage {

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

/// What numbers in registers must be multiplied by to mean what they stand for: the factor that the rotation left out, and a
/// power of two for pages far from 1. In two factors, so that no product on the way overflows or vanishes.
struct Scale {
  float up[2];
  float down[2];
};
/// For exponents within +-252.
__device__ __forceinline__ Scale make_scale(float unit, float inverse_unit, int exponent) {
  const int half = exponent / 2;
  return {{unit * power_of_two(half), power_of_two(exponent - half)},
          {power_of_two(-half), inverse_unit * power_of_two(half - exponent)}};
}

/// A scale or variance as stored: nearest bf16, never infinite.
__device__ __forceinline__ std::uint32_t finite_bf16(float value) {
  const std::uint32_t bits = __float_as_uint(fminf(value, 0x1.FEp127F));
  return (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
}

/// The bf16 nearest to a step, for storage, and what it means to the numbers in registers. A step whose inverse could
/// overflow stands for nothing next to components near 1: its inverse is 0, which makes every code the middle one.
struct StoredStep {
  std::uint32_t bits;
  float scaled;
  float inverse;
};
__device__ __forceinline__ StoredStep stored_step(float step, const Scale& scale) {
  StoredStep stored;
  stored.bits = finite_bf16(step * scale.up[0] * scale.up[1]);
  stored.scaled = __uint_as_float(stored.bits << 16) * scale.down[0] * scale.down[1];
  stored.inverse = stored.scaled > 1e-30F ? ptx::reciprocal(stored.scaled) : 0.0F;
  return stored;
}

/// Added to numbers of a few bits it leaves them, rounded to integers, in the low bits of a float.
constexpr float kToInteger = 0x1.8p23F;

/// A code in the low byte of `bits`, and the middle of what it stands for, less `zero`, in steps.
struct Code {
  std::uint32_t bits;
  float meaning;
};
/// Mid-rise: floor(x inverse) + half within 0 .. 2 half - 1.
__device__ __forceinline__ Code mid_rise(float x, float inverse, float half) {
  const float code = fminf(fmaxf(__fmaf_rd(x, inverse, kToInteger + half), kToInteger), kToInteger + 2.0F * half - 1.0F);
  return {__float_as_uint(code), code - (kToInteger + half) + 0.5F};
}
/// Mid-tread: round_half_even(x inverse) + half within 1 .. 2 half - 1.
__device__ __forceinline__ Code mid_tread(float x, float inverse, float half) {
  const float code =
      fminf(fmaxf(__fmaf_rn(x, inverse, kToInteger + half), kToInteger + 1.0F), kToInteger + 2.0F * half - 1.0F);
  return {__float_as_uint(code), code - (kToInteger + half)};
}

__device__ __forceinline__ std::uint32_t pack_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// Steps tried, as shares of the one that just reaches the largest value (kStepShares of records.h).
__device__ __forceinline__ constexpr float share(int tried) {
  return tried == 0 ? 1.0F : tried == 1 ? 0.9F : tried == 2 ? 0.8F : tried == 3 ? 0.7F : 0.6F;
}

/// The mid-rise step with the least squared error for the numbers of a rank, which four lanes hold: kCount each, value(i).
template <int kCount, class Value>
__device__ __forceinline__ StoredStep best_step(const Value& value, float half, const Scale& scale) {
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = fmaxf(largest, fabsf(value(i)));
  const float full = largest_of_four(largest) * (half == 2.0F ? 1.0F / 1.5F : 1.0F / 7.5F);
  StoredStep best{};
  float least = 0.0F;
#pragma unroll(kCount > 4 ? 1 : 5)
  for (int tried = 0; tried < 5; ++tried) {
    const StoredStep step = stored_step(share(tried) * full, scale);
    float error = 0.0F;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float size = fabsf(value(i));
      const float middle = fminf(__fmaf_rd(size, step.inverse, kToInteger) - kToInteger + 0.5F, half - 0.5F);
      const float missed = fmaf(-middle, step.scaled, size);
      error = fmaf(missed, missed, error);
    }
    error = sum_of_four(error);
    if (tried == 0 || error < least) {
      best = step;
      least = error;
    }
  }
  return best;
}

}  // namespace locks::cuda::summarize_stage
