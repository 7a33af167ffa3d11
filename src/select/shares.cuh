// From log-masses to shares. A share needs the masses of all pages, so each block waits for all masses between the two
// steps.
#pragma once

#include "select/cut.cuh"
#include "select/mailbox.cuh"

namespace locks::cuda::select_kernels {

/// Says what holds for a list that selects nothing.
__device__ inline void prepare(const Lists& lists, const Gang& gang) {
  const SelectArgs& args = lists.args;
  if (gang.rank != 0) return;
  if (thread_index() == num_threads() - 1) {
    args.num_candidates(gang.request, gang.list) = 0;
    args.num_selected(gang.request, gang.list) = 0;
    args.num_completed(gang.request, gang.list) = 0;
    if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries;
  }
  share_out(lists.heads, [&](int head) {
    args.skipped_log_mass(gang.request, gang.list * lists.heads + head) = -kInfinity;
    args.coverage(gang.request, gang.list * lists.heads + head) = 1.0F;
  });
}

/// Blocks of pages of one list that a thread block weighs at a time: of all heads, and what it keeps of them.
struct Round {
  int first;
  int last;
  float* masses;   // [blocks, heads, kBlockPages]: of pages, counted from the block's origin; +infinity: marked
  float* factors;  // [blocks, heads]: the origins; then what makes shares of the masses
};

/// The masses of a round's blocks. A warp takes a block and a head; its halves have every other 16 pages. Their sums go to
/// the workspace, and if there is `gathered` [heads, max_blocks] to there in all blocks of the gang.
__device__ inline void weigh_blocks(const Lists& lists, const Gang& gang, const Round& round, const Mailbox& mailbox,
                                    select::BlockMass* gathered) {
  constexpr int kWarpSize = 32;
  constexpr int kRows = kBlockPages / kWarpSize;
  const int lane = thread_index() % kWarpSize;
  const int count = (round.last - round.first) * lists.heads;
#pragma unroll 1
  for (int index = thread_index() / kWarpSize; index < count; index += num_warps()) {
    const auto [in_round, in_list] = lists.divided(index);
    const int block = round.first + in_round;
    const int head = gang.list * lists.heads + in_list;
    const float* const log_mass =
        lists.args.log_mass.at(gang.request, head, gang.sink_pages) + std::int64_t{block} * kBlockPages + lane;
    const int pages = gang.num_pages - block * kBlockPages - lane;
    float* const own_masses = round.masses + index * kBlockPages + lane;
    float mass[kRows];
    float peak = -kInfinity;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      mass[row] = row * kWarpSize < pages ? log_mass[row * kWarpSize] : -kInfinity;
      peak = fmaxf(peak, select::mass_or_none(mass[row]));
    }
    peak = largest_of_half_warp(peak);
    peak = fmaxf(peak, __shfl_xor_sync(kWarp, peak, kLanes));
    const float origin = peak > -kInfinity ? peak : 0.0F;
    float sum = 0.0F;  // of the lower half's
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float own = select::from_block(mass[row], origin);
      own_masses[row * kWarpSize] = own;
      const float counted = own < kInfinity ? own : 0.0F;
      const float next = __shfl_down_sync(kWarp, counted, kLanes);
      sum += counted;
      sum += next;
    }
    sum = fold_half_warp(sum);
    const select::BlockMass mass_of_block{origin, __shfl_sync(kWarp, sum, 0)};
    if (gathered != nullptr && lane < gang.size()) {
      mailbox.send(gathered + in_list * lists.buffers.max_blocks + block, mass_of_block, lane);
    }
    if (lane != 0) continue;
    round.factors[index] = origin;
    lists.buffers.masses[lists.head_at(gang.request, head) * lists.buffers.max_blocks + block] = mass_of_block;
  }
}

/// The logarithms of what is always attended, to norms. The last threads do it: they are the last to get a block to weigh.
__device__ inline void read_always(const Lists& lists, const Gang& gang, float* norms) {
#pragma unroll 1
  for (int i = num_threads() - 1 - thread_index(); i < lists.heads; i += num_threads()) {
    norms[i] = always_log_mass(lists, gang.request, gang.list * lists.heads + i);
  }
}

/// From those, the logarithms of the heads' whole masses; every thread block of the gang needs them. `gathered`: as in
/// weigh_blocks().
__device__ inline void find_norms(const Lists& lists, const Gang& gang, const select::BlockMass* gathered, float* norms) {
  const int half_warp = thread_index() / kLanes;
#pragma unroll 1
  for (int first = 0; first + half_warp / 2 * 2 < lists.heads; first += num_half_warps()) {  // whole warps
    const int in_list = min(first + half_warp, lists.heads - 1);
    const int head = gang.list * lists.heads + in_list;
    const std::int64_t at = lists.head_at(gang.request, head);
    const select::BlockMass* const masses = gathered != nullptr ? gathered + in_list * lists.buffers.max_blocks
                                                                : lists.buffers.masses + at * lists.buffers.max_blocks;
    const select::WholeMass whole = half_warp_whole_mass(masses, gang.num_blocks(), norms[in_list]);
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
  share_out((round.last - round.first) * heads,
            [&](int i) { round.factors[i] = select::share_exp(round.factors[i] - norms[lists.divided(i).head]); });
  __syncthreads();
  const int pages = min(gang.num_pages - round.first * kBlockPages, (round.last - round.first) * kBlockPages);
  share_out(pages, [&](int page) {
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
  });
  __syncthreads();
}

/// A head's share of a page, as share_pages() has it, once norms have been found. It may be another kernel's turn: what the
/// first-level cache has may be of the last step.
__device__ inline float share_of_page(const Lists& lists, const Gang& gang, int in_list, int page) {
  const int head = gang.list * lists.heads + in_list;
  const std::int64_t at = lists.head_at(gang.request, head);
  const float log_norm = __ldcg(&lists.buffers.whole_masses[at].log_norm);
  const int block = (page - gang.sink_pages) / kBlockPages;
  const float origin = __ldcg(&lists.buffers.masses[at * lists.buffers.max_blocks + block].origin);
  const float from_block = select::from_block(__ldcg(lists.args.log_mass.at(gang.request, head, page)), origin);
  return select::page_share(from_block, select::share_exp(origin - log_norm));
}

/// The skipped mass of a head, and its coverage: of the selected pages `of_rests`, of the others all, which is what the
/// `selected` ones leave with their `of_selected`.
__device__ inline void say_skipped(const Lists& lists, const Gang& gang, int in_list, int selected, float of_selected,
                                   float of_rests) {
  const int head = gang.list * lists.heads + in_list;
  const auto [log_norm, block_share] = lists.buffers.whole_masses[lists.head_at(gang.request, head)];
  const float others = selected < gang.num_pages ? fmaxf(0.0F, block_share - of_selected) : 0.0F;
  const float skipped = fminf(1.0F, others + of_rests);  // tokens may seem to have more than their page
  lists.args.skipped_log_mass(gang.request, head) = skipped > 0.0F ? log_norm + select::share_log(skipped) : -kInfinity;
  lists.args.coverage(gang.request, head) = 1.0F - skipped;
}

/// What takes the place of all this where scores are compared as they are: a list has one row of them. Their keys, and how
/// many are in each bucket, of the pages from `first_page` on.
__device__ inline void rank_pages(const Lists& lists, const Gang& gang, int first_page, int pages, float* keys,
                                  std::int32_t* counts) {
  const float* const scores = lists.args.log_mass.at(gang.request, gang.list, gang.sink_pages + first_page);
  share_out(pages, [&](int page) {
    const std::uint32_t key = rank_key(scores[page]);
    keys[page] = __uint_as_float(key);
    atomicAdd(&counts[key >> kRankShift], 1);
  });
  __syncthreads();
}

}  // namespace locks::cuda::select_kernels
