// Kernels that follow each other in a step: one may be launched while that before it still runs, does what needs no other
// kernel, and waits where it does. Before compute capability 9.0 each simply starts when the one before has ended.
#pragma once

namespace locks::cuda {

/// The kernel behind this one may be launched from here on.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// From here on, all that the kernels before this one wrote can be read. In every kernel some block at least comes here
/// before it ends: or the next one would wait for this kernel, but not for those that this one should have waited for.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// What a block with nothing to do does before it ends. Others would keep the kernels behind from the multiprocessors.
__device__ __forceinline__ void only_first_block_waits() {
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) wait_for_previous();
}

}  // namespace locks::cuda
