#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/prefill_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>
#include <array>

#include "attend/prefill-inl.h"
#include "attend/prefill.h"
#include "cpu/dispatch.h"
#include "cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using prefill_stage::kBlockTokens;
using prefill_stage::Scratch;

/// Up to block_queries queries of one KV head: [first, first + count) in rows of group_size heads.
struct QueryBlock {
  int kv_head;
  int first;
  int count;
  int tiles;
  int most_tokens;  // that one of them sees
};

HWY_INLINE const float* query_row(const PrefillArgs& args, const QueryBlock& block, int query) {
  const int group = args.geometry.group_size();
  const int index = block.first + query;
  return args.queries.at(index / group, block.kv_head * group + index % group, 0);
}

/// Scales the queries so that logits are exponents of 2, lays them out for the tile product and clears all states. What
/// fills the last tile sees no token.
void load_queries(const PrefillArgs& args, QueryBlock& block, const Scratch& scratch) {
  const int head_dim = args.geometry.head_dim;
  const float scale = args.geometry.softmax_scale * 1.44269504F;
  block.tiles = (block.count + kTileQueries - 1) / kTileQueries;
  block.most_tokens = 0;
  for (int query = 0; query < block.tiles * kTileQueries; ++query) {
    const bool real = query < block.count;
    const float* const from = real ? query_row(args, block, query) : nullptr;
    float* const to = scratch.queries + query / kTileQueries * kTileQueries * head_dim + query % kTileQueries;
    for (int dim = 0; dim < head_dim; ++dim) to[dim * kTileQueries] = real ? from[dim] * scale : 0.0F;
    scratch.limits[query] = real ? args.row_tokens[(block.first + query) / args.geometry.group_size()] : 0;
    scratch.references[query] = kNoReference;
    block.most_tokens = std::max(block.most_tokens, scratch.limits[query]);
  }
  std::fill_n(scratch.weight_sums, block.tiles * kTileQueries * kLanes, 0.0F);
  std::fill_n(scratch.outputs, static_cast<std::ptrdiff_t>(block.tiles) * kTileQueries * head_dim, 0.0F);
}

/// out[i] = rescale[i] * out[i] + weights of the tile's first kRows queries * values, over `visible` tokens.
template <int kRows>
HWY_INLINE void add_values(const Scratch& scratch, int head_dim, int visible, const float* weights, const float* rescale,
                           float* out) {
  int dim = 0;
  for (; dim + kPanel <= head_dim; dim += kPanel) {
    multiply_tile<kRows, kPanelVectors, 1, kBlockTokens>(weights, scratch.values + dim * kBlockTokens, visible, rescale,
                                                         out + dim, head_dim);
  }
  if (dim < head_dim) {
    multiply_tile<kRows, 1, 1, kBlockTokens>(weights, scratch.values + dim * kBlockTokens, visible, rescale, out + dim,
                                             head_dim);
  }
}

/// One tile of queries meets the unpacked tokens [first_token, first_token + count).
void attend_tile(const Scratch& scratch, int head_dim, int tile, int first_token, int count, bool values_finite) {
  const int first_query = tile * kTileQueries;
  const std::int32_t* const limits = scratch.limits + first_query;
  const int visible = std::min(count, *std::max_element(limits, limits + kTileQueries) - first_token);
  if (visible <= 0) return;
  const int width = (visible + kPanel - 1) / kPanel * kPanel;
  const float* const queries = scratch.queries + static_cast<std::ptrdiff_t>(first_query) * head_dim;
  for (int token = 0; token < width; token += kPanel) {
    multiply_tile<kTileQueries, kPanelVectors, kTileQueries, 1>(queries,
                                                                scratch.keys + static_cast<std::ptrdiff_t>(token) * head_dim,
                                                                head_dim, nullptr, scratch.weights + token, kBlockTokens);
  }
  std::array<float, kTileQueries> rescale;
  for (int i = 0; i < kTileQueries; ++i) {
    rescale[i] = softmax_row(scratch.weights + i * kBlockTokens, width, limits[i] - first_token,
                             scratch.references[first_query + i], scratch.weight_sums + (first_query + i) * kLanes);
  }
  float* const out = scratch.outputs + static_cast<std::ptrdiff_t>(first_query) * head_dim;
  if (values_finite) {
    add_values<kTileQueries>(scratch, head_dim, visible, scratch.weights, rescale.data(), out);
    return;
  }
  for (int i = 0; i < kTileQueries; ++i) {  // weight 0 does not keep out a value that is not finite: stop at each limit
    const int seen = std::clamp(limits[i] - first_token, 0, visible);
    add_values<1>(scratch, head_dim, seen, scratch.weights + i * kBlockTokens, &rescale[i],
                  out + static_cast<std::ptrdiff_t>(i) * head_dim);
  }
}

/// Rows of the tokens [first, first + count) in `cache`.
void find_rows(const PrefillArgs& args, const PagedCache& cache, int kv_head, int first, int count, const std::byte** rows) {
  for (int i = 0; i < count; ++i) {
    const int token = first + i;
    rows[i] = cache.token(prefill_stage::page_of(args, token), token % kPageTokens, kv_head);
  }
}

void attend_block(const PrefillArgs& args, QueryBlock block, const Scratch& scratch) {
  const FloatTag d;
  const int head_dim = args.geometry.head_dim;
  load_queries(args, block, scratch);
  for (int first = 0; first < block.most_tokens; first += kBlockTokens) {
    const int count = std::min(kBlockTokens, block.most_tokens - first);
    std::array<const std::byte*, kBlockTokens> rows;
    bool finite = true;
    find_rows(args, args.keys, block.kv_head, first, count, rows.data());
    with_dtype(args.keys.dtype,
               [&]<DType kType>() HWY_ATTR { unpack_keys<kType>(rows.data(), count, head_dim, scratch.keys); });
    find_rows(args, args.values, block.kv_head, first, count, rows.data());
    with_dtype(args.values.dtype,
               [&]<DType kType>() HWY_ATTR { finite = unpack_values<kType>(rows.data(), count, head_dim, scratch.values); });
    for (int tile = 0; tile < block.tiles; ++tile) attend_tile(scratch, head_dim, tile, first, count, finite);
  }
  const int group = args.geometry.group_size();
  for (int query = 0; query < block.count; ++query) {
    const int index = block.first + query;
    float* const out = args.out.at(index / group, block.kv_head * group + index % group, 0);
    const float* const sums = scratch.outputs + static_cast<std::ptrdiff_t>(query) * head_dim;
    const FloatVec total = hn::SumOfLanes(d, hn::LoadU(d, scratch.weight_sums + query * kLanes));
    for (int dim = 0; dim < head_dim; dim += kLanes) hn::StoreU(hn::Div(hn::LoadU(d, sums + dim), total), d, out + dim);
  }
}

}  // namespace

void prefill(const PrefillArgs& args, Team team) noexcept {
  const Scratch scratch = prefill_stage::scratch_of(args, team.index);
  const int group = args.geometry.group_size();
  const int most = prefill_stage::block_queries(args.geometry.head_dim);
  prefill_stage::for_each_run(args, team, [&](int kv_head, int first_row, int end_row) HWY_ATTR {
    const int queries = (end_row - first_row) * group;
    const int blocks = (queries + most - 1) / most;
    const int even = (queries + blocks - 1) / blocks;
    const int step = (even + kTileQueries - 1) / kTileQueries * kTileQueries;
    for (int first = 0; first < queries; first += step) {
      attend_block(args, {kv_head, first_row * group + first, std::min(step, queries - first), 0, 0}, scratch);
    }
  });
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks::prefill_stage {

void prefill_cpu(const PrefillArgs& args, Team team, Target target) noexcept { LOCKS_PICK(prefill, target)(args, team); }

}  // namespace locks::prefill_stage
#endif
