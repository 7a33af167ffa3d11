// Queries of an engine's type become float32 before a step's first kernel, which waits for this one.
#include <string>
#include <utility>

#include "cpu/check.h"
#include "cuda/chain.cuh"
#include "cuda/head_rows.cuh"
#include "cuda/launch_kernel.cuh"

namespace locks::cuda {
namespace {

/// A block a head of a row, a thread a dimension.
__global__ void copy_kernel(const __grid_constant__ HeadRows from, const __grid_constant__ HeadRows to) {
  const auto head = static_cast<int>(blockIdx.x);
  const auto row = static_cast<int>(blockIdx.y);
  const auto dim = static_cast<int>(threadIdx.x);
  wait_for_previous();
  let_next_start();
  write_element(to, offset_of(to, row, head, dim), read_element(from, offset_of(from, row, head, dim)));
}

}  // namespace

void copy_rows(const HeadRows& from, const HeadRows& to, Stream stream) {
  constexpr std::int64_t kMostRows = 65535;  // of a grid
  constexpr std::int64_t kMostDims = 1024;   // of a block
  if (from.shape == to.shape && (from.shape[0] <= 0 || from.shape[1] <= 0 || from.shape[2] <= 0)) return;
  for (const auto& [rows, name] : {std::pair(&from, "from"), std::pair(&to, "to")}) {
    if (rows->data == nullptr) check::fail(name, "device memory", "a null pointer");
    if (rows->dtype == DType::kQ8_0) check::fail(std::string(name) + ".dtype", "f32, f16, bf16 or e4m3", "q8_0");
  }
  if (from.shape != to.shape) check::fail("to.shape", check::shape_text(from.shape), check::shape_text(to.shape));
  if (from.shape[0] > kMostRows) check::fail("from.shape[0]", "at most 65535 rows", std::to_string(from.shape[0]));
  if (from.shape[2] > kMostDims) check::fail("from.shape[2]", "at most 1024 dimensions", std::to_string(from.shape[2]));
  const dim3 grid(static_cast<unsigned>(from.shape[1]), static_cast<unsigned>(from.shape[0]));
  launch_kernel<copy_kernel>({"copy_kernel", Start::kEarly, grid, static_cast<int>(from.shape[2]), 0, stream}, from, to);
}

std::string why_no_code() {
  cudaFuncAttributes found{};
  const cudaError_t status = cudaFuncGetAttributes(&found, copy_kernel);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    const Device device = current_device();
    return "this build has no code for compute capability " + std::to_string(device.compute_capability / 10) + "." +
           std::to_string(device.compute_capability % 10) + " (" + device.name +
           "); build it with LOCKS_CUDA_ARCHITECTURES=native";
  }
  return std::string("cudaFuncGetAttributes: ") + cudaGetErrorString(status);
}

}  // namespace locks::cuda
