// What is included before every source of the CUDA backend to run it on the CPU: launches go to the emulator, and the rest
// of CUDA's runtime is runtime.cc.
#pragma once

#include "emulated/emulator.h"  // first
#include "emulated/pipeline.h"

namespace locks::cuda::emulator {

/// Now, or when the graph is launched that the stream is captured for.
void queue(cudaStream_t stream, KernelLaunch launch);
/// As CUDA does: whether a device like this takes the launch.
[[nodiscard]] cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel, int cluster);

template <class... Params, class... Args>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Params...), const Args&... args) {
  KernelLaunch launch{config->gridDim, 1, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) launch.cluster = static_cast<int>(attribute.val.clusterDim.x);
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      launch.early = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  const cudaError_t status = check_launch(*config, reinterpret_cast<const void*>(kernel), launch.cluster);
  if (status != cudaSuccess) return status;
  launch.kernel = [kernel, args...] { kernel(args...); };
  queue(config->stream, std::move(launch));
  return cudaSuccess;
}

}  // namespace locks::cuda::emulator

// As nvcc has them.
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Params>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Params...), const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
#define cudaLaunchKernelEx locks::cuda::emulator::launch_kernel
