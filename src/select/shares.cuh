// From log-masses to shares. A share needs the masses of all pages, so the gang meets between the two steps.
#pragma once

#include "select/cut.cuh"

namespace locks::cuda::select_kernels {

inline constexpr int kRows = kBlockPages / kLanes;  // of 16 pages: what a thread of a half-warp has of a block

/// Says what holds for a list that selects nothing.
__device__ inline void prepare(const Lists& lists, const Gang& gang) {
  const SelectArgs& args = lists.args;
  if (gang.rank != 0) return;
  if (threadIdx.x == 0) {
    args.num_candidates(gang.request, gang.list) = 0;
    args.num_selected(gang.request, gang.list) = 0;
    args.num_completed(gang.request, gang.list) = 0;
    if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries;
  }
  for (int head = thread_index(); head < lists.heads; head += num_threads()) {
    args.skipped_log_mass(gang.request, gang.list * lists.heads + head) = -kInfinity;
    args.coverage(gang.request, gang.list * lists.heads + head) = 1.0F;
  }
}

/// Blocks of pages of one list that a thread block weighs at a time: of all heads, and what it keeps of them.
struct Round {
  int first;
  int last;
  float* masses;   // [blocks, heads, kBlockPages]: of pages, counted from the block's origin; +infinity: marked
  float* factors;  // [blocks, heads]: the origins; then what makes shares of the masses
};

/// The masses of a round's blocks. A half-warp takes a block and a head; one that has none beside one that does only keeps
/// the warp whole.
__device__ inline void weigh_blocks(const Lists& lists, const Gang& gang, const Round& round) {
  const int lane = thread_index() % kLanes;
  const int count = (round.last - round.first) * lists.heads;
  for (int base = 0; base + thread_index() / 32 * 2 < count; base += num_half_warps()) {  // whole warps
    const bool works = base + thread_index() / kLanes < count;
    const int index = min(base + thread_index() / kLanes, count - 1);
    const int block = round.first + index / lists.heads;
    const int head = gang.list * lists.heads + index % lists.heads;
    const float* const log_mass =
        lists.args.log_mass.at(gang.request, head, gang.sink_pages) + std::int64_t{block} * kBlockPages + lane;
    const int pages = works ? gang.num_pages - block * kBlockPages - lane : 0;
    float* const own_masses = round.masses + index * kBlockPages + lane;
    // Of two neighbouring rows each half-warp of a warp takes the other first: they are in different banks.
    const int odd = thread_index() / kLanes % 2;
    float peak = -kInfinity;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int at = (row ^ odd) * kLanes;
      const float mass = at < pages ? log_mass[at] : -kInfinity;
      if (works) own_masses[at] = mass;
      peak = fmaxf(peak, select::mass_or_none(mass));
    }
    peak = largest_of_half_warp(peak);
    const float origin = peak > -kInfinity ? peak : 0.0F;
    float sum = 0.0F;
#pragma unroll 2
    for (int row = 0; works && row < kRows; row += 2) {
      float* const mine = own_masses + (row + odd) * kLanes;
      float* const next = own_masses + (row + 1 - odd) * kLanes;
      const float a = select::from_block(*mine, origin);
      const float b = select::from_block(*next, origin);
      *mine = a;
      *next = b;
      const float first = odd == 0 ? a : b;
      const float second = odd == 0 ? b : a;
      sum += first < kInfinity ? first : 0.0F;
      sum += second < kInfinity ? second : 0.0F;
    }
    sum = fold_half_warp(sum);
    if (!works || lane != 0) continue;
    round.factors[index] = origin;
    lists.buffers.masses[lists.head_at(gang.request, head) * lists.buffers.max_blocks + block] = {origin, sum};
  }
}

/// The logarithms of what is always attended, to norms. The last threads do it: they are the last to get a block to weigh.
__device__ inline void read_always(const Lists& lists, const Gang& gang, float* norms) {
  for (int i = num_threads() - 1 - thread_index(); i < lists.heads; i += num_threads()) {
    norms[i] = always_log_mass(lists, gang.request, gang.list * lists.heads + i);
  }
}

/// From those, the logarithms of the heads' whole masses; every thread block of the gang needs them.
__device__ inline void find_norms(const Lists& lists, const Gang& gang, float* norms) {
  const int half_warp = thread_index() / kLanes;
  for (int first = 0; first + half_warp / 2 * 2 < lists.heads; first += num_half_warps()) {  // whole warps
    const int in_list = min(first + half_warp, lists.heads - 1);
    const int head = gang.list * lists.heads + in_list;
    const std::int64_t at = lists.head_at(gang.request, head);
    const select::WholeMass whole =
        half_warp_whole_mass(lists.buffers.masses + at * lists.buffers.max_blocks, gang.num_blocks(), norms[in_list]);
    if (thread_index() % kLanes != 0) continue;
    norms[in_list] = whole.log_norm;
    if (gang.rank == 0) lists.buffers.whole_masses[at] = whole;
  }
  __syncthreads();
}

/// The shares of a round's pages, combined over the heads, to `share`, and how many are in each bucket.
__device__ inline void share_pages(const Lists& lists, const Gang& gang, const Round& round, const float* norms,
                                   float* share, std::int32_t* counts) {
  const int heads = lists.heads;
  for (int i = thread_index(); i < (round.last - round.first) * heads; i += num_threads()) {
    round.factors[i] = select::share_exp(round.factors[i] - norms[i % heads]);
  }
  __syncthreads();
  const int pages = min(gang.num_pages - round.first * kBlockPages, (round.last - round.first) * kBlockPages);
  for (int page = thread_index(); page < pages; page += num_threads()) {
    const int block = page / kBlockPages;
    const float* const masses = round.masses + block * heads * kBlockPages + page % kBlockPages;
    const float* const factors = round.factors + block * heads;
    float all = select::page_share(masses[0], factors[0]);
#pragma unroll 4
    for (int head = 1; head < heads; ++head) {
      const float own = select::page_share(masses[head * kBlockPages], factors[head]);
      all = lists.args.config.combine == GroupCombine::kMax ? fmaxf(all, own) : all + own;
    }
    share[page] = all;
    atomicAdd(&counts[first_bucket_of(__float_as_uint(all))], 1);
  }
  __syncthreads();
}

}  // namespace locks::cuda::select_kernels
