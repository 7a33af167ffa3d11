// The best parts of one list's candidates, and what they leave. The gang weighs them, its first block chooses.
#pragma once

#include "select/cut.cuh"
#include "select/gang.cuh"

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

/// What is kept of each candidate (candidate_words), in shared memory or, if there are too many, in the workspace.
struct Candidates {
  std::int32_t* page;   // [candidates], of the request
  std::uint32_t* mask;  // [candidates]: selected tokens
  float* part_shares;   // [candidates, parts]; +infinity: marked always-attend
  float* shares;        // [candidates, heads]: of the whole pages
  float* of_heads;      // [candidates, heads, parts], none with whole pages; then, in the first of the parts, what is left
                        // unselected

  __device__ Candidates(std::uint32_t* memory, int capacity, int parts, int heads)
      : page(reinterpret_cast<std::int32_t*>(memory)),
        mask(memory + capacity),
        part_shares(reinterpret_cast<float*>(memory + 2 * capacity)),
        shares(part_shares + std::int64_t{capacity} * parts),
        of_heads(shares + std::int64_t{capacity} * heads) {}
};

/// The choice of one list's parts.
struct PartChoice {
  const Lists& lists;
  const Gang& gang;
  const Candidates& candidates;  // of this block
  int count;
  int num_parts;  // of a page

  [[nodiscard]] __device__ bool is_marked(int candidate) const {
    return candidates.part_shares[candidate * num_parts] == kInfinity;
  }

  /// Tells the first block the pages of this block's candidates, and their shares for each head. It may come before the
  /// kernel in front has ended, which writes none of what is read here; the first-level cache may have it from the last
  /// step.
  __device__ void weigh_pages(const Candidates& there) const {
    const SelectArgs& args = lists.args;
    const int heads = lists.heads;
    for (int i = gang.rank * num_threads() + thread_index(); i < count * heads; i += gang.size() * num_threads()) {
      const int candidate = i / heads;
      const int head = gang.list * heads + i - candidate * heads;
      const int page = __ldcg(args.candidates.at(gang.request, gang.list, candidate));
      const std::int64_t at = lists.head_at(gang.request, head);
      const float log_norm = __ldcg(&lists.buffers.whole_masses[at].log_norm);
      const int block = (page - gang.sink_pages) / kBlockPages;
      const float origin = __ldcg(&lists.buffers.masses[at * lists.buffers.max_blocks + block].origin);
      const float from_block = select::from_block(__ldcg(args.log_mass.at(gang.request, head, page)), origin);
      there.shares[i] = select::page_share(from_block, select::share_exp(origin - log_norm));
      if (i == candidate * heads) there.page[candidate] = page;
    }
  }
  /// And the shares of all their parts, from the scores of the kernel in front.
  __device__ void weigh_parts(const Candidates& there) const {
    const int heads = lists.heads;
    for (int i = gang.rank * num_threads() + thread_index(); i < count * heads; i += gang.size() * num_threads()) {
      const int candidate = i / heads;
      const int in_list = i - candidate * heads;
      const auto* const rows =
          reinterpret_cast<const float4*>(lists.args.logits.at(gang.request, gang.list, candidate, in_list));
      float logits[kPageTokens];
#pragma unroll
      for (int row = 0; row < kPageTokens / 4; ++row) reinterpret_cast<float4*>(logits)[row] = rows[row];
      const std::int64_t at = lists.head_at(gang.request, gang.list * heads + in_list);
      const float log_norm = __ldcg(&lists.buffers.whole_masses[at].log_norm);
      weigh_page(logits, lists.args.config.part_tokens, log_norm, there.of_heads + i * num_parts);
    }
  }

  /// The shares of all parts, combined; whole pages are all selected.
  __device__ void combine() const {
    const int heads = lists.heads;
    for (int i = thread_index(); i < count * num_parts; i += num_threads()) {
      const int candidate = i / num_parts;
      const float* const own = candidates.of_heads + candidate * heads * num_parts + i % num_parts;
      float combined = 0.0F;
      bool marked = false;
#pragma unroll 4
      for (int head = 0; head < heads; ++head) {
        marked = marked || candidates.shares[candidate * heads + head] == kInfinity;
        const float other = num_parts > 1 ? own[head * num_parts] : 0.0F;
        combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, other) : combined + other;
      }
      candidates.part_shares[i] = marked ? kInfinity : combined;
      if (num_parts == 1) candidates.mask[candidate] = kWholePage;
    }
    __syncthreads();
  }

  /// The masks of the best parts. Each thread has some candidates in a row.
  __device__ void choose(int* scratch, std::int32_t* counts) const {
    const int tokens = lists.args.config.part_tokens;
    const int all = count * num_parts;
    const int wanted = min(select::remaining_tokens(lists.args.config, lists.always(gang.request)) / tokens, all);
    const Cut cut = find_cut({0, kInfinityKey + 1, wanted, all}, all, scratch, counts,
                             [&](int i) { return __float_as_uint(candidates.part_shares[i]); });
    const int per_thread = (count + num_threads() - 1) / num_threads();
    const int first = min(count, thread_index() * per_thread);
    const int last = min(count, first + per_thread);
    int ties = 0;
    for (int i = first * num_parts; i < last * num_parts; ++i) {
      ties += __float_as_uint(candidates.part_shares[i]) == cut.key ? 1 : 0;
    }
    int total = 0;
    int ties_left = cut.wanted - sum_before(ties, scratch, total);
    for (int candidate = first; candidate < last; ++candidate) {
      std::uint32_t mask = 0;
      for (int part = 0; part < num_parts; ++part) {
        const std::uint32_t key = __float_as_uint(candidates.part_shares[candidate * num_parts + part]);
        const bool takes = key > cut.key || (key == cut.key && ties_left-- > 0);
        if (takes) mask |= ((1U << tokens) - 1U) << (part * tokens);
      }
      candidates.mask[candidate] = mask;
    }
    __syncthreads();
  }

  /// Writes the list. Returns its length.
  __device__ int write(int* scratch) const {
    const SelectArgs& args = lists.args;
    int before = 0;
    for (int base = 0; base < count; base += num_threads()) {
      const int candidate = base + thread_index();
      const std::uint32_t mask = candidate < count ? candidates.mask[candidate] : 0;
      int total = 0;
      const int position = before + sum_before(mask != 0 ? 1 : 0, scratch, total);
      before += total;
      if (mask == 0) continue;
      args.selected(gang.request, gang.list, position) = {candidates.page[candidate], static_cast<std::uint16_t>(mask)};
    }
    if (threadIdx.x != 0) return before;
    args.num_selected(gang.request, gang.list) = before;
    if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries + before;
    return before;
  }

  /// The skipped mass of each head, and the coverage: of the selected pages what is not selected, of the others all, which
  /// is what the selected ones leave. Marked pages have no mass.
  __device__ void sum_skipped(int num_selected) const {
    const int heads = lists.heads;
    for (int i = thread_index(); i < count * heads; i += num_threads()) {
      const int candidate = i / heads;
      const std::uint32_t mask = candidates.mask[candidate];
      const bool has_rest = mask != 0 && mask != kWholePage && !is_marked(candidate);
      float left = 0.0F;
      for (int part = 0; has_rest && part < num_parts; ++part) {
        const bool taken = (mask >> (part * lists.args.config.part_tokens) & 1) != 0;
        left += taken ? 0.0F : candidates.of_heads[i * num_parts + part];
      }
      if (num_parts > 1) candidates.of_heads[i * num_parts] = left;
      if (mask == 0 || is_marked(candidate)) candidates.shares[i] = 0.0F;
    }
    __syncthreads();
    const int lane = thread_index() % kLanes;
    const int half_warp = thread_index() / kLanes;
    for (int first = 0; first + half_warp / 2 * 2 < heads; first += num_half_warps()) {  // whole warps
      const int in_list = min(first + half_warp, heads - 1);
      float of_selected = 0.0F;
      float rests = 0.0F;
#pragma unroll 4
      for (int candidate = lane; candidate < count; candidate += kLanes) {
        const int i = candidate * heads + in_list;
        of_selected += candidates.shares[i];
        if (num_parts > 1) rests += candidates.of_heads[i * num_parts];
      }
      of_selected = fold_half_warp(of_selected);
      rests = fold_half_warp(rests);
      if (first + half_warp >= heads || lane != 0) continue;
      const int head = gang.list * heads + in_list;
      const auto [log_norm, block_share] = lists.buffers.whole_masses[lists.head_at(gang.request, head)];
      const float others = num_selected < gang.num_pages ? fmaxf(0.0F, block_share - of_selected) : 0.0F;
      const float skipped = fminf(1.0F, others + rests);  // tokens may seem to have more than their page
      lists.args.skipped_log_mass(gang.request, head) = skipped > 0.0F ? log_norm + select::share_log(skipped) : -kInfinity;
      lists.args.coverage(gang.request, head) = 1.0F - skipped;
    }
  }
};

}  // namespace locks::cuda::select_kernels
