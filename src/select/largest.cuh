// The k largest of one list's shares, in ascending order of page: every thread block of the gang looks at its pages, and the
// first one puts the list together. Equal shares go to the lower page.
#pragma once

#include "select/cut.cuh"
#include "select/gang.cuh"

namespace locks::cuda::select_kernels {

// Members in shared memory. If the bucket has more it is divided again; if that does not help, because they are equal, they
// are read again and again where they are.
#ifdef LOCKS_EMULATED
inline constexpr int kStaged = 64;  // so that few are many
#else
inline constexpr int kStaged = 2048;
#endif

enum class Take { kCandidates, kCompletion };

/// Puts together what the gang has found.
template <Take kTake>
class Assembly {
 public:
  __device__ Assembly(const Lists& lists, const Gang& gang, void* memory)
      : lists_(lists),
        request_(gang.request),
        list_(gang.list),
        sink_pages_(gang.sink_pages),
        at_(lists.list_at(request_, list_)),
        members_(lists.buffers.members + at_ * lists.buffers.max_pages),
        staged_(static_cast<Member*>(memory)),
        num_words_((gang.num_pages + 31) / 32),
        taken_(reinterpret_cast<std::uint32_t*>(staged_ + kStaged)),
        equal_(taken_ + num_words_),
        before_(equal_ + num_words_) {}

  /// Of the members `wanted` are taken; their first `known_bits` are the same.
  __device__ void run(int wanted, int known_bits, int* scratch) {
    const std::uint32_t* const above = lists_.buffers.above + at_ * (lists_.buffers.max_pages / 32);
    for (int i = thread_index(); i < num_words_; i += kThreads) {
      taken_[i] = __ldcg(above + i);
      equal_[i] = 0;
    }
    num_members_ = __ldcg(lists_.buffers.num_members + at_);
    in_shared_ = num_members_ <= kStaged;
    for (int i = thread_index(); in_shared_ && i < num_members_; i += kThreads) staged_[i] = far_member(i);
    __syncthreads();
    const int equal = take_members(wanted, known_bits, scratch);
    const int total = place(equal, scratch);
    __syncthreads();
    write();
    if constexpr (kTake == Take::kCandidates) {
      write_counts(total);
    } else {
      mask_selected();
      if (threadIdx.x == 0) lists_.args.num_completed(request_, list_) = total;
    }
    if (threadIdx.x == 0) lists_.buffers.num_members[at_] = 0;
  }

 private:
  [[nodiscard]] __device__ Member far_member(int i) const { return {__ldcg(&members_[i].page), __ldcg(&members_[i].key)}; }
  [[nodiscard]] __device__ Member member(int i) const { return in_shared_ ? staged_[i] : far_member(i); }

  /// Marks the members above the cut, and those at it, of which the first so many are taken: that number is the answer. The
  /// lowest bucket can have fewer members than are wanted.
  __device__ int take_members(int wanted, int known_bits, int* scratch) {
    const Cut cut =
        find_cut(num_members_, min(wanted, num_members_), known_bits, scratch, [&](int i) { return member(i).key; });
    for (int i = thread_index(); i < num_members_; i += kThreads) {
      const auto [page, key] = member(i);
      if (key > cut.key) atomicOr(&taken_[page / 32], 1U << page % 32);
      if (key == cut.key) atomicOr(&equal_[page / 32], 1U << page % 32);
    }
    __syncthreads();
    return cut.equal;
  }

  /// Counts what is taken before each word, and takes the first `equal_left` of the equal ones.
  __device__ int place(int equal_left, int* scratch) {
    int num_before = 0;
    for (int first = 0; first < num_words_; first += kThreads) {
      const int i = first + thread_index();
      std::uint32_t word = i < num_words_ ? taken_[i] : 0;
      std::uint32_t ties = i < num_words_ ? equal_[i] : 0;
      int all_ties = 0;
      int allowed = equal_left - sum_before(__popc(ties), scratch, all_ties);
      for (; ties != 0 && allowed > 0; --allowed, ties &= ties - 1) word |= ties & (~ties + 1);
      equal_left -= min(equal_left, all_ties);
      int all_taken = 0;
      const int position = num_before + sum_before(__popc(word), scratch, all_taken);
      num_before += all_taken;
      if (i < num_words_) {
        taken_[i] = word;
        before_[i] = static_cast<std::uint32_t>(position);
      }
    }
    return num_before;
  }

  /// A warp a word, so that what is written lies side by side.
  __device__ void write() const {
    const SelectArgs& args = lists_.args;
    const unsigned lane = threadIdx.x % 32;
    for (int i = thread_index() / 32; i < num_words_; i += kWarps) {
      const std::uint32_t word = taken_[i];
      if ((word >> lane & 1) == 0) continue;
      const int position = static_cast<int>(before_[i]) + __popc(word & ((1U << lane) - 1U));
      const int page = sink_pages_ + i * 32 + static_cast<int>(lane);
      if constexpr (kTake == Take::kCandidates) {
        args.candidates(request_, list_, position) = page;
        if (args.config.part_tokens == kPageTokens) args.selected(request_, list_, position) = {page, kWholePage};
      } else {
        args.completed(request_, list_, position) = {page, kWholePage};
      }
    }
  }

  /// With whole pages the candidates are the selection.
  __device__ void write_counts(int total) const {
    const SelectArgs& args = lists_.args;
    if (threadIdx.x != 0) return;
    args.num_candidates(request_, list_) = total;
    if (args.config.part_tokens < kPageTokens) return;
    args.num_selected(request_, list_) = total;
    if (args.num_attended.data != nullptr) args.num_attended(request_, list_) = args.always_entries + total;
  }

  /// Of pages that are selected in part, the tokens that are not.
  __device__ void mask_selected() const {
    const SelectArgs& args = lists_.args;
    __syncthreads();
    const int num_selected = args.num_selected(request_, list_);
    for (int entry = thread_index(); entry < num_selected; entry += kThreads) {
      const SelectedPage selected = args.selected(request_, list_, entry);
      const int at_page = selected.page - sink_pages_;
      const std::uint32_t word = taken_[at_page / 32];
      if ((word >> at_page % 32 & 1) == 0) continue;
      const auto position = static_cast<int>(before_[at_page / 32]) + __popc(word & ((1U << at_page % 32) - 1U));
      args.completed(request_, list_, position).mask = static_cast<std::uint16_t>(~selected.mask);
    }
  }

  const Lists& lists_;
  int request_;
  int list_;
  int sink_pages_;
  std::int64_t at_;
  const Member* members_;
  Member* staged_;
  int num_words_;
  std::uint32_t* taken_;   // a bit a page
  std::uint32_t* equal_;   // those whose share is the smallest that is taken
  std::uint32_t* before_;  // pages taken before a word's
  int num_members_ = 0;
  bool in_shared_ = false;
};

/// What take_largest needs of shared memory.
[[nodiscard]] constexpr std::size_t assembly_bytes(int max_pages) noexcept {
  const std::size_t staged = kStaged * sizeof(Member);
  const std::size_t counts = kBuckets * sizeof(std::int32_t);
  return (staged > counts ? staged : counts) + static_cast<std::size_t>(max_pages) / 32 * 3 * sizeof(std::uint32_t);
}

/// Which shares are taken for sure, and which may be: those of a bucket, or of a part of it.
class Threshold {
 public:
  /// The gang has counted all shares. `counts` [kBuckets] in shared memory.
  __device__ Threshold(const Lists& lists, const Gang& gang, const float* share, int count, int* scratch,
                       std::int32_t* counts) {
    const std::int64_t at = lists.list_at(gang.request, gang.list) * kBuckets;
    bucket_ = find_bucket<kBuckets / kThreads>(lists.buffers.buckets + at, kBuckets, count, scratch);
    wanted = bucket_.wanted;
    // Inside the scale all shares of a bucket have the same leading bits.
    if (bucket_.index == 0 || bucket_.index == kBuckets - 1) return;
    known_bits = 11;
    if (bucket_.size <= kStaged) return;
    for (int i = thread_index(); i < kBuckets; i += kThreads) counts[i] = 0;
    __syncthreads();
    const int end = min(gang.last_block() * kBlockPages, gang.num_pages);
    for (int page = gang.first_block() * kBlockPages + thread_index(); page < end; page += kThreads) {
      if (bucket_of(share[page]) == bucket_.index) atomicAdd(&counts[next_digit(share[page])], 1);
    }
    __syncthreads();
    add_counts(counts, lists.buffers.fine_buckets + at);
    gang.sync();
    const Bucket fine = find_bucket<kBuckets / kThreads>(lists.buffers.fine_buckets + at, kBuckets, wanted, scratch);
    fine_index_ = fine.index;
    wanted = fine.wanted;
    known_bits = 22;
  }

  /// Positive: taken; 0: a member; negative: not taken.
  [[nodiscard]] __device__ int side(float share) const {
    const int side = bucket_of(share) - bucket_.index;
    return side != 0 || fine_index_ < 0 ? side : next_digit(share) - fine_index_;
  }

  int wanted = 0;      // of the members
  int known_bits = 0;  // that all members share

 private:
  static constexpr int kFineShift = kBucketShift - 11;
  static_assert(kBuckets == 1 << 11);
  [[nodiscard]] static __device__ int next_digit(float share) {
    return static_cast<int>(__float_as_uint(share) >> kFineShift & (kBuckets - 1U));
  }
  Bucket bucket_;
  int fine_index_ = -1;  // the bucket was not divided
};

/// Finds the list's largest shares, once the gang has counted them all. `memory`: assembly_bytes.
template <Take kTake>
__device__ void take_largest(const Lists& lists, const Gang& gang, int* scratch, void* memory) {
  const SelectArgs& args = lists.args;
  const Buffers& buffers = lists.buffers;
  const AlwaysAttended always = lists.always(gang.request);
  const auto capacity = static_cast<int>(kTake == Take::kCandidates ? args.candidates.shape[2] : args.completed.shape[2]);
  const int count = min(capacity, kTake == Take::kCandidates ? select::candidate_pages(args.config, always)
                                                             : select::completed_pages(args.config, always));
  if (count == 0) return;
  const std::int64_t at = lists.list_at(gang.request, gang.list);
  const float* const share = buffers.share + at * buffers.max_pages;
  std::uint32_t* const above = buffers.above + at * (buffers.max_pages / 32);
  Member* const members = buffers.members + at * buffers.max_pages;
  __shared__ int next_member;
  if (threadIdx.x == 0) next_member = 0;
  const Threshold threshold(lists, gang, share, count, scratch, static_cast<std::int32_t*>(memory));
  const unsigned lane = threadIdx.x % 32;
  const int first_page = gang.first_block() * kBlockPages + thread_index();
  const int end = min(gang.last_block() * kBlockPages, gang.num_pages);
  // A page without any share stands for nothing in the completion, and is not even looked at.
  const auto is_member = [&](float value) {
    return threshold.side(value) == 0 && (kTake == Take::kCandidates || value > 0.0F);
  };
  int own_members = 0;  // of the warp
#pragma unroll 1
  for (int page = first_page; page - static_cast<int>(lane) < end; page += kThreads) {  // whole warps
    const float value = page < end ? share[page] : 0.0F;
    const unsigned above_it = __ballot_sync(kWarp, page < end && threshold.side(value) > 0);
    own_members += __popc(__ballot_sync(kWarp, page < end && is_member(value)));
    if (lane == 0) above[page / 32] = above_it;
  }
  if (lane == 0 && own_members > 0) atomicAdd(&next_member, own_members);
  __syncthreads();
  if (threadIdx.x == 0 && next_member > 0) next_member = atomicAdd(&buffers.num_members[at], next_member);
  __syncthreads();
#pragma unroll 1
  for (int page = first_page; own_members > 0 && page - static_cast<int>(lane) < end; page += kThreads) {
    const float value = page < end ? share[page] : 0.0F;
    const bool is_one = page < end && is_member(value);
    const unsigned all = __ballot_sync(kWarp, is_one);
    int place = 0;
    if (lane == 0 && all != 0) place = atomicAdd(&next_member, __popc(all));
    place = __shfl_sync(kWarp, place, 0) + __popc(all & ((1U << lane) - 1U));
    if (is_one) members[place] = {page, __float_as_uint(value)};
  }
  gang.sync();
  if (gang.rank == 0) Assembly<kTake>(lists, gang, memory).run(threshold.wanted, threshold.known_bits, scratch);
}

}  // namespace locks::cuda::select_kernels
