#include "copy_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <string>

namespace locks::python {
namespace {

__device__ float load(const float* from, const float*) { return *from; }
__device__ float load(const __half* from, const float*) { return __half2float(*from); }
__device__ float load(const __nv_bfloat16* from, const float*) { return __bfloat162float(*from); }
__device__ float load(const __nv_fp8_e4m3* from, const float* scale) {
  return scale == nullptr ? static_cast<float>(*from) : static_cast<float>(*from) * *scale;
}
__device__ void store(float* to, const float*, float value) { *to = value; }
__device__ void store(__half* to, const float*, float value) { *to = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* to, const float*, float value) { *to = __float2bfloat16_rn(value); }
__device__ void store(__nv_fp8_e4m3* to, const float* scale, float value) {
  *to = __nv_fp8_e4m3(scale == nullptr ? value : value / *scale);
}

/// A block a head of a row, a thread a dimension.
template <class From, class To>
__global__ void copy_kernel(const From* from, std::int64_t from_row, std::int64_t from_head, const float* from_scale, To* to,
                            std::int64_t to_row, std::int64_t to_head, const float* to_scale) {
  const std::int64_t head = blockIdx.x;
  const std::int64_t row = blockIdx.y;
  const auto dim = static_cast<int>(threadIdx.x);
  const float value = load(from + row * from_row + head * from_head + dim, from_scale);
  store(to + row * to_row + head * to_head + dim, to_scale, value);
}

template <class Use>
void with_type(const HeadRows& rows, const Use& use) {
  switch (rows.dtype) {
    case DType::kF16:
      return use(reinterpret_cast<__half*>(rows.data));
    case DType::kBF16:
      return use(reinterpret_cast<__nv_bfloat16*>(rows.data));
    case DType::kE4M3:
      return use(reinterpret_cast<__nv_fp8_e4m3*>(rows.data));
    default:
      return use(reinterpret_cast<float*>(rows.data));
  }
}

}  // namespace

void copy_rows(const HeadRows& from, const HeadRows& to, std::int64_t rows, std::int64_t heads, int head_dim,
               cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(rows));
  with_type(from, [&](auto* source) {
    with_type(to, [&](auto* target) {
      copy_kernel<<<grid, head_dim, 0, stream>>>(source, from.row_stride, from.head_stride, from.scale, target,
                                                 to.row_stride, to.head_stride, to.scale);
    });
  });
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    throw cuda::CudaError(std::string("copy_kernel: ") + cudaGetErrorString(status), static_cast<int>(status));
  }
}

std::string why_kernels_cannot_run() {
  cudaFuncAttributes found{};
  const cudaError_t status = cudaFuncGetAttributes(&found, copy_kernel<float, float>);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    const cuda::Device device = cuda::current_device();
    return "this build of locks_cpp has no code for compute capability " + std::to_string(device.compute_capability / 10) +
           "." + std::to_string(device.compute_capability % 10) + " (" + device.name +
           "); build it with LOCKS_CUDA_ARCHITECTURES=native";
  }
  return std::string("cudaFuncGetAttributes: ") + cudaGetErrorString(status);
}

}  // namespace locks::python
