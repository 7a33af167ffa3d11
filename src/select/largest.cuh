// The k largest of one list's shares: every thread block of the gang marks its pages, and one of them decides where the cut is.
// Equal shares go to the lower page.
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
struct Marks {
  Member* members;       // in any order
  std::uint32_t* taken;  // a bit a page
  std::uint32_t* equal;  // those whose share is the smallest that is taken
  int* num_members;

  [[nodiscard]] static constexpr std::size_t bytes(int max_pages) noexcept {
    return kMembers * sizeof(Member) + static_cast<std::size_t>(max_pages) / 32 * 2 * sizeof(std::uint32_t);
  }
  __device__ Marks(std::byte* memory, int max_pages, int* members_so_far)
      : members(reinterpret_cast<Member*>(memory)),
        taken(reinterpret_cast<std::uint32_t*>(members + kMembers)),
        equal(taken + max_pages / 32),
        num_members(members_so_far) {}

  /// Those of another block.
  [[nodiscard]] __device__ Marks of(const Gang& gang, int rank) const {
    Marks there = *this;
    there.members = gang.at(members, rank);
    there.taken = gang.at(taken, rank);
    there.equal = gang.at(equal, rank);
    there.num_members = gang.at(num_members, rank);
    return there;
  }
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
  for (int i = thread_index(); i < kBuckets; i += kThreads) {
    if (buckets[i] > 0) atomicAdd(&all[i], buckets[i]);
  }
}

/// From the first block: what it has found.
__device__ inline void tell(const Gang& gang, Search* found, const Search& search) {
  if (gang.rank == 0 && thread_index() < gang.size()) *gang.at(found, thread_index()) = search;
}

/// Divides a search again and again, until few members are left or all are equal. `share` is that of the gang's block.
__device__ inline void narrow(const Gang& gang, const float* share, int pages, const Counts& counts, int of, int* scratch) {
  Search search = counts.found[of];
  while (search.size > kMembers && !search.is_one_key()) {
    for (int i = thread_index(); i < kBuckets; i += kThreads) counts.buckets[i] = 0;
    gang.sync();
    for (int page = thread_index(); page < pages; page += kThreads) {
      const std::uint32_t key = __float_as_uint(share[page]);
      if (search.side(key) == 0) atomicAdd(&counts.buckets[search.bucket_of(key)], 1);
    }
    __syncthreads();
    gather_counts(gang, counts.buckets);
    gang.sync();
    if (gang.rank == 0) tell(gang, counts.found + of, search.narrowed(find_bucket(counts.buckets, search.wanted, scratch)));
    gang.sync();
    search = counts.found[of];
  }
}

/// Tells `there` which of this block's pages are taken, and which may be. `first_page` is the block's, a multiple of 32.
/// A completion has no marked pages and none without a share.
__device__ inline void mark(const Search& search, const float* share, int first_page, int pages, bool for_completion,
                            const Marks& there) {
  const unsigned lane = threadIdx.x % 32;
  for (int page = thread_index(); page - static_cast<int>(lane) < pages; page += kThreads) {  // whole warps
    const std::uint32_t key = page < pages ? __float_as_uint(share[page]) : 0;
    const bool counts = page < pages && !(for_completion && (key == 0 || key == kInfinityKey));
    const unsigned above = __ballot_sync(kWarp, counts && search.side(key) > 0);
    const bool is_member = counts && search.side(key) == 0;
    const unsigned members = __ballot_sync(kWarp, is_member);
    if (lane == 0) {
      there.taken[(first_page + page) / 32] = above;
      there.equal[(first_page + page) / 32] = search.is_one_key() ? members : 0;
    }
    if (members == 0 || search.is_one_key()) continue;
    int place = 0;
    if (lane == 0) place = atomicAdd(there.num_members, __popc(members));
    place = __shfl_sync(kWarp, place, 0) + __popc(members & ((1U << lane) - 1U));
    if (is_member) there.members[place] = {first_page + page, key};
  }
}

/// Of the members, takes those that are wanted.
__device__ inline void take_members(Search search, const Marks& marks, int num_words, int* scratch, std::int32_t* counts) {
  int ties = search.wanted;
  if (!search.is_one_key()) {
    search.size = *marks.num_members;
    search.wanted = min(search.wanted, search.size);  // a completion has no members without a share
    const Cut cut = find_cut(search, search.size, scratch, counts, [&](int i) { return marks.members[i].key; });
    const bool all = cut.wanted == cut.equal;
    for (int i = thread_index(); i < search.size; i += kThreads) {
      const auto [page, key] = marks.members[i];
      if (key > cut.key || (key == cut.key && all)) atomicOr(&marks.taken[page / 32], 1U << page % 32);
      if (key == cut.key && !all) atomicOr(&marks.equal[page / 32], 1U << page % 32);
    }
    __syncthreads();
    if (all) return;
    ties = cut.wanted;
  }
  for (int base = 0; base < num_words && ties > 0; base += kThreads) {
    const int i = base + thread_index();
    std::uint32_t equal = i < num_words ? marks.equal[i] : 0;
    int total = 0;
    int left = ties - sum_before(__popc(equal), scratch, total);
    for (; equal != 0 && left > 0; --left, equal &= equal - 1) marks.taken[i] |= equal & (~equal + 1);
    ties -= min(ties, total);
  }
  __syncthreads();
}

/// Calls write(position, page) for every page of `taken`, ascending, a warp a word, so that what is written lies side by side.
/// Returns their number. `before` [num_words] gets the positions of the words' first ones.
template <class Write>
__device__ int write_taken(const std::uint32_t* taken, std::int32_t* before, int num_words, int* scratch,
                           const Write& write) {
  int num_before = 0;
  for (int base = 0; base < num_words; base += kThreads) {
    const int i = base + thread_index();
    int total = 0;
    const int position = num_before + sum_before(i < num_words ? __popc(taken[i]) : 0, scratch, total);
    num_before += total;
    if (i < num_words) before[i] = position;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  for (int i = thread_index() / 32; i < num_words; i += kWarps) {
    const std::uint32_t word = taken[i];
    if ((word >> lane & 1) == 0) continue;
    write(before[i] + __popc(word & ((1U << lane) - 1U)), i * 32 + static_cast<int>(lane));
  }
  return num_before;
}

}  // namespace locks::cuda::select_kernels
