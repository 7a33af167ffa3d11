// The k largest of one list's shares: every thread block of the gang marks its pages, and one of them decides where the cut
// is. Equal shares go to the lower page.
#pragma once

#include "select/cut.cuh"
#include "select/gang.cuh"

namespace locks::cuda::select_kernels {

// Members of a search that are told to the block that decides. With more the gang narrows the search.
#ifdef LOCKS_EMULATED
inline constexpr int kMembers = 192;  // so that few are many, but more than kFew
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
  share_out(kBuckets, [&](int i) {
    if (buckets[i] > 0) atomicAdd(&all[i], buckets[i]);
  });
}

/// From a warp of the first block to all: what it has found.
__device__ inline void tell(const Gang& gang, Search* found, const Search& search) {
  const int lane = thread_index() % 32;
  if (lane < gang.size()) *gang.at(found, lane) = search;
}

/// Divides a search again and again, until few members are left or all are equal. `share` is that of the gang's block.
__device__ inline void narrow(const Gang& gang, const float* share, int pages, const Counts& counts, int of) {
  const Search& search = counts.found[of];  // read again and again: registers are scarce here
  while (search.size > kMembers && !search.is_one_key()) {
    share_out(kBuckets, [&](int i) { counts.buckets[i] = 0; });
    gang.sync();
    share_out(pages, [&](int page) {
      const std::uint32_t key = __float_as_uint(share[page]);
      if (search.side(key) == 0) atomicAdd(&counts.buckets[search.bucket_of(key)], 1);
    });
    __syncthreads();
    gather_counts(gang, counts.buckets);
    gang.sync();
    if (gang.rank == 0 && threadIdx.x < 32) {
      const Search next = search.narrowed(find_bucket(counts.buckets, search.wanted));
      __syncwarp();  // all have read the search
      tell(gang, counts.found + of, next);
    }
    gang.sync();
  }
}

/// Tells the blocks that decide which of this block's pages are taken, and which may be: by kNum searches, the first of them
/// `first`, side by side, as places among another block's members are long in coming. `first_page` is the block's, a
/// multiple of 32. A completion has no marked pages and none without a share.
template <int kNum>
__device__ void mark(const Search* found, int first, const float* share, int first_page, int pages,
                     const Marks (&there)[kNum]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (int page = thread_index(); page - static_cast<int>(lane) < pages; page += num_threads()) {  // whole warps
    const std::uint32_t key = page < pages ? __float_as_uint(share[page]) : 0;
    unsigned members[kNum];
    int places[kNum] = {};
#pragma unroll
    for (int i = 0; i < kNum; ++i) {
      const Search& search = found[first + i];
      const bool counts = page < pages && !(first + i == kCompletion && (key == 0 || key == kInfinityKey));
      const unsigned above = __ballot_sync(kWarp, counts && search.side(key) > 0);
      members[i] = __ballot_sync(kWarp, counts && search.side(key) == 0);
      if (lane == 0) {
        there[i].taken()[(first_page + page) / 32] = above;
        there[i].equal()[(first_page + page) / 32] = search.is_one_key() ? members[i] : 0;
      }
      if (search.is_one_key()) members[i] = 0;
      if (lane == 0 && members[i] != 0) places[i] = atomicAdd(&there[i].num_members(), __popc(members[i]));
    }
#pragma unroll
    for (int i = 0; i < kNum; ++i) {
      const int place = __shfl_sync(kWarp, places[i], 0) + __popc(members[i] & ((1U << lane) - 1U));
      if ((members[i] >> lane & 1) != 0) there[i].members()[place] = {first_page + page, key};
    }
  }
}

/// Of the members, takes those that are wanted.
__device__ inline void take_members(Search search, const Marks& marks, int num_words, int* scratch, std::int32_t* counts) {
  const auto take = [&](int page) { atomicOr(&marks.taken()[page / 32], 1U << page % 32); };
  const Member* const members = marks.members();
  int ties = search.wanted;
  if (!search.is_one_key()) {
    search.size = marks.num_members();
    search.wanted = min(search.wanted, search.size);  // a completion has no members without a share
    if (search.size <= kFew) {
      const auto comes_before = [&](int i, int other) {
        const auto [page, key] = members[i];
        return members[other].key > key || (members[other].key == key && members[other].page < page) ? 1 : 0;
      };
      int own = 0;
      const int before = count_of_few(search.size, comes_before, own);
      if (own < search.size && before < search.wanted) take(members[own].page);
      __syncthreads();
      return;
    }
    const Cut cut = find_cut(search, search.size, counts, false, [&](int i) { return members[i].key; });
    const bool all = cut.wanted == cut.equal;
    share_out(search.size, [&](int i) {
      const auto [page, key] = members[i];
      if (key > cut.key || (key == cut.key && all)) take(page);
      if (key == cut.key && !all) atomicOr(&marks.equal()[page / 32], 1U << page % 32);
    });
    __syncthreads();
    if (all) return;
    ties = cut.wanted;
  }
#pragma unroll 1
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
#pragma unroll 1
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
