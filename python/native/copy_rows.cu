#include "copy_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

namespace locks::python {
namespace {

__device__ float load(const float* from) { return *from; }
__device__ float load(const __half* from) { return __half2float(*from); }
__device__ float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

/// A block a head of a row, a thread a dimension.
template <class From, class To>
__global__ void copy_kernel(const From* from, std::int64_t from_row, std::int64_t from_head, To* to, std::int64_t to_row,
                            std::int64_t to_head) {
  const std::int64_t head = blockIdx.x;
  const std::int64_t row = blockIdx.y;
  const auto dim = static_cast<int>(threadIdx.x);
  store(to + row * to_row + head * to_head + dim, load(from + row * from_row + head * from_head + dim));
}

template <class Use>
void with_type(const HeadRows& rows, const Use& use) {
  switch (rows.dtype) {
    case DType::kF16:
      return use(reinterpret_cast<__half*>(rows.data));
    case DType::kBF16:
      return use(reinterpret_cast<__nv_bfloat16*>(rows.data));
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
      copy_kernel<<<grid, head_dim, 0, stream>>>(source, from.row_stride, from.head_stride, target, to.row_stride,
                                                 to.head_stride);
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
