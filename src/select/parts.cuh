// The best parts of one list's candidates, and what is left of the shares when they are taken out.
#pragma once

#include "select/largest.cuh"
#include "select/masses.cuh"

namespace locks::cuda::select_kernels {

/// Masses of a page's parts: neighbours are added, then their sums, and so on, until `part_tokens` are in each.
__device__ inline void weigh_page(float (&mass)[kPageTokens], int part_tokens, float log_norm, float* parts) {
#pragma unroll
  for (float& value : mass) value = select::share_exp(value - log_norm);
  int left = kPageTokens;
#pragma unroll
  for (int tokens = 2; tokens <= kPageTokens / 2; tokens *= 2) {
    if (tokens <= part_tokens) {
      left = kPageTokens / tokens;
#pragma unroll
      for (int i = 0; i < kPageTokens / tokens; ++i) mass[i] = mass[2 * i] + mass[2 * i + 1];
    }
  }
#pragma unroll
  for (int i = 0; i < kPageTokens; ++i) {
    if (i < left) parts[i] = mass[i];
  }
}

/// One list, in the hands of one thread block.
struct PartChoice {
  const Lists& lists;
  int request;
  int list;
  int num_candidates;
  int num_parts;  // of a page
  float* part_shares;
  const float* share;

  __device__ PartChoice(const Lists& all, int the_request, int the_list, const AlwaysAttended& always)
      : lists(all),
        request(the_request),
        list(the_list),
        num_candidates(all.args.num_candidates(the_request, the_list)),
        num_parts(kPageTokens / all.args.config.part_tokens),
        part_shares(all.buffers.part_shares + all.list_at(the_request, the_list) * all.buffers.capacity * num_parts),
        share(all.buffers.share + all.list_at(the_request, the_list) * all.buffers.max_pages - always.sink_pages) {}

  [[nodiscard]] __device__ int page(int candidate) const { return lists.args.candidates(request, list, candidate); }
  [[nodiscard]] __device__ float log_norm(int head) const {
    return lists.buffers.log_norm[lists.head_at(request, list * lists.heads + head)];
  }
  /// Which candidate an entry of the selection is.
  [[nodiscard]] __device__ std::int32_t* entry_candidates() const {
    return lists.buffers.entry_candidates + lists.list_at(request, list) * lists.buffers.capacity;
  }
  /// Mass of a part for one head, once weigh() has been there.
  [[nodiscard]] __device__ float& of_head(int candidate, int part, int head) const {
    const std::int64_t row = lists.head_at(request, list * lists.heads + head) * lists.buffers.capacity;
    return lists.buffers.head_part_shares[(row + candidate) * num_parts + part];
  }

  /// The shares of all parts, of each head and combined.
  __device__ void weigh() const {
    const int tokens = lists.args.config.part_tokens;
    for (int i = static_cast<int>(threadIdx.x); i < num_candidates * lists.heads; i += kTakeThreads) {
      const int candidate = i / lists.heads;
      const int head = i % lists.heads;
      const auto* const rows = reinterpret_cast<const float4*>(lists.args.logits.at(request, list, candidate, head));
      float logits[kPageTokens];
#pragma unroll
      for (int row = 0; row < kPageTokens / 4; ++row) reinterpret_cast<float4*>(logits)[row] = rows[row];
      weigh_page(logits, tokens, log_norm(head), &of_head(candidate, 0, head));
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < num_candidates * num_parts; i += kTakeThreads) {
      const int candidate = i / num_parts;
      float combined = 0.0F;
#pragma unroll 8
      for (int head = 0; head < lists.heads; ++head) {
        const float own = of_head(candidate, i % num_parts, head);
        combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, own) : combined + own;
      }
      part_shares[i] = share[page(candidate)] == kInfinity ? kInfinity : combined;
    }
    __syncthreads();
  }

  /// Writes the list. Each thread has some candidates in a row.
  __device__ int write_selected(const Cut& cut, int* scratch) const {
    const int per_thread = (num_candidates + kTakeThreads - 1) / kTakeThreads;
    const int first = min(num_candidates, static_cast<int>(threadIdx.x) * per_thread);
    const int last = min(num_candidates, first + per_thread);
    int ties = 0;
    for (int i = first * num_parts; i < last * num_parts; ++i) ties += __float_as_uint(part_shares[i]) == cut.key ? 1 : 0;
    int total = 0;
    const int allowed = cut.equal - sum_before(ties, scratch, total);
    // Twice the same walk: to count the entries, and to write them.
    const auto walk = [&](const auto& on_entry) {
      int left = allowed;
      for (int candidate = first; candidate < last; ++candidate) {
        std::uint32_t mask = 0;
        for (int part = 0; part < num_parts; ++part) {
          const std::uint32_t key = __float_as_uint(part_shares[candidate * num_parts + part]);
          const bool takes = key > cut.key || (key == cut.key && left-- > 0);
          const int tokens = lists.args.config.part_tokens;
          if (takes) mask |= ((1U << tokens) - 1U) << (part * tokens);
        }
        if (mask != 0) on_entry(candidate, static_cast<std::uint16_t>(mask));
      }
    };
    int entries = 0;
    walk([&](int, std::uint16_t) { ++entries; });
    int position = sum_before(entries, scratch, total);
    walk([&](int candidate, std::uint16_t mask) {
      entry_candidates()[position] = candidate;
      lists.args.selected(request, list, position++) = {page(candidate), mask};
    });
    __syncthreads();
    return total;
  }

  /// What selected pages leave unselected, a head at a time.
  __device__ void weigh_rest(int num_selected) const {
    for (int i = static_cast<int>(threadIdx.x); i < num_selected * lists.heads; i += kTakeThreads) {
      const int entry = i / lists.heads;
      const int head = i % lists.heads;
      const SelectedPage selected = lists.args.selected(request, list, entry);
      const bool none_left = selected.mask == kWholePage || share[selected.page] == kInfinity;
      float left = 0.0F;
      for (int part = 0; !none_left && part < num_parts; ++part) {
        const bool taken = (selected.mask >> (part * lists.args.config.part_tokens) & 1) != 0;
        left += taken ? 0.0F : of_head(entry_candidates()[entry], part, head);
      }
      lists.buffers.left[lists.head_at(request, list * lists.heads + head) * lists.buffers.capacity + entry] = left;
    }
  }
};

/// Grid: lists, requests.
__global__ void __launch_bounds__(kTakeThreads, 1) choose_parts(const __grid_constant__ Lists lists) {
  __shared__ int scratch[kTakeThreads / 32];
  const int list = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.y);
  const AlwaysAttended always = lists.always(request);
  const PartChoice choice(lists, request, list, always);
  int num_selected = choice.num_candidates;
  if (choice.num_candidates > 0 && choice.num_parts > 1) {
    choice.weigh();
    const int all = choice.num_candidates * choice.num_parts;
    const int count = min(select::remaining_tokens(lists.args.config, always) / lists.args.config.part_tokens, all);
    const Cut cut = find_cut<4>(all, count, scratch, [&](int i) { return __float_as_uint(choice.part_shares[i]); });
    num_selected = choice.write_selected(cut, scratch);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < num_selected; i += kTakeThreads) {
      lists.args.selected(request, list, i) = {choice.page(i), kWholePage};
    }
    __syncthreads();
  }
  choice.weigh_rest(num_selected);
  if (threadIdx.x == 0) lists.args.num_selected(request, list) = num_selected;
}

/// Takes the selection out of the shares, block by block. Grid: blocks, lists, requests.
__global__ void __launch_bounds__(kThreads) remove_selected(const __grid_constant__ Lists lists) {
  __shared__ int entry_of[kBlockPages];  // of the page, or -1
  const int request = static_cast<int>(blockIdx.z);
  const int list = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(blockIdx.x);
  const AlwaysAttended always = lists.always(request);
  const int pages = always.selectable_pages() - block * kBlockPages;
  if (pages <= 0) return;
  const Buffers& buffers = lists.buffers;
  const int own = static_cast<int>(threadIdx.x);
  const int first_page = always.sink_pages + block * kBlockPages;
  entry_of[own] = -1;
  __syncthreads();
  const int num_selected = lists.args.num_selected(request, list);
  for (int entry = own; entry < num_selected; entry += kThreads) {
    const int page = lists.args.selected(request, list, entry).page - first_page;
    if (page >= 0 && page < kBlockPages) entry_of[page] = entry;
  }
  __syncthreads();
  float& share = buffers.share[lists.list_at(request, list) * buffers.max_pages + block * kBlockPages + own];
  const bool marked = own < pages && share == kInfinity;
  if (!__syncthreads_or(entry_of[own] >= 0 || marked)) return;

  const auto left_of = [&](int in_list, int entry) {
    return buffers.left[lists.head_at(request, list * lists.heads + in_list) * buffers.capacity + entry];
  };
  const int lane = own % kLanes;
  for (int first = 0; first < lists.heads; first += kHalfWarps) {
    const int in_list = min(first + own / kLanes, lists.heads - 1);  // some work twice
    const std::int64_t at = lists.head_at(request, list * lists.heads + in_list);
    const float* const log_mass = lists.log_mass(request, list * lists.heads + in_list, always) + block * kBlockPages;
    float sum = 0.0F;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int page = row * kLanes + lane;
      const float mass = page < pages ? log_mass[page] : -kInfinity;
      float rest = mass == kInfinity ? 0.0F : select::share_exp(select::mass_or_none(mass) - buffers.log_norm[at]);
      if (entry_of[page] >= 0) rest = left_of(in_list, entry_of[page]);
      sum += rest;
    }
    sum = fold_half_warp(sum);
    if (lane == 0) buffers.block_shares[at * buffers.max_blocks + block] = sum;
  }
  if (entry_of[own] < 0 && !marked) return;
  float combined = 0.0F;
  for (int head = 0; entry_of[own] >= 0 && head < lists.heads; ++head) {
    const float left = left_of(head, entry_of[own]);
    combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, left) : combined + left;
  }
  std::int32_t* const buckets = buffers.buckets + lists.list_at(request, list) * kBuckets;
  atomicSub(&buckets[__float_as_uint(share) >> kBucketShift], 1);
  atomicAdd(&buckets[__float_as_uint(combined) >> kBucketShift], 1);
  share = combined;
}

}  // namespace locks::cuda::select_kernels
