// Where the k-th largest of many numbers is: a thread block counts by leading bits, and looks closer only where it must.
#pragma once

#include <cstdint>

#include "select/fold.cuh"
#include "select/gang.cuh"

namespace locks::cuda::select_kernels {

/// Inclusive sum over the lanes of a warp.
__device__ inline int warp_sum_to(int own) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWarp, own, step);
    if (threadIdx.x % 32 >= step) own += other;
  }
  return own;
}

/// Exclusive sum over the threads of a block of kThreads; `total` gets the whole. `scratch` [32].
__device__ inline int sum_before(int own, int* scratch, int& total) {
  static_assert(kWarps <= 32);
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const int inclusive = warp_sum_to(own);
  __syncthreads();
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  const int warps = warp_sum_to(lane < kWarps ? scratch[lane] : 0);
  total = __shfl_sync(kWarp, warps, 31);
  const int before = __shfl_sync(kWarp, warps, max(0, warp - 1));
  return (warp > 0 ? before : 0) + inclusive - own;
}

/// What a thread block has counted, of the kBuckets of a list.
__device__ inline void add_counts(const std::int32_t* own, std::int32_t* all) {
  for (int i = thread_index(); i < kBuckets; i += kThreads) {
    if (own[i] > 0) atomicAdd(&all[i], own[i]);
  }
}

/// From the highest bucket down: the first with which `count` is reached, and how many its members must supply.
struct Bucket {
  int index = 0;
  int wanted = 0;
  int size = 0;
};

/// `counts` [kPerThread * kThreads] in global or shared memory, together at least `count`. All threads get the answer.
template <int kPerThread>
__device__ Bucket find_bucket(const std::int32_t* counts, int num_buckets, int count, int* scratch) {
  __shared__ Bucket found;
  const int top = num_buckets - 1 - kPerThread * thread_index();
  int sizes[kPerThread];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) own += sizes[i] = top - i >= 0 ? counts[top - i] : 0;
  int total = 0;
  int before = sum_before(own, scratch, total);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (before < count && before + sizes[i] >= count) found = {top - i, count - before, sizes[i]};
    before += sizes[i];
  }
  __syncthreads();
  return found;
}

/// The `wanted`-th largest of key(0 .. num), and how many that equal it are wanted.
struct Cut {
  std::uint32_t key = 0;
  int equal = 0;
};

inline constexpr int kFew = 128;  // so few are compared with each other

/// Of `num` keys, at most kFew, in shared memory.
__device__ inline Cut cut_few(const std::uint32_t* keys, int num, int wanted) {
  __shared__ Cut found;
  if (thread_index() < num) {
    const std::uint32_t own = keys[thread_index()];
    int larger = 0;
    int equal = 0;
    for (int i = 0; i < num; ++i) {
      larger += keys[i] > own ? 1 : 0;
      equal += keys[i] == own ? 1 : 0;
    }
    if (larger < wanted && wanted <= larger + equal) found = {own, wanted - larger};
  }
  __syncthreads();
  return found;
}

/// Digits of 11, 11 and 10 bits, until few keys are left. The first `known_bits` (none, 11 or 22) are the same for all keys.
template <class Key>
__device__ Cut find_cut(int num, int wanted, int known_bits, int* scratch, const Key& key) {
  constexpr int kDigit = 11;
  constexpr int kValues = 1 << kDigit;
  __shared__ std::int32_t counts[kValues];
  __shared__ std::uint32_t few[kFew];
  __shared__ int num_few;
  if (wanted == 0) return {~0U, 0};
  int shift = 32 - known_bits;  // the bits before it are known
  std::uint32_t prefix = known_bits > 0 ? key(0) >> shift : 0;
  int left = num;  // keys that have them
  while (left > kFew && shift > 0) {
    const int bits = min(shift, kDigit);
    shift -= bits;
    const int known = shift + bits;
    for (int i = thread_index(); i < kValues; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (int i = thread_index(); i < num; i += kThreads) {
      const std::uint32_t own = key(i);
      if (known == 32 || own >> known == prefix) atomicAdd(&counts[own >> shift & ((1U << bits) - 1U)], 1);
    }
    __syncthreads();
    const Bucket digit = find_bucket<kValues / kThreads>(counts, 1 << bits, wanted, scratch);
    prefix = prefix << bits | static_cast<std::uint32_t>(digit.index);
    wanted = digit.wanted;
    left = digit.size;
  }
  if (shift == 0) return {prefix, wanted};
  if (threadIdx.x == 0) num_few = 0;
  __syncthreads();
  for (int i = thread_index(); i < num; i += kThreads) {
    const std::uint32_t own = key(i);
    if (shift == 32 || own >> shift == prefix) few[atomicAdd(&num_few, 1)] = own;
  }
  __syncthreads();
  return cut_few(few, left, wanted);
}

}  // namespace locks::cuda::select_kernels
