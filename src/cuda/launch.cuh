// How many warps and CTAs a kernel gets whose warps keep records in shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/check.h"

namespace locks::cuda {

struct LaunchShape {
  int warps = 0;         // of a CTA
  int shared_bytes = 0;  // of a CTA
  int resident = 0;      // CTAs that the device holds at a time
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

/// At most `max_warps` warps, at most `max_resident` CTAs a multiprocessor; `fixed` bytes a CTA and `per_warp` a warp. One
/// warp always fits: the largest record needs some 40 KB.
template <class Kernel>
LaunchShape launch_shape(Kernel* kernel, int fixed, int per_warp, int max_warps, int max_resident) {
  constexpr int kReserved = 1024;  // what the system takes of a CTA's shared memory
  const int per_cta = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int per_processor = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  LaunchShape shape;
  shape.warps = std::clamp((per_cta - fixed) / per_warp, 1, max_warps);
  shape.shared_bytes = fixed + shape.warps * per_warp;
  const int fitting = per_processor / (shape.shared_bytes + kReserved);
  shape.resident = std::clamp(fitting, 1, max_resident) * device_attribute(cudaDevAttrMultiProcessorCount);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
        "cudaFuncSetAttribute");
  return shape;
}

/// Calls `run` with the number of units of 64 dimensions that kernels are compiled for, as a compile-time constant.
template <class Run>
void with_units(int head_dim, Run&& run) {
  if (head_dim <= 64) return run(std::integral_constant<int, 1>());
  if (head_dim <= 128) return run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 4>());
}

}  // namespace locks::cuda
