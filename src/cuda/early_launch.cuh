// Kernels that start while the one before them still ends (programmatic launch, compute capability 9.0): their launch and
// their first instructions then cost nothing. What keeps it right, in a chain of such kernels:
//
//   - every block of a kernel that starts early waits before it reads or writes what others do, and before it exits: or the
//     kernel behind it, whose wait ends with this kernel, would not have waited for the one before;
//   - it lets the next one start only then, so that whoever starts finds all but one kernel before it complete.
//
// A kernel that reads nothing of the one before it may wait at its end instead; only a kernel that waits first may follow.
#pragma once

#include "cuda/check.h"

namespace locks::cuda {

/// Until the kernel before this one is complete, if this one started early.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may start, once every block of this one said so or exited.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Code for architectures before 9.0 does not wait, whatever the device is that runs it: it must not start early.
template <class Kernel>
bool waits_for_previous(Kernel* kernel) {
  constexpr int kFirstThatWaits = 90;
  cudaFuncAttributes compiled{};
  check(cudaFuncGetAttributes(&compiled, kernel), "cudaFuncGetAttributes");
  return compiled.ptxVersion >= kFirstThatWaits;
}

/// Launches a kernel that waits for the one before it.
template <class... Parameters, class... Arguments>
void launch_early(const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads, int shared_bytes,
                  Stream stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = waits_for_previous(kernel) ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace locks::cuda
