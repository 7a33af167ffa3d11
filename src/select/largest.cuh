// The k largest of one list's shares, in ascending order of page: every thread block looks at some pages, and the last one
// to finish puts the list together. Equal shares go to the lower page.
#pragma once

#include "select/fold.cuh"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kTakeThreads = 512;
inline constexpr int kTakePages = 4096;  // of a thread block

/// Exclusive sum over the threads of a block of kTakeThreads; `total` gets the whole. `scratch` [kTakeThreads / 32].
__device__ inline int sum_before(int own, int* scratch, int& total) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  int inclusive = own;
  for (unsigned step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWarp, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (unsigned i = 0; i < kTakeThreads / 32; ++i) {
    if (i < warp) before += scratch[i];
    total += scratch[i];
  }
  return before + inclusive - own;
}

/// From the highest bucket down: the first with which `count` is reached, and how many its members must supply.
struct Bucket {
  int index = 0;
  int wanted = 0;
};

/// `counts` [num_buckets] in global or shared memory, num_buckets <= 2 * kTakeThreads, together at least `count`. All
/// threads get the answer.
__device__ inline Bucket find_bucket(const std::int32_t* counts, int num_buckets, int count, int* scratch) {
  __shared__ Bucket found;
  const int top = num_buckets - 1 - 2 * static_cast<int>(threadIdx.x);
  const int first = top >= 0 ? counts[top] : 0;
  const int second = top >= 1 ? counts[top - 1] : 0;
  int total = 0;
  const int before = sum_before(first + second, scratch, total);
  if (before < count && before + first + second >= count) {
    found = before + first >= count ? Bucket{top, count - before} : Bucket{top - 1, count - before - first};
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
    const Bucket digit = find_bucket(counts, kValues, wanted, scratch);
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

/// The tokens of a page that are not selected. `selected` ascends.
__device__ inline std::uint16_t rest_of_page(const SelectedPage* selected, int num_selected, int page) {
  int low = 0;
  for (int high = num_selected; low < high;) {
    const int middle = (low + high) / 2;
    if (selected[middle].page < page) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool partly = low < num_selected && selected[low].page == page;
  return static_cast<std::uint16_t>(partly ? ~selected[low].mask : kWholePage);
}

/// Grid: parts of kTakePages pages, lists, requests. Dynamic shared memory: max_pages / 32 words, twice.
template <Take kTake>
__global__ void __launch_bounds__(kTakeThreads, 1) take_largest(const __grid_constant__ Lists lists) {
  extern __shared__ std::uint32_t words[];
  __shared__ int scratch[kTakeThreads / 32];
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
  std::int32_t* const members = buffers.members + at * buffers.max_pages;

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

  const Bucket bucket = find_bucket(buffers.buckets + at * kBuckets, kBuckets, count, scratch);
  const int end = min(pages, (static_cast<int>(blockIdx.x) + 1) * kTakePages);
  for (int page = static_cast<int>(blockIdx.x) * kTakePages + static_cast<int>(threadIdx.x); page / 32 * 32 < end;
       page += kTakeThreads) {
    const int own = page < end ? static_cast<int>(__float_as_uint(share[page]) >> kBucketShift) : -1;
    const unsigned word = __ballot_sync(kWarp, own > bucket.index);
    if (page % 32 == 0) above[page / 32] = word;
    if (own == bucket.index) members[atomicAdd(&buffers.num_members[at], 1)] = page;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&buffers.done[at], 1) == parts - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();

  const int num_words = (pages + 31) / 32;
  std::uint32_t* const taken = words;
  std::uint32_t* const equal = words + num_words;
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += kTakeThreads) {
    taken[i] = __ldcg(above + i);
    equal[i] = 0;
  }
  const int num_members = __ldcg(buffers.num_members + at);
  const auto key_of = [&](int i) { return __float_as_uint(share[__ldcg(members + i)]) & ((1U << kBucketShift) - 1U); };
  const Cut cut = find_cut<3>(num_members, bucket.wanted, scratch, key_of);
  // A page without any share stands for nothing.
  const bool drops_equal = kTake == Take::kCompletion && bucket.index == 0 && cut.key == 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_members; i += kTakeThreads) {
    const int page = __ldcg(members + i);
    const std::uint32_t key = key_of(i);
    if (key > cut.key) atomicOr(&taken[page / 32], 1U << page % 32);
    if (key == cut.key && !drops_equal) atomicOr(&equal[page / 32], 1U << page % 32);
  }
  __syncthreads();

  int equal_left = drops_equal ? 0 : cut.equal;
  int num_before = 0;
  const int num_selected = kTake == Take::kCompletion ? args.num_selected(request, list) : 0;
  for (int first = 0; first < num_words; first += kTakeThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    std::uint32_t word = i < num_words ? taken[i] : 0;
    std::uint32_t ties = i < num_words ? equal[i] : 0;
    int all_ties = 0;
    int allowed = equal_left - sum_before(__popc(ties), scratch, all_ties);
    for (; ties != 0 && allowed > 0; --allowed, ties &= ties - 1) word |= ties & (~ties + 1);
    equal_left -= min(equal_left, all_ties);
    int all_taken = 0;
    int position = num_before + sum_before(__popc(word), scratch, all_taken);
    num_before += all_taken;
    for (; word != 0; word &= word - 1, ++position) {
      const int page = always.sink_pages + i * 32 + __ffs(static_cast<int>(word)) - 1;
      if constexpr (kTake == Take::kCandidates) {
        args.candidates(request, list, position) = page;
      } else {
        args.completed(request, list, position) = {page, rest_of_page(args.selected.at(request, list), num_selected, page)};
      }
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
