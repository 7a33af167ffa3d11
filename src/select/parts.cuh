// The best parts of one list's candidates, and what they leave. The gang weighs them, its first block chooses.
#pragma once

#include "select/shares.cuh"

namespace locks::cuda::select_kernels {

constexpr int kTokensAtOnce = 4;
constexpr int kRowsOfPage = kPageTokens / kTokensAtOnce;

/// The shares of a page's parts, from the logits of its tokens: neighbours are added, then their sums, and so on, until
/// `part_tokens` are in each. Of the page's rows of four tokens a lane has one, side by side. Whole warps come here.
__device__ inline void weigh_row(float4 logits, int row, int part_tokens, float log_norm, float* parts, bool writes) {
  const float4 mass{select::share_exp(logits.x - log_norm), select::share_exp(logits.y - log_norm),
                    select::share_exp(logits.z - log_norm), select::share_exp(logits.w - log_norm)};
  const float2 pairs{mass.x + mass.y, mass.z + mass.w};
  const float four = pairs.x + pairs.y;
  const float eight = four + __shfl_xor_sync(kWarp, four, 1);
  if (!writes) return;
  if (part_tokens == 1) reinterpret_cast<float4*>(parts)[row] = mass;
  if (part_tokens == 2) reinterpret_cast<float2*>(parts)[row] = pairs;
  if (part_tokens == 4) parts[row] = four;
  if (part_tokens == 8 && row % 2 == 0) parts[row / 2] = eight;
}

/// What is kept of each candidate (candidate_words), in shared memory or, if there are too many, in the workspace.
struct Candidates {
  int capacity;
  int parts;            // of a page
  float* of_heads;      // [heads, candidates, parts]; then, in the first of the parts, what is left unselected
  float* shares;        // [heads, candidates]: of the whole pages
  float* part_shares;   // [candidates, parts]; +infinity: marked always-attend
  std::int32_t* page;   // [candidates], of the request
  std::uint32_t* mask;  // [candidates]: selected tokens

  __device__ Candidates(std::uint32_t* memory, int max_candidates, int parts_of_page, int heads)
      : capacity(max_candidates),
        parts(parts_of_page),
        of_heads(reinterpret_cast<float*>(memory)),
        shares(of_heads + std::int64_t{capacity} * parts * heads),
        part_shares(shares + std::int64_t{capacity} * heads),
        page(reinterpret_cast<std::int32_t*>(part_shares + std::int64_t{capacity} * parts)),
        mask(reinterpret_cast<std::uint32_t*>(page + capacity)) {}

  [[nodiscard]] __device__ float& share(int head, int candidate) const { return shares[head * capacity + candidate]; }
  [[nodiscard]] __device__ float* parts_of(int head, int candidate) const {
    return of_heads + (head * capacity + candidate) * parts;
  }
};

/// The choice of one list's parts.
struct PartChoice {
  const Lists& lists;
  const Gang& gang;
  const Candidates& candidates;  // of this block
  int count;
  int log2_parts;

  [[nodiscard]] __device__ bool is_marked(int candidate) const {
    return candidates.part_shares[candidate << log2_parts] == kInfinity;
  }
  /// The first of the gang's numbers for this thread, and their distance: the blocks take turns, a warp at a time.
  [[nodiscard]] __device__ int first_of_gang() const {
    constexpr int kWarpSize = 32;
    return (thread_index() / kWarpSize * gang.size() + gang.rank) * kWarpSize + thread_index() % kWarpSize;
  }
  [[nodiscard]] __device__ int step_of_gang() const { return gang.size() * num_threads(); }

  /// Tells all blocks the pages of the candidates, and the first their shares for each head. It may come before the kernel
  /// in front has ended, which writes none of what is read here; the first-level cache may have it from the last step.
  __device__ void weigh_pages(const Candidates& first) const {
    const SelectArgs& args = lists.args;
#pragma unroll 1
    for (int i = first_of_gang(); i < count * lists.heads; i += step_of_gang()) {
      const auto [candidate, in_list] = lists.divided(i);
      const int page = __ldcg(args.candidates.at(gang.request, gang.list, candidate));
      first.share(in_list, candidate) = share_of_page(lists, gang, in_list, page);
      if (in_list == 0) tell(candidates.page + candidate, page);
    }
  }
  /// And the shares of all their parts, from the scores of the kernel in front.
  __device__ void weigh_parts(const Candidates& first) const {
    const int rows = count * lists.heads * kRowsOfPage;
    const int lane = thread_index() % 32;
#pragma unroll 1
    for (int i = first_of_gang(); i - lane < rows; i += step_of_gang()) {
      const bool has_row = i < rows;
      const int row = i % kRowsOfPage;
      const auto [candidate, in_list] = lists.divided(has_row ? i / kRowsOfPage : 0);
      const auto* const logits =
          reinterpret_cast<const float4*>(lists.args.logits.at(gang.request, gang.list, candidate, in_list));
      const std::int64_t at = lists.head_at(gang.request, gang.list * lists.heads + in_list);
      const float log_norm = __ldcg(&lists.buffers.whole_masses[at].log_norm);
      weigh_row(logits[row], row, lists.args.config.part_tokens, log_norm, first.parts_of(in_list, candidate), has_row);
    }
  }

  /// The shares of all parts, combined.
  __device__ void combine() const {
    const int num_parts = 1 << log2_parts;
    share_out(count * num_parts, [&](int i) {
      const int candidate = i >> log2_parts;
      const float* own = candidates.of_heads + i;
      float combined = 0.0F;
      bool marked = false;
#pragma unroll 4
      for (int head = 0; head < lists.heads; ++head, own += candidates.capacity * num_parts) {
        marked = marked || candidates.share(head, candidate) == kInfinity;
        combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, *own) : combined + *own;
      }
      candidates.part_shares[i] = marked ? kInfinity : combined;
    });
    __syncthreads();
  }

  /// The masks of the best parts, to all blocks. Each thread has some candidates in a row. `counts` is cleared.
  __device__ void choose(int* scratch, std::int32_t* counts) const {
    const int num_parts = 1 << log2_parts;
    const int tokens = lists.args.config.part_tokens;
    const int all = count * num_parts;
    const int wanted = min(select::remaining_tokens(lists.args.config, lists.always(gang.request)) / tokens, all);
    const auto key_of = [&](int i) { return __float_as_uint(candidates.part_shares[i]); };
    const Cut cut = find_cut({0, kInfinityKey + 1, wanted, all}, all, counts, true, key_of);
    const int per_thread = (count + num_threads() - 1) >> log2_threads();
    const int first = min(count, thread_index() * per_thread);
    const int last = min(count, first + per_thread);
    int ties_left = per_thread * num_parts;
    if (cut.wanted < cut.equal) {
      int ties = 0;
#pragma unroll 1
      for (int i = first * num_parts; i < last * num_parts; ++i) ties += key_of(i) == cut.key ? 1 : 0;
      int total = 0;
      ties_left = cut.wanted - sum_before(ties, scratch, total);
    }
#pragma unroll 1
    for (int candidate = first; candidate < last; ++candidate) {
      std::uint32_t mask = 0;
#pragma unroll 1
      for (int part = 0; part < num_parts; ++part) {
        const std::uint32_t key = key_of(candidate * num_parts + part);
        const bool takes = key > cut.key || (key == cut.key && ties_left-- > 0);
        if (takes) mask |= ((1U << tokens) - 1U) << (part * tokens);
      }
      tell(candidates.mask + candidate, mask);
    }
  }

  /// Writes the list.
  __device__ void write(int* scratch) const {
    const SelectArgs& args = lists.args;
    int before = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += num_threads()) {
      const int candidate = base + thread_index();
      const std::uint32_t mask = candidate < count ? candidates.mask[candidate] : 0;
      int total = 0;
      const int position = before + sum_before(mask != 0 ? 1 : 0, scratch, total);
      before += total;
      if (mask == 0) continue;
      args.selected(gang.request, gang.list, position) = {candidates.page[candidate], static_cast<std::uint16_t>(mask)};
    }
    if (threadIdx.x != 0) return;
    args.num_selected(gang.request, gang.list) = before;
    if (args.num_attended.data != nullptr) args.num_attended(gang.request, gang.list) = args.always_entries + before;
  }

  /// The skipped mass of each head, and the coverage: of the selected pages what is not selected, of the others all, which
  /// is what the selected ones leave. Marked pages have no mass.
  __device__ void sum_skipped() const {
    const int heads = lists.heads;
    const int num_parts = 1 << log2_parts;
    share_out(count * heads, [&](int i) {
      const auto [candidate, head] = lists.divided(i);
      const std::uint32_t mask = candidates.mask[candidate];
      const bool has_rest = mask != 0 && mask != kWholePage && !is_marked(candidate);
      float* const own = candidates.parts_of(head, candidate);
      float left = 0.0F;
#pragma unroll 1
      for (int part = 0; has_rest && part < num_parts; ++part) {
        const bool taken = (mask >> (part * lists.args.config.part_tokens) & 1) != 0;
        left += taken ? 0.0F : own[part];
      }
      own[0] = left;
      if (mask == 0 || is_marked(candidate)) candidates.share(head, candidate) = 0.0F;
    });
    __syncthreads();
    const int lane = thread_index() % kLanes;
    const int half_warp = thread_index() / kLanes;
#pragma unroll 1
    for (int first = 0; first + half_warp / 2 * 2 < heads; first += num_half_warps()) {  // whole warps
      const int in_list = min(first + half_warp, heads - 1);
      float of_selected = 0.0F;
      float rests = 0.0F;
      int num_selected = 0;
#pragma unroll 4
      for (int candidate = lane; candidate < count; candidate += kLanes) {
        of_selected += candidates.share(in_list, candidate);
        rests += *candidates.parts_of(in_list, candidate);
        num_selected += candidates.mask[candidate] != 0 ? 1 : 0;
      }
      of_selected = fold_half_warp(of_selected);
      rests = fold_half_warp(rests);
      num_selected = static_cast<int>(fold_half_warp(static_cast<float>(num_selected)));  // exact
      if (first + half_warp >= heads || lane != 0) continue;
      say_skipped(lists, gang, in_list, num_selected, of_selected, rests);
    }
  }

 private:
  /// Writes to the same place of every block. Candidates of one block alone may lie elsewhere.
  template <class T>
  __device__ void tell(T* own, T value) const {
    *own = value;
#pragma unroll 1
    for (int other = 1; other < gang.size(); ++other) *gang.at(own, gang.rank ^ other) = value;
  }
};

}  // namespace locks::cuda::select_kernels
