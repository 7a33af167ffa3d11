// Where the k-th largest of many keys is: they are counted in buckets, and only the bucket that has it is looked at closer.
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

/// Exclusive sum over the threads of a block; `total` gets the whole. `scratch` has an int for each warp.
__device__ inline int sum_before(int own, int* scratch, int& total) {
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const int inclusive = warp_sum_to(own);
  __syncthreads();
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  const int warps = warp_sum_to(lane < num_warps() ? scratch[lane] : 0);
  total = __shfl_sync(kWarp, warps, 31);
  const int before = __shfl_sync(kWarp, warps, max(0, warp - 1));
  return (warp > 0 ? before : 0) + inclusive - own;
}

inline constexpr int kLog2Buckets = 11;
inline constexpr int kBuckets = 1 << kLog2Buckets;

/// From the highest bucket down: the first with which `count` is reached, and how many its members must supply.
struct Bucket {
  int index = 0;
  int wanted = 0;
  int size = 0;
};

template <int kNum>
struct Buckets {
  Bucket of[kNum];
};

/// `counts` [kBuckets] in shared memory, together at least as many as any of `wanted`. All threads get the answer.
template <int kNum>
__device__ Buckets<kNum> find_buckets(const std::int32_t* counts, const int (&wanted)[kNum], int* scratch) {
  __shared__ Buckets<kNum> found;
  const int per_thread = kBuckets / num_threads();
  const int top = kBuckets - 1 - per_thread * thread_index();
  int own = 0;
  for (int i = 0; i < per_thread; ++i) own += counts[top - i];
  int total = 0;
  int before = sum_before(own, scratch, total);
  for (int i = 0; i < per_thread; ++i) {
    const int size = counts[top - i];
#pragma unroll
    for (int of = 0; of < kNum; ++of) {
      const int left = wanted[of] - before;
      if (0 < left && left <= size) found.of[of] = {top - i, left, size};
    }
    before += size;
  }
  __syncthreads();
  return found;
}

inline constexpr std::uint32_t kInfinityKey = 0x7F800000U;  // keys are the bits of shares, which are never negative

/// An interval of keys: that of the last ones to be taken. What is above it is taken, what is below is not.
struct Search {
  std::uint32_t low = ~0U;
  std::uint32_t width = 0;
  int wanted = 0;  // of its members
  int size = 0;    // members

  /// Positive: taken; 0: a member; negative: not taken.
  [[nodiscard]] __device__ int side(std::uint32_t key) const { return key < low ? -1 : (key - low < width ? 0 : 1); }
  [[nodiscard]] __device__ bool is_one_key() const { return width <= 1; }

  /// Its members in kBuckets.
  [[nodiscard]] __device__ int shift() const { return max(0, 32 - __clz(static_cast<int>(width - 1)) - kLog2Buckets); }
  [[nodiscard]] __device__ int bucket_of(std::uint32_t key) const { return static_cast<int>((key - low) >> shift()); }
  [[nodiscard]] __device__ Search narrowed(Bucket bucket) const {
    const std::uint32_t skipped = static_cast<std::uint32_t>(bucket.index) << shift();
    return {low + skipped, min(1U << shift(), width - skipped), bucket.wanted, bucket.size};
  }
};

// The first buckets: 64 exponents from 2^kLowest on, and five bits of the fraction. What is smaller counts as the lowest,
// what is larger as the highest but one; the highest has what is infinite.
inline constexpr int kBucketShift = 18;
inline constexpr int kLowest = -60;
inline constexpr int kFirstLeading = (127 + kLowest) << (23 - kBucketShift);

[[nodiscard]] __device__ inline int first_bucket_of(std::uint32_t key) {
  const int leading = static_cast<int>(key >> kBucketShift) - kFirstLeading;
  return key == kInfinityKey ? kBuckets - 1 : min(max(leading, 0), kBuckets - 2);
}

[[nodiscard]] __device__ inline Search search_of(Bucket bucket) {
  const auto start = static_cast<std::uint32_t>(kFirstLeading + bucket.index) << kBucketShift;
  if (bucket.index == kBuckets - 1) return {kInfinityKey, 1, bucket.wanted, bucket.size};
  const std::uint32_t low = bucket.index == 0 ? 0 : start;
  const std::uint32_t end = bucket.index == kBuckets - 2 ? kInfinityKey : start + (1U << kBucketShift);
  return {low, end - low, bucket.wanted, bucket.size};
}

/// The `wanted`-th largest key, and how many of those that equal it are wanted.
struct Cut {
  std::uint32_t key = ~0U;
  int wanted = 0;
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
#pragma unroll 8
    for (int i = 0; i < num; ++i) {
      larger += keys[i] > own ? 1 : 0;
      equal += keys[i] == own ? 1 : 0;
    }
    if (larger < wanted && wanted <= larger + equal) found = {own, wanted - larger, equal};
  }
  __syncthreads();
  return found;
}

/// Of the members of `search` among key(0 .. num). `counts` [kBuckets] in shared memory.
template <class Key>
__device__ Cut find_cut(Search search, int num, int* scratch, std::int32_t* counts, const Key& key) {
  __shared__ std::uint32_t few[kFew];
  __shared__ int num_few;
  if (search.wanted == 0) return {};
  while (search.size > kFew && !search.is_one_key()) {
    for (int i = thread_index(); i < kBuckets; i += num_threads()) counts[i] = 0;
    __syncthreads();
    for (int i = thread_index(); i < num; i += num_threads()) {
      const std::uint32_t own = key(i);
      if (search.side(own) == 0) atomicAdd(&counts[search.bucket_of(own)], 1);
    }
    __syncthreads();
    search = search.narrowed(find_buckets(counts, {search.wanted}, scratch).of[0]);
  }
  if (search.is_one_key()) return {search.low, search.wanted, search.size};
  if (threadIdx.x == 0) num_few = 0;
  __syncthreads();
  for (int i = thread_index(); i < num; i += num_threads()) {
    const std::uint32_t own = key(i);
    if (search.side(own) == 0) few[atomicAdd(&num_few, 1)] = own;
  }
  __syncthreads();
  return cut_few(few, search.size, search.wanted);
}

}  // namespace locks::cuda::select_kernels
