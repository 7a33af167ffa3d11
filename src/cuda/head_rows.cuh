// Elements of rows in the type of an engine's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "locks/cuda.h"

namespace locks::cuda {

[[nodiscard]] __device__ inline std::int64_t offset_of(const HeadRows& rows, int row, int head, int dim) {
  return row * rows.stride[0] + head * rows.stride[1] + dim * rows.stride[2];
}
[[nodiscard]] __device__ inline float read_element(const HeadRows& rows, std::int64_t at) {
  switch (rows.dtype) {
    case DType::kF16:
      return __half2float(reinterpret_cast<const __half*>(rows.data)[at]);
    case DType::kBF16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(rows.data)[at]);
    case DType::kE4M3:
      return static_cast<float>(reinterpret_cast<const __nv_fp8_e4m3*>(rows.data)[at]) *
             (rows.scale == nullptr ? 1.0F : *rows.scale);
    default:
      return reinterpret_cast<const float*>(rows.data)[at];
  }
}
/// Rounded to the nearest.
__device__ inline void write_element(const HeadRows& rows, std::int64_t at, float value) {
  switch (rows.dtype) {
    case DType::kF16:
      reinterpret_cast<__half*>(rows.data)[at] = __float2half_rn(value);
      break;
    case DType::kBF16:
      reinterpret_cast<__nv_bfloat16*>(rows.data)[at] = __float2bfloat16_rn(value);
      break;
    case DType::kE4M3:
      reinterpret_cast<__nv_fp8_e4m3*>(rows.data)[at] = __nv_fp8_e4m3(rows.scale == nullptr ? value : value / *rows.scale);
      break;
    default:
      reinterpret_cast<float*>(rows.data)[at] = value;
  }
}

}  // namespace locks::cuda
