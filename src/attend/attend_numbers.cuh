// How numbers of a cache meet numbers of fp32 on tensor cores, with fp32's accuracy. A cache's f16 and bf16 are exact; what
// they meet (queries, weights) comes in parts that add up to it. f32 caches come in three bf16 parts themselves; e4m3
// becomes f16 on its way from shared memory to the registers.
#pragma once

#include "cuda/e4m3.cuh"
#include "cuda/mma16.cuh"
#include "cuda/ptx.cuh"
#include "locks/types.h"

namespace locks::cuda::attend_stage {

template <DType kType>
struct Numbers;

template <>
struct Numbers<DType::kF16> {
  static constexpr int kBytes = 2;
  static constexpr int kParts = 2;  // of queries and weights
  static constexpr int kSums = 2;   // separate sums, by size: the small ones keep their digits
  // Weights are multiplied by this before they are split, so that their parts stay clear of the smallest f16.
  static constexpr float kWeightScale = 32768.0F;
  // Of the 16 dimensions of a step: what lane 4 g + t holds of a query is dimension t * kLaneStep, kHalfStep further in the
  // second half of a pair of registers, and its neighbour; of a sum, dimension g * kSumStep, and kSumHalf further.
  static constexpr int kLaneStep = 2;
  static constexpr int kHalfStep = 8;
  static constexpr int kSumStep = 1;
  static constexpr int kSumHalf = 8;
  static constexpr bool kScalesQueries = true;  // lest their parts leave the range of f16
  struct Fragment {
    std::uint32_t a[4];
  };

  // Where a lane's share of a tile begins; what is added to it for a step is a constant.
  template <int kStride>
  static __device__ __forceinline__ std::uint32_t keys_of_lane(std::uint32_t tile, int lane) {
    return tile + (lane & 15) * kStride + (lane >> 4) * 16;
  }
  template <int kStride>
  static __device__ __forceinline__ std::uint32_t values_of_lane(std::uint32_t tile, int lane) {
    return tile + ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 16;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment keys(std::uint32_t of_lane, int step) {
    Fragment fragment;
    mma16::load_matrices(fragment.a, of_lane + 32 * step);
    return fragment;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment values(std::uint32_t of_lane, int step) {
    Fragment fragment;
    mma16::load_transposed(fragment.a, of_lane + 32 * step);
    return fragment;
  }
  static __device__ __forceinline__ void multiply(float (&sums)[kSums][4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) mma16::multiply_f16(sums[part], fragment.a, parts[part]);
  }
  /// Into one sum, the small products first.
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) mma16::multiply_f16(sum, fragment.a, parts[part]);
  }
  static __device__ __forceinline__ float total(const float (&sums)[kSums][4], int i) { return sums[0][i] + sums[1][i]; }
  static __device__ __forceinline__ float element(const std::byte* row, int dim) {
    return __half2float(reinterpret_cast<const __half*>(row)[dim]);
  }
};

/// Four dimensions side by side are a register: a lane's keys and sums are of other dimensions than with 16 bits.
template <>
struct Numbers<DType::kE4M3> : Numbers<DType::kF16> {
  static constexpr int kBytes = 1;
  static constexpr int kLaneStep = 4;
  static constexpr int kHalfStep = 2;
  static constexpr int kSumStep = 2;
  static constexpr int kSumHalf = 1;

  template <int kStride>
  static __device__ __forceinline__ std::uint32_t keys_of_lane(std::uint32_t tile, int lane) {
    return tile + (lane & 15) * kStride;
  }
  template <int kStride>
  static __device__ __forceinline__ std::uint32_t values_of_lane(std::uint32_t tile, int lane) {
    return tile + (lane & 15) * kStride;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment keys(std::uint32_t of_lane, int step) {
    std::uint32_t rows[2];  // g and g + 8: dimensions 4 t to 4 t + 3
    mma16::load_matrices(rows, of_lane + 16 * step);
    Fragment fragment;
    e4m3_to_f16(rows[0], fragment.a[0], fragment.a[2]);
    e4m3_to_f16(rows[1], fragment.a[1], fragment.a[3]);
    return fragment;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment values(std::uint32_t of_lane, int step) {
    std::uint32_t columns[2];  // dimensions 2 g and 2 g + 1 of token 2 t, then of token 2 t + 1; and of tokens 8 later
    mma16::load_transposed(columns, of_lane + 16 * step);
    Fragment fragment;
    e4m3_to_f16(__byte_perm(columns[0], 0, 0x3120), fragment.a[0], fragment.a[1]);
    e4m3_to_f16(__byte_perm(columns[1], 0, 0x3120), fragment.a[2], fragment.a[3]);
    return fragment;
  }
  static __device__ __forceinline__ float element(const std::byte* row, int dim) {
    const std::uint32_t pair = e4m3_pair_to_f16(static_cast<std::uint32_t>(row[dim]));
    return __low2float(*reinterpret_cast<const __half2*>(&pair));
  }
};

template <>
struct Numbers<DType::kBF16> : Numbers<DType::kF16> {
  static constexpr bool kScalesQueries = false;
  static constexpr int kBytes = 2;
  static constexpr int kParts = 3;
  static constexpr int kSums = 3;
  static constexpr float kWeightScale = 1.0F;
  static __device__ __forceinline__ void multiply(float (&sums)[kSums][4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) mma16::multiply_bf16(sums[part], fragment.a, parts[part]);
  }
  /// Into one sum, the small products first.
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) mma16::multiply_bf16(sum, fragment.a, parts[part]);
  }
  static __device__ __forceinline__ float total(const float (&sums)[kSums][4], int i) {
    return sums[0][i] + (sums[1][i] + sums[2][i]);
  }
  static __device__ __forceinline__ float element(const std::byte* row, int dim) {
    return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(row)[dim]} << 16);
  }
};

template <>
struct Numbers<DType::kF32> {
  static constexpr int kBytes = 4;
  static constexpr int kParts = 3;
  static constexpr int kSums = 3;
  static constexpr float kWeightScale = 1.0F;
  static constexpr int kLaneStep = 2;
  static constexpr int kHalfStep = 8;
  static constexpr int kSumStep = 1;
  static constexpr int kSumHalf = 8;
  static constexpr bool kScalesQueries = false;
  struct Fragment {
    std::uint32_t a[kParts][4];
  };

  static __device__ __forceinline__ void set(Fragment& fragment, int i, float x, float y) {
    std::uint32_t parts[kParts];
    mma16::split(parts, x, y);
#pragma unroll
    for (int part = 0; part < kParts; ++part) fragment.a[part][i] = parts[part];
  }
  template <int kStride>
  static __device__ __forceinline__ std::uint32_t keys_of_lane(std::uint32_t tile, int lane) {
    return tile + (lane >> 2) * kStride + (lane & 3) * 8;
  }
  template <int kStride>
  static __device__ __forceinline__ std::uint32_t values_of_lane(std::uint32_t tile, int lane) {
    return tile + (lane & 3) * 2 * kStride + (lane >> 2) * 4;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment keys(std::uint32_t of_lane, int step) {
    Fragment fragment;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t address = of_lane + 64 * step + (i & 1) * 8 * kStride + (i >> 1) * 32;
      set(fragment, i, ptx::load_shared(address), ptx::load_shared(address + 4));
    }
    return fragment;
  }
  template <int kStride>
  static __device__ __forceinline__ Fragment values(std::uint32_t of_lane, int step) {
    Fragment fragment;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t address = of_lane + 64 * step + (i >> 1) * 8 * kStride + (i & 1) * 32;
      set(fragment, i, ptx::load_shared(address), ptx::load_shared(address + kStride));
    }
    return fragment;
  }
  /// All products but that of the two smallest parts, which is below 2^-29 of the whole.
  static __device__ __forceinline__ void multiply(float (&sums)[kSums][4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int order = kParts; order >= 0; --order) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (order - part < 0 || order - part >= kParts) continue;
        mma16::multiply_bf16(sums[order < kSums ? order : kSums - 1], fragment.a[order - part], parts[part]);
      }
    }
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Fragment& fragment,
                                                  const std::uint32_t (&parts)[kParts][2]) {
#pragma unroll
    for (int order = kParts; order >= 0; --order) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (order - part < 0 || order - part >= kParts) continue;
        mma16::multiply_bf16(sum, fragment.a[order - part], parts[part]);
      }
    }
  }
  static __device__ __forceinline__ float total(const float (&sums)[kSums][4], int i) {
    return sums[0][i] + (sums[1][i] + sums[2][i]);
  }
  static __device__ __forceinline__ float element(const std::byte* row, int dim) {
    return reinterpret_cast<const float*>(row)[dim];
  }
};

}  // namespace locks::cuda::attend_stage
