// Calls of CUDA's runtime, checked.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "locks/cuda.h"

namespace locks::cuda {

/// Throws CudaError and leaves no error behind for the caller to find.
inline void check(cudaError_t status, const char* call, const std::source_location place = std::source_location::current()) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CudaError(std::string(call) + " failed in " + place.function_name() + ": " + cudaGetErrorString(status),
                  static_cast<int>(status));
}

}  // namespace locks::cuda
