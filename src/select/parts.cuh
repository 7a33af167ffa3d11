// The best parts of one list's candidates. Every thread block of the gang finds them, since each needs to know what its
// pages lose; the first one writes them.
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

/// What is kept of each candidate, in shared memory or, if there are too many, in the workspace. With whole pages there are
/// no shares of parts.
struct Candidates {
  std::int32_t* page = nullptr;   // [candidates], of the request
  std::uint32_t* mask = nullptr;  // [candidates]: selected tokens
  float* part_shares = nullptr;   // [candidates, parts]; +infinity: marked always-attend
  float* of_heads = nullptr;      // [candidates, heads, parts]; then, in the first of the parts, what is left unselected

  [[nodiscard]] static constexpr std::int64_t words(int capacity, int parts, int heads) noexcept {
    return std::int64_t{capacity} * (parts > 1 ? 2 + parts * (1 + heads) : 2);
  }
  __device__ Candidates(std::uint32_t* memory, int capacity, int parts)
      : page(reinterpret_cast<std::int32_t*>(memory)),
        mask(memory + capacity),
        part_shares(reinterpret_cast<float*>(memory + 2 * capacity)),
        of_heads(part_shares + std::int64_t{capacity} * parts) {}
};

/// The choice of one list's parts.
struct PartChoice {
  const Lists& lists;
  const Gang& gang;
  const Candidates& candidates;
  int count;
  int num_parts;  // of a page

  static constexpr std::uint32_t kMarked = 1U << 31;  // for now: always-attend

  /// All candidates, whole.
  __device__ void read() const {
    const float* const share = lists.buffers.share + lists.list_at(gang.request, gang.list) * lists.buffers.max_pages;
    for (int i = thread_index(); i < count; i += kThreads) {
      const int page = lists.args.candidates(gang.request, gang.list, i);
      candidates.page[i] = page;
      candidates.mask[i] = num_parts > 1 && share[page - gang.sink_pages] == kInfinity ? kMarked : kWholePage;
    }
    __syncthreads();
  }

  /// The shares of all parts, of each head and combined.
  __device__ void weigh() const {
    const int heads = lists.heads;
    for (int i = thread_index(); i < count * heads; i += kThreads) {
      const int candidate = i / heads;
      const int head = i - candidate * heads;
      const auto* const rows =
          reinterpret_cast<const float4*>(lists.args.logits.at(gang.request, gang.list, candidate, head));
      float logits[kPageTokens];
#pragma unroll
      for (int row = 0; row < kPageTokens / 4; ++row) reinterpret_cast<float4*>(logits)[row] = rows[row];
      weigh_page(logits, lists.args.config.part_tokens,
                 lists.buffers.log_norm[lists.head_at(gang.request, gang.list * heads + head)],
                 candidates.of_heads + i * num_parts);
    }
    __syncthreads();
    for (int i = thread_index(); i < count * num_parts; i += kThreads) {
      const int candidate = i / num_parts;
      const float* const own = candidates.of_heads + candidate * heads * num_parts + i % num_parts;
      float combined = 0.0F;
#pragma unroll 8
      for (int head = 0; head < heads; ++head) {
        const float other = own[head * num_parts];
        combined = lists.args.config.combine == GroupCombine::kMax ? fmaxf(combined, other) : combined + other;
      }
      candidates.part_shares[i] = candidates.mask[candidate] == kMarked ? kInfinity : combined;
    }
    __syncthreads();
  }

  /// The masks of the best parts. Each thread has some candidates in a row.
  __device__ void choose(int* scratch) const {
    const int tokens = lists.args.config.part_tokens;
    const int all = count * num_parts;
    const int wanted = min(select::remaining_tokens(lists.args.config, lists.always(gang.request)) / tokens, all);
    const Cut cut = find_cut(all, wanted, 0, scratch, [&](int i) { return __float_as_uint(candidates.part_shares[i]); });
    const int per_thread = (count + kThreads - 1) / kThreads;
    const int first = min(count, thread_index() * per_thread);
    const int last = min(count, first + per_thread);
    int ties = 0;
    for (int i = first * num_parts; i < last * num_parts; ++i) {
      ties += __float_as_uint(candidates.part_shares[i]) == cut.key ? 1 : 0;
    }
    int total = 0;
    int ties_left = cut.equal - sum_before(ties, scratch, total);
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

  /// Writes the list.
  __device__ void write(int* scratch) const {
    const SelectArgs& args = lists.args;
    int before = 0;
    for (int base = 0; base < count; base += kThreads) {
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

  /// What candidates leave unselected of the heads' masses; nothing of a marked page.
  __device__ void weigh_rest() const {
    for (int i = thread_index(); i < count * lists.heads; i += kThreads) {
      const int candidate = i / lists.heads;
      const std::uint32_t mask = candidates.mask[candidate];
      const bool none_left = mask == kWholePage || candidates.part_shares[candidate * num_parts] == kInfinity;
      float* const parts = candidates.of_heads + i * num_parts;
      float left = 0.0F;
      for (int part = 0; !none_left && part < num_parts; ++part) {
        const bool taken = (mask >> (part * lists.args.config.part_tokens) & 1) != 0;
        left += taken ? 0.0F : parts[part];
      }
      parts[0] = left;
    }
    __syncthreads();
  }
  [[nodiscard]] __device__ float rest(int candidate, int in_list) const {
    return num_parts > 1 ? candidates.of_heads[(candidate * lists.heads + in_list) * num_parts] : 0.0F;
  }
};

}  // namespace locks::cuda::select_kernels
