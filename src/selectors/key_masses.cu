// The oracle on the GPU: the true masses of pages, from every key.
#include "cuda/chain.cuh"
#include "cuda/softmax_state.cuh"
#include "selectors/queries.cuh"

namespace locks::cuda::rivals {
namespace {

/// log sum exp of a page's logits.
__device__ __forceinline__ float log_mass_of(const float* logits) {
  constexpr float kLog2 = 0.693147181F;
  float most = kNoLogit;
#pragma unroll
  for (int token = 0; token < kPageTokens; ++token) most = fmaxf(most, logits[token]);  // a NaN loses
  if (!(most > kNoLogit) || most == -kNoLogit) return most;
  float sum = 0.0F;
#pragma unroll
  for (int token = 0; token < kPageTokens; ++token) {
    const float weight = exp_difference(logits[token], most);
    sum += weight >= 0.0F ? weight : 0.0F;
  }
  return most + __log2f(sum) * kLog2;
}

constexpr int kWarps = 8;

/// The keys of a page and a KV head.
class PageRows {
 public:
  __device__ __forceinline__ PageRows(const KeyMasses& masses, int request, int kv_head, int index)
      : cache_(masses.args.keys) {
    const PagePlace place = place_of(masses.table, request, index);
    const std::byte* const head = cache_.data + kv_head * cache_.head_stride;
    if (cache_.page_slots == nullptr) {
      first_ = head + place.block * cache_.block_stride + place.in_block * kPageTokens * cache_.token_stride;
    } else {
      first_ = head;
      slots_ = cache_.page_slots + std::int64_t{page_number(masses.table, place)} * kPageTokens;
    }
  }
  [[nodiscard]] __device__ __forceinline__ const std::byte* token(int i) const {
    return first_ + (slots_ == nullptr ? i : slots_[i]) * cache_.token_stride;
  }

 private:
  const PagedCache& cache_;
  const std::byte* first_;
  const std::int32_t* slots_ = nullptr;
};

/// Grid: KV heads, shares of a request's pages, requests. A warp takes a page: the lanes of a row hold four tokens at once,
/// while query heads come from shared memory. Logits meet in shared memory of the warp's own.
template <class Pair, int kRowLanes>
__global__ void __launch_bounds__(32 * kWarps, 3) key_mass_kernel(const __grid_constant__ KeyMasses masses) {
  constexpr int kLogitRow = kPageTokens + 1;  // lanes that each read a head's meet every bank once
  __shared__ QueryRows<kRowLanes> queries;
  __shared__ float logits_of_warps[kWarps][kHeadsAtOnce * kLogitRow];
  let_next_start();
  const KeyMassArgs& args = masses.args;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.z);
  const int pages = min(masses.scored.count(args.table.context_tokens[request]), masses.max_pages);
  const int group = args.geometry.group_size();
  const int heads = min(kHeadsAtOnce, group - masses.first_head);
  const int first_head = kv_head * group + masses.first_head;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane_of_warp = static_cast<int>(threadIdx.x) % 32;
  const int lane = lane_of_warp % kRowLanes;
  const int row = lane_of_warp / kRowLanes;
  if (static_cast<int>(blockIdx.y) * kWarps >= pages) return;  // the whole block
  const float scale = args.geometry.softmax_scale * (args.keys.scale == nullptr ? 1.0F : *args.keys.scale);
  read_queries<kRowLanes>(args.queries, args.geometry.head_dim, request, first_head, heads, scale,
                          [&](int head, int dim, float value) { queries.set(head, dim, value); });
  __syncthreads();

  float* const logits = logits_of_warps[warp];
  const bool has_dims = lane * kLaneDims < args.geometry.head_dim;
  constexpr int kAtOnce = 32 / kRowLanes * kRowSums;
  for (int page = static_cast<int>(blockIdx.y) * kWarps + warp; page < pages; page += static_cast<int>(gridDim.y) * kWarps) {
    const PageRows page_rows(masses, request, kv_head, page);
#pragma unroll 1
    for (int base = row * kRowSums; base < kPageTokens; base += kAtOnce) {
      Numbers<Pair> rows[kRowSums];
#pragma unroll
      for (int i = 0; i < kRowSums; ++i) {
        rows[i] = {};
        if (!has_dims) continue;
        rows[i].read(page_rows.token(base + i), lane);
      }
      float keys[kRowSums][kLaneDims];
#pragma unroll
      for (int i = 0; i < kRowSums; ++i) rows[i].unpack(keys[i]);
      const int token = base + lane / (kRowLanes / kRowSums);
      for (int head = 0; head < heads; ++head) {
        float sums[kRowSums] = {};
        float query[kLaneDims];
        queries.get(head, lane, query);
#pragma unroll
        for (int i = 0; i < kRowSums; ++i) {
#pragma unroll
          for (int dim = 0; dim < kLaneDims; ++dim) sums[i] = fmaf(query[dim], keys[i][dim], sums[i]);
        }
        const float logit = sum_row<kRowLanes>(sums, lane);
        if (lane % (kRowLanes / kRowSums) == 0) logits[head * kLogitRow + token] = logit;
      }
    }
    __syncwarp();
    if (lane_of_warp < heads) {
      args.log_mass(request, first_head + lane_of_warp, page) = log_mass_of(logits + lane_of_warp * kLogitRow);
    }
    const int entry = page - args.first_page;
    if (masses.lists > 0 && entry >= 0 && entry < args.logits.shape[2]) {
      const int list_heads = args.geometry.query_heads / masses.lists;
      for (int i = lane_of_warp; i < heads * kPageTokens; i += 32) {
        const int head = first_head + i / kPageTokens;
        args.logits.at(request, head / list_heads, entry)[head % list_heads * kPageTokens + i % kPageTokens] =
            logits[i / kPageTokens * kLogitRow + i % kPageTokens];
      }
    }
    __syncwarp();
  }
}

}  // namespace

void launch(const KeyMasses& masses, Stream stream) {
  const Geometry& geometry = masses.args.geometry;
  with_rows(masses.args.keys.dtype, geometry.head_dim, [&]<class Pair, int kRowLanes>() {
    const dim3 grid = grid_of(geometry, masses.args.table.num_requests(), masses.max_pages, kWarps);
    launch_kernel<key_mass_kernel<Pair, kRowLanes>>({"key_mass_kernel", Start::kAfterPrevious, grid, 32 * kWarps, 0, stream},
                                                    masses);
  });
}

}  // namespace locks::cuda::rivals
