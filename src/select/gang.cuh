// The thread blocks that select for one list together. From compute capability 9.0 on they are a cluster: they run at the
// same time, and wait for each other within the kernel. Before that a list has one thread block.
#pragma once

#include "cuda/shared.cuh"
#include "select/select_launch.h"

namespace locks::cuda::select_kernels {

[[nodiscard]] __device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
/// Of a block: a power of two, at least kFewestThreads.
[[nodiscard]] __device__ inline int num_threads() { return static_cast<int>(blockDim.x); }
[[nodiscard]] __device__ inline int log2_threads() { return 31 - __clz(num_threads()); }
[[nodiscard]] __device__ inline int num_warps() { return num_threads() / 32; }
[[nodiscard]] __device__ inline int num_half_warps() { return num_threads() / kLanes; }

/// Gives the threads of a block the numbers below `count` in turn. Not unrolled, as every loop that few rounds are expected
/// of: instructions come from the memory in each launch, and take longer than what they do.
template <class Body>
__device__ __forceinline__ void share_out(int count, const Body& body) {
#pragma unroll 1
  for (int i = thread_index(); i < count; i += num_threads()) body(i);
}

template <class T>
[[nodiscard]] __device__ inline T* dynamic_shared() {
  LOCKS_DYNAMIC_SHARED(uint4, memory);
  return reinterpret_cast<T*>(memory);
}

/// Which list this thread block works for, and on which of its blocks of pages. Grid: gangs, one a list; requests.
class Gang {
 public:
  int rank = 0;
  int log2_size = 0;
  int request;
  int list;
  int sink_pages;  // before the selectable ones
  int num_pages;   // selectable ones

  __device__ explicit Gang(const Lists& lists) {
#if __CUDA_ARCH__ >= 900
    unsigned size;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    log2_size = 31 - __clz(static_cast<int>(size));
#elif defined(LOCKS_EMULATED)
    rank = emulator::cluster_rank();
    log2_size = 31 - __clz(emulator::cluster_size());
#endif
    request = static_cast<int>(blockIdx.y);
    list = static_cast<int>(blockIdx.x) >> log2_size;
    const AlwaysAttended always = lists.always(request);
    sink_pages = always.sink_pages;
    num_pages = always.selectable_pages();
  }
  [[nodiscard]] __device__ int size() const { return 1 << log2_size; }
  [[nodiscard]] __device__ int num_blocks() const { return (num_pages + kBlockPages - 1) / kBlockPages; }
  [[nodiscard]] __device__ int first_block() const { return rank * num_blocks() >> log2_size; }  // the own ones
  [[nodiscard]] __device__ int last_block() const { return (rank + 1) * num_blocks() >> log2_size; }

  /// Where another thread block has what this one has at `own`, in dynamic shared memory.
  template <class T>
  [[nodiscard]] __device__ T* at(T* own, int other) const {
#if __CUDA_ARCH__ >= 900
    std::uint64_t address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(own), "r"(other));
    return reinterpret_cast<T*>(address);
#elif defined(LOCKS_EMULATED)
    return emulator::at(own, other);
#else
    return own;
#endif
  }

  /// What any thread of the gang wrote before is there for all of them afterwards. Whole warps come here.
  __device__ void sync() const {
    arrive();
    wait();
  }
  /// Its halves, between which there is no other meeting of the gang.
  __device__ void arrive() const {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif defined(LOCKS_EMULATED)
    emulator::cluster_sync();
#else
    __syncthreads();
#endif
  }
};

}  // namespace locks::cuda::select_kernels
