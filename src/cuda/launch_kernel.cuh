// Launches of kernels, early ones and clusters too.
#pragma once

#include <cstddef>

#include "cuda/check.h"
#include "cuda/start.h"
#include "locks/cuda.h"

namespace locks::cuda {

/// Whether the code that runs is such that waits: it was compiled for 9.0 or later.
template <auto kKernel>
bool waits() {
  static const bool answer = [] {
    constexpr int kFirstThatWaits = 90;
    cudaFuncAttributes compiled{};
    check(cudaFuncGetAttributes(&compiled, kKernel), "cudaFuncGetAttributes");
    return compiled.ptxVersion >= kFirstThatWaits;
  }();
  return answer;
}

/// How a kernel is launched. `cluster`: thread blocks that run at the same time, neighbours in the grid's first axis;
/// from 9.0 on.
struct Launch {
  const char* name = "";
  Start start = Start::kAfterPrevious;
  dim3 grid;
  int threads = 0;
  std::size_t shared_bytes = 0;
  Stream stream = nullptr;
  int cluster = 1;
};

/// A Launch as CUDA wants it. Holds what it points to, so it stays where it is.
class LaunchConfig {
 public:
  LaunchConfig(const Launch& launch, bool waits) {
    config_.gridDim = launch.grid;
    config_.blockDim = static_cast<unsigned>(launch.threads);
    config_.dynamicSmemBytes = launch.shared_bytes;
    config_.stream = launch.stream;
    config_.attrs = attributes_;
    if (launch.start == Start::kEarly && waits) {
      next(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    }
    if (launch.cluster > 1) {
      next(cudaLaunchAttributeClusterDimension).clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
  [[nodiscard]] const cudaLaunchConfig_t* get() const noexcept { return &config_; }

 private:
  cudaLaunchAttributeValue& next(cudaLaunchAttributeID id) {
    attributes_[config_.numAttrs].id = id;
    return attributes_[config_.numAttrs++].val;
  }
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

template <auto kKernel, class... Args>
void launch_kernel(const Launch& launch, const Args&... args) {
  const LaunchConfig config(launch, waits<kKernel>());
  check(cudaLaunchKernelEx(config.get(), kKernel, args...), launch.name);
}

/// How many clusters of this launch run at the same time; 0 if the device does not have clusters of that size.
template <auto kKernel>
int clusters_at_once(const Launch& launch) {
  const LaunchConfig config(launch, false);
  int clusters = 0;
  if (cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&clusters, kKernel, config.get()) == cudaSuccess) {
    return clusters;
  }
  (void)cudaGetLastError();
  return 0;
}

/// Dynamic shared memory that a block of this kernel can have on the current device.
template <auto kKernel>
std::size_t most_shared_bytes() {
  static const std::size_t fixed = [] {
    cudaFuncAttributes compiled{};
    check(cudaFuncGetAttributes(&compiled, kKernel), "cudaFuncGetAttributes");
    return compiled.sharedSizeBytes;
  }();
  int device = 0;
  int most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(most) - fixed;
}

}  // namespace locks::cuda
