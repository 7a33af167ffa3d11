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

/// `counts` [kBuckets] in shared memory, together at least `wanted`, which is at least 1. For a whole warp; one without a
/// barrier is done long before a block that shares the work.
__device__ inline Bucket find_bucket(const std::int32_t* counts, int wanted) {
  constexpr int kWarpSize = 32;
  constexpr int kOfLane = 4;  // of a row, in a row
  constexpr int kRows = kBuckets / (kWarpSize * kOfLane);
  const int lane_down = kWarpSize - 1 - thread_index() % kWarpSize;  // the first lane has the highest buckets
  const auto* const rows = reinterpret_cast<const int4*>(counts) + lane_down;
  const auto sum_of = [](int4 own) { return own.x + own.y + own.z + own.w; };
  constexpr int kBatch = 8;  // of rows, of which none waits for another
  int row = 0;
  int before = 0;
  bool passed = false;
#pragma unroll 1
  for (int top = kRows - 1; top > 0 && !passed; top -= kBatch) {
    int in_row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) in_row[i] = __reduce_add_sync(kWarp, sum_of(rows[(top - i) * kWarpSize]));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (passed) continue;
      row = top - i;
      passed = before + in_row[i] >= wanted;
      if (!passed) before += in_row[i];
    }
  }
  const int4 own = rows[row * kWarpSize];
  const int sizes[kOfLane] = {own.w, own.z, own.y, own.x};
  int left = wanted - before - warp_sum_to(sum_of(own)) + sum_of(own);
  Bucket found;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    if (0 < left && left <= sizes[i]) {
      found = {(row * kWarpSize + lane_down) * kOfLane + kOfLane - 1 - i, left, sizes[i]};
    }
    left -= sizes[i];
  }
  const int finder = __ffs(static_cast<int>(__ballot_sync(kWarp, found.size > 0))) - 1;
  return {__shfl_sync(kWarp, found.index, finder), __shfl_sync(kWarp, found.wanted, finder),
          __shfl_sync(kWarp, found.size, finder)};
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

// The first buckets of scores that are compared as they are: their leading bits.
inline constexpr int kRankShift = 32 - kLog2Buckets;

/// Larger scores have larger keys; what is no number is as -infinity, and both zeros are one.
[[nodiscard]] __device__ inline std::uint32_t rank_key(float score) {
  const std::uint32_t bits = __float_as_uint((score > -kInfinity ? score : -kInfinity) + 0.0F);
  return bits >> 31 != 0 ? ~bits : bits | 1U << 31;
}
[[nodiscard]] __device__ inline Search rank_search_of(Bucket bucket) {
  return {static_cast<std::uint32_t>(bucket.index) << kRankShift, 1U << kRankShift, bucket.wanted, bucket.size};
}

/// The `wanted`-th largest key, and how many of those that equal it are wanted.
struct Cut {
  std::uint32_t key = ~0U;
  int wanted = 0;
  int equal = 0;
};

inline constexpr int kLog2Few = 7;
inline constexpr int kFew = 1 << kLog2Few;  // so few are compared with each other
static_assert(kFew <= kFewestThreads && kMostThreads <= 32 * kFew);

/// How many of `num` things, at most kFew, `counts` says yes to, for each of them: counts(own, other). Lanes side by side
/// share one of them, of which the thread gets the number; all of them get the answer.
template <class Counts>
__device__ int count_of_few(int num, const Counts& counts, int& own) {
  const int log2_lanes = log2_threads() - kLog2Few;
  const int lanes = 1 << log2_lanes;
  own = thread_index() >> log2_lanes;
  int count = 0;
  if (own < num) {
#pragma unroll 4
    for (int other = thread_index() & (lanes - 1); other < num; other += lanes) count += counts(own, other);
  }
  for (int step = 1; step < lanes; step *= 2) count += __shfl_xor_sync(kWarp, count, step);
  return count;
}

/// Of `num` keys, at most kFew, in shared memory.
__device__ inline Cut cut_few(const std::uint32_t* keys, int num, int wanted) {
  __shared__ Cut found;
  constexpr int kEqual = 1 << 16;
  int own = 0;
  const int count = count_of_few(
      num, [&](int i, int other) { return keys[other] > keys[i] ? 1 : (keys[other] == keys[i] ? kEqual : 0); }, own);
  const int larger = count % kEqual;
  const int equal = count / kEqual;
  if (own < num && larger < wanted && wanted <= larger + equal) found = {keys[own], wanted - larger, equal};
  __syncthreads();
  return found;
}

/// Of the members of `search` among key(0 .. num). `counts` [kBuckets] in shared memory, zeros if `cleared`.
template <class Key>
__device__ Cut find_cut(Search search, int num, std::int32_t* counts, bool cleared, const Key& key) {
  __shared__ std::uint32_t few[kFew];
  __shared__ int num_few;
  __shared__ Search narrowed;
  if (search.wanted == 0) return {};
  if (threadIdx.x == 0) num_few = 0;
  while (search.size > kFew && !search.is_one_key()) {
    if (!cleared) {
      share_out(kBuckets, [&](int i) { counts[i] = 0; });
      __syncthreads();
    }
    cleared = false;
    share_out(num, [&](int i) {
      const std::uint32_t own = key(i);
      if (search.side(own) == 0) atomicAdd(&counts[search.bucket_of(own)], 1);
    });
    __syncthreads();
    if (threadIdx.x < 32) {
      const Search next = search.narrowed(find_bucket(counts, search.wanted));
      if (threadIdx.x == 0) narrowed = next;
    }
    __syncthreads();
    search = narrowed;
  }
  if (search.is_one_key()) return {search.low, search.wanted, search.size};
  __syncthreads();
  share_out(num, [&](int i) {
    const std::uint32_t own = key(i);
    if (search.side(own) == 0) few[atomicAdd(&num_few, 1)] = own;
  });
  __syncthreads();
  return cut_few(few, search.size, search.wanted);
}

}  // namespace locks::cuda::select_kernels
