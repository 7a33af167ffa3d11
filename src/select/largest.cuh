// The k largest of one list's shares, in ascending order of page: every thread block looks at some pages, and the last one
// to finish puts the list together. Equal shares go to the lower page.
#pragma once

#include "select/fold.cuh"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kTakeThreads = 1024;
inline constexpr int kTakePages = 4096;  // of a thread block
inline constexpr int kTakeRows = kTakePages / kTakeThreads;
inline constexpr int kStaged = 4096;  // members in shared memory; more are read again and again where they are

/// Inclusive sum over the lanes of a warp.
__device__ inline int warp_sum_to(int own) {
  for (unsigned step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWarp, own, step);
    if (threadIdx.x % 32 >= step) own += other;
  }
  return own;
}

/// Exclusive sum over the threads of a block of kTakeThreads; `total` gets the whole. `scratch` [32].
__device__ inline int sum_before(int own, int* scratch, int& total) {
  static_assert(kTakeThreads == 32 * 32);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const int inclusive = warp_sum_to(own);
  __syncthreads();
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  const int warps = warp_sum_to(scratch[lane]);
  total = __shfl_sync(kWarp, warps, 31);
  const int before = __shfl_sync(kWarp, warps, max(0, warp - 1));
  return (warp > 0 ? before : 0) + inclusive - own;
}

/// From the highest bucket down: the first with which `count` is reached, and how many its members must supply.
struct Bucket {
  int index = 0;
  int wanted = 0;
};

/// `counts` [kPerThread * kTakeThreads, or fewer if kPerThread is 1] in global or shared memory, together at least `count`.
/// All threads get the answer.
template <int kPerThread>
__device__ Bucket find_bucket(const std::int32_t* counts, int num_buckets, int count, int* scratch) {
  __shared__ Bucket found;
  const int top = num_buckets - 1 - kPerThread * static_cast<int>(threadIdx.x);
  int sizes[kPerThread];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) own += sizes[i] = top - i >= 0 ? counts[top - i] : 0;
  int total = 0;
  int before = sum_before(own, scratch, total);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (before < count && before + sizes[i] >= count) found = {top - i, count - before};
    before += sizes[i];
  }
  __syncthreads();
  const Bucket answer = found;
  __syncthreads();
  return answer;
}

/// The `wanted`-th largest of key(0 .. num), and how many that equal it are wanted. Keys have 8 * kDigits bits.
struct Cut {
  std::uint32_t key = 0;
  int equal = 0;
};
template <int kDigits, class Key>
__device__ Cut find_cut(int num, int wanted, int* scratch, const Key& key) {
  constexpr int kValues = 256;
  __shared__ std::int32_t counts[kValues];
  std::uint64_t prefix = 0;  // 64 bits: a shift by 32 must give 0
  for (int shift = 8 * (kDigits - 1); shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kValues; i += kTakeThreads) counts[i] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < num; i += kTakeThreads) {
      const std::uint64_t own = key(i);
      if (own >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&counts[own >> shift & (kValues - 1)], 1);
    }
    __syncthreads();
    const Bucket digit = find_bucket<1>(counts, kValues, wanted, scratch);
    prefix |= static_cast<std::uint64_t>(digit.index) << shift;
    wanted = digit.wanted;
  }
  return {static_cast<std::uint32_t>(prefix), wanted};
}

enum class Take { kCandidates, kCompletion };

/// What completion adds when a list is done: the skipped mass of each head, and the coverage.
__device__ inline void sum_skipped(const Lists& lists, int request, int list, int num_blocks) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  for (int first = 0; first < lists.heads; first += kTakeThreads / kLanes) {
    const int in_list = first + static_cast<int>(threadIdx.x / kLanes);
    const bool works = in_list < lists.heads;
    const int head = list * lists.heads + min(in_list, lists.heads - 1);
    const std::int64_t at = lists.head_at(request, head);
    float sum = 0.0F;
    for (int block = lane; block < num_blocks; block += kLanes) {
      sum += lists.buffers.block_shares[at * lists.buffers.max_blocks + block];
    }
    sum = fold_half_warp(sum);
    if (works && lane == 0) {
      const float norm = num_blocks > 0 ? lists.buffers.log_norm[at] : 0.0F;
      lists.args.skipped_log_mass(request, head) = sum > 0.0F ? norm + select::share_log(sum) : -kInfinity;
      lists.args.coverage(request, head) = 1.0F - sum;
    }
  }
}

/// Grid: parts of kTakePages pages, lists, requests. Dynamic shared memory: kStaged members, and
/// max_pages / 32 words three times.
template <Take kTake>
__global__ void __launch_bounds__(kTakeThreads, 1) take_largest(const __grid_constant__ Lists lists) {
  extern __shared__ Member staged[];
  __shared__ int scratch[kTakeThreads / 32];
  __shared__ int own_members;
  __shared__ int first_member;
  __shared__ bool is_last;
  const int request = static_cast<int>(blockIdx.z);
  const int list = static_cast<int>(blockIdx.y);
  const AlwaysAttended always = lists.always(request);
  const int pages = always.selectable_pages();
  const int parts = max(1, (pages + kTakePages - 1) / kTakePages);
  if (static_cast<int>(blockIdx.x) >= parts) return;
  const Buffers& buffers = lists.buffers;
  const SelectArgs& args = lists.args;
  const std::int64_t at = lists.list_at(request, list);
  const float* const share = buffers.share + at * buffers.max_pages;
  std::uint32_t* const above = buffers.above + at * (buffers.max_pages / 32);
  Member* const members = buffers.members + at * buffers.max_pages;

  const int capacity = static_cast<int>(kTake == Take::kCandidates ? args.candidates.shape[2] : args.completed.shape[2]);
  const int count = min(capacity, kTake == Take::kCandidates ? select::candidate_pages(args.config, always)
                                                             : select::completed_pages(args.config, always));
  std::int32_t& num_taken =
      kTake == Take::kCandidates ? args.num_candidates(request, list) : args.num_completed(request, list);
  if (count == 0) {
    if (blockIdx.x != 0) return;
    if (kTake == Take::kCompletion) sum_skipped(lists, request, list, blocks_of(always));
    if (threadIdx.x == 0) num_taken = 0;
    return;
  }

  const int first_page = static_cast<int>(blockIdx.x) * kTakePages + static_cast<int>(threadIdx.x);
  std::uint32_t bits[kTakeRows];
#pragma unroll
  for (int row = 0; row < kTakeRows; ++row) {
    const int page = first_page + row * kTakeThreads;
    bits[row] = page < pages ? __float_as_uint(share[page]) : 0;
  }
  if (threadIdx.x == 0) own_members = 0;
  const Bucket bucket = find_bucket<kBuckets / kTakeThreads>(buffers.buckets + at * kBuckets, kBuckets, count, scratch);
  const unsigned lane = threadIdx.x % 32;
  const unsigned below = (1U << lane) - 1U;
  int places[kTakeRows];
#pragma unroll
  for (int row = 0; row < kTakeRows; ++row) {
    const int page = first_page + row * kTakeThreads;
    const int own = page < pages ? static_cast<int>(bits[row] >> kBucketShift) : -1;
    const unsigned above_it = __ballot_sync(kWarp, own > bucket.index);
    if (lane == 0 && page < pages) above[page / 32] = above_it;
    const unsigned in_it = __ballot_sync(kWarp, own == bucket.index);
    int place = 0;
    if (lane == 0 && in_it != 0) place = atomicAdd(&own_members, __popc(in_it));
    place = __shfl_sync(kWarp, place, 0) + __popc(in_it & below);
    places[row] = own == bucket.index ? place : -1;
  }
  __syncthreads();
  if (threadIdx.x == 0) first_member = own_members > 0 ? atomicAdd(&buffers.num_members[at], own_members) : 0;
  __syncthreads();
#pragma unroll
  for (int row = 0; row < kTakeRows; ++row) {
    if (places[row] < 0) continue;
    members[first_member + places[row]] = {first_page + row * kTakeThreads, bits[row] & ((1U << kBucketShift) - 1U)};
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&buffers.done[at], 1) == parts - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();

  const int num_words = (pages + 31) / 32;
  auto* const words = reinterpret_cast<std::uint32_t*>(staged + kStaged);
  std::uint32_t* const taken = words;                   // a bit a page
  std::uint32_t* const equal = words + num_words;       // those whose share is the smallest that is taken
  std::uint32_t* const before = words + 2 * num_words;  // pages taken before a word's
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += kTakeThreads) {
    taken[i] = __ldcg(above + i);
    equal[i] = 0;
  }
  const int num_members = __ldcg(buffers.num_members + at);
  const bool stages = num_members <= kStaged;
  for (int i = static_cast<int>(threadIdx.x); stages && i < num_members; i += kTakeThreads) {
    staged[i] = {__ldcg(&members[i].page), __ldcg(&members[i].key)};
  }
  __syncthreads();
  const Cut cut = find_cut<3>(num_members, bucket.wanted, scratch,
                              [&](int i) { return stages ? staged[i].key : __ldcg(&members[i].key); });
  // A page without any share stands for nothing.
  const bool drops_equal = kTake == Take::kCompletion && bucket.index == 0 && cut.key == 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_members; i += kTakeThreads) {
    const int page = stages ? staged[i].page : __ldcg(&members[i].page);
    const std::uint32_t key = stages ? staged[i].key : __ldcg(&members[i].key);
    if (key > cut.key) atomicOr(&taken[page / 32], 1U << page % 32);
    if (key == cut.key && !drops_equal) atomicOr(&equal[page / 32], 1U << page % 32);
  }
  __syncthreads();

  int equal_left = drops_equal ? 0 : cut.equal;
  int num_before = 0;
  for (int first = 0; first < num_words; first += kTakeThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    std::uint32_t word = i < num_words ? taken[i] : 0;
    std::uint32_t ties = i < num_words ? equal[i] : 0;
    int all_ties = 0;
    int allowed = equal_left - sum_before(__popc(ties), scratch, all_ties);
    for (; ties != 0 && allowed > 0; --allowed, ties &= ties - 1) word |= ties & (~ties + 1);
    equal_left -= min(equal_left, all_ties);
    int all_taken = 0;
    const int position = num_before + sum_before(__popc(word), scratch, all_taken);
    num_before += all_taken;
    if (i < num_words) {
      taken[i] = word;
      before[i] = static_cast<std::uint32_t>(position);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x / 32); i < num_words; i += kTakeThreads / 32) {
    if ((taken[i] >> lane & 1) == 0) continue;
    const auto position = static_cast<int>(before[i]) + __popc(taken[i] & below);
    const int page = always.sink_pages + i * 32 + static_cast<int>(lane);
    if constexpr (kTake == Take::kCandidates) {
      args.candidates(request, list, position) = page;
    } else {
      args.completed(request, list, position) = {page, kWholePage};
    }
  }
  if constexpr (kTake == Take::kCompletion) {
    __syncthreads();
    // Of pages that are selected in part, the tokens that are not.
    const int num_selected = args.num_selected(request, list);
    for (int entry = static_cast<int>(threadIdx.x); entry < num_selected; entry += kTakeThreads) {
      const SelectedPage selected = args.selected(request, list, entry);
      const int at_page = selected.page - always.sink_pages;
      const std::uint32_t word = taken[at_page / 32];
      if ((word >> at_page % 32 & 1) == 0) continue;
      const auto position = static_cast<int>(before[at_page / 32]) + __popc(word & ((1U << at_page % 32) - 1U));
      args.completed(request, list, position).mask = static_cast<std::uint16_t>(~selected.mask);
    }
  }
  if (threadIdx.x == 0) {
    num_taken = num_before;
    buffers.num_members[at] = 0;
    buffers.done[at] = 0;
  }
  if (kTake == Take::kCompletion) sum_skipped(lists, request, list, blocks_of(always));
}

}  // namespace locks::cuda::select_kernels
