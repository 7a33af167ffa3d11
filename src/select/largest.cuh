// The k largest of one list's shares: every thread block of the gang marks its pages, and one of them decides where the cut
// is. Equal shares go to the lower page.
#pragma once

#include "select/cut.cuh"
#include "select/gang.cuh"

namespace locks::cuda::select_kernels {

// Members of a search that are told to the block that decides. With more the gang narrows the search.
#ifdef LOCKS_EMULATED
inline constexpr int kMembers = 64;  // so that few are many
#else
inline constexpr int kMembers = 1024;
#endif

struct Member {
  std::int32_t page;
  std::uint32_t key;
};

/// The pages that are taken, as the gang tells them to the block that decides: in its dynamic shared memory.
class Marks {
 public:
  [[nodiscard]] static constexpr std::size_t bytes(int max_pages) noexcept {
    return kHeader + kMembers * sizeof(Member) + static_cast<std::size_t>(max_pages) / 32 * 2 * sizeof(std::uint32_t);
  }
  __device__ Marks(std::byte* memory, int max_pages) : memory_(memory), num_words_(max_pages / 32) {}
  /// Those of another block.
  [[nodiscard]] __device__ Marks of(const Gang& gang, int rank) const {
    return Marks(gang.at(memory_, rank), num_words_ * 32);
  }

  [[nodiscard]] __device__ int& num_members() const { return *reinterpret_cast<int*>(memory_); }
  [[nodiscard]] __device__ Member* members() const { return reinterpret_cast<Member*>(memory_ + kHeader); }  // in any order
  /// A bit a page.
  [[nodiscard]] __device__ std::uint32_t* taken() const { return reinterpret_cast<std::uint32_t*>(members() + kMembers); }
  /// Those whose share is the smallest that is taken.
  [[nodiscard]] __device__ std::uint32_t* equal() const { return taken() + num_words_; }

 private:
  static constexpr std::size_t kHeader = 16;
  std::byte* memory_;
  int num_words_;
};

// Whose searches they are.
inline constexpr int kCandidates = 0;
inline constexpr int kCompletion = 1;

/// What a search reads and writes, in the dynamic shared memory of each block of the gang.
struct Counts {
  std::int32_t* buckets;  // [kBuckets]: of the block, in the first block of all
  Search* found;          // [2]: what the first block says
};

/// To the first block: what the others have counted.
__device__ inline void gather_counts(const Gang& gang, std::int32_t* buckets) {
  if (gang.rank == 0) return;
  std::int32_t* const all = gang.at(buckets, 0);
  for (int i = thread_index(); i < kBuckets; i += num_threads()) {
    if (buckets[i] > 0) atomicAdd(&all[i], buckets[i]);
  }
}

/// From the first block: what it has found.
__device__ inline void tell(const Gang& gang, Search* found, const Search& search) {
  if (gang.rank == 0 && thread_index() < gang.size()) *gang.at(found, thread_index()) = search;
}

/// Divides a search again and again, until few members are left or all are equal. `share` is that of the gang's block.
__device__ inline void narrow(const Gang& gang, const float* share, int pages, const Counts& counts, int of, int* scratch) {
  const Search& search = counts.found[of];  // read again and again: registers are scarce here
  while (search.size > kMembers && !search.is_one_key()) {
    for (int i = thread_index(); i < kBuckets; i += num_threads()) counts.buckets[i] = 0;
    gang.sync();
    for (int page = thread_index(); page < pages; page += num_threads()) {
      const std::uint32_t key = __float_as_uint(share[page]);
      if (search.side(key) == 0) atomicAdd(&counts.buckets[search.bucket_of(key)], 1);
    }
    __syncthreads();
    gather_counts(gang, counts.buckets);
    gang.sync();
    if (gang.rank == 0) {
      const Search next = search.narrowed(find_buckets(counts.buckets, {search.wanted}, scratch).of[0]);
      __syncthreads();  // all have read the search
      tell(gang, counts.found + of, next);
    }
    gang.sync();
  }
}

/// Tells `there` which of this block's pages are taken, and which may be. `first_page` is the block's, a multiple of 32.
/// A completion has no marked pages and none without a share.
__device__ inline void mark(const Search& search, const float* share, int first_page, int pages, bool for_completion,
                            const Marks& there) {
  const unsigned lane = threadIdx.x % 32;
  for (int page = thread_index(); page - static_cast<int>(lane) < pages; page += num_threads()) {  // whole warps
    const std::uint32_t key = page < pages ? __float_as_uint(share[page]) : 0;
    const bool counts = page < pages && !(for_completion && (key == 0 || key == kInfinityKey));
    const unsigned above = __ballot_sync(kWarp, counts && search.side(key) > 0);
    const bool is_member = counts && search.side(key) == 0;
    const unsigned members = __ballot_sync(kWarp, is_member);
    if (lane == 0) {
      there.taken()[(first_page + page) / 32] = above;
      there.equal()[(first_page + page) / 32] = search.is_one_key() ? members : 0;
    }
    if (members == 0 || search.is_one_key()) continue;
    int place = 0;
    if (lane == 0) place = atomicAdd(&there.num_members(), __popc(members));
    place = __shfl_sync(kWarp, place, 0) + __popc(members & ((1U << lane) - 1U));
    if (is_member) there.members()[place] = {first_page + page, key};
  }
}

/// Of the members, takes those that are wanted.
__device__ inline void take_members(Search search, const Marks& marks, int num_words, int* scratch, std::int32_t* counts) {
  int ties = search.wanted;
  if (!search.is_one_key()) {
    search.size = marks.num_members();
    search.wanted = min(search.wanted, search.size);  // a completion has no members without a share
    const Cut cut = find_cut(search, search.size, scratch, counts, [&](int i) { return marks.members()[i].key; });
    const bool all = cut.wanted == cut.equal;
    for (int i = thread_index(); i < search.size; i += num_threads()) {
      const auto [page, key] = marks.members()[i];
      if (key > cut.key || (key == cut.key && all)) atomicOr(&marks.taken()[page / 32], 1U << page % 32);
      if (key == cut.key && !all) atomicOr(&marks.equal()[page / 32], 1U << page % 32);
    }
    __syncthreads();
    if (all) return;
    ties = cut.wanted;
  }
  for (int base = 0; base < num_words && ties > 0; base += num_threads()) {
    const int i = base + thread_index();
    std::uint32_t equal = i < num_words ? marks.equal()[i] : 0;
    int total = 0;
    int left = ties - sum_before(__popc(equal), scratch, total);
    for (; equal != 0 && left > 0; --left, equal &= equal - 1) marks.taken()[i] |= equal & (~equal + 1);
    ties -= min(ties, total);
  }
  __syncthreads();
}

/// How many pages are taken before each word's, to `before`. Returns the number of all.
__device__ inline int count_before(const std::uint32_t* taken, std::int32_t* before, int num_words, int* scratch) {
  int num_before = 0;
  for (int base = 0; base < num_words; base += num_threads()) {
    const int i = base + thread_index();
    int total = 0;
    const int position = num_before + sum_before(i < num_words ? __popc(taken[i]) : 0, scratch, total);
    num_before += total;
    if (i < num_words) before[i] = position;
  }
  __syncthreads();
  return num_before;
}

}  // namespace locks::cuda::select_kernels
