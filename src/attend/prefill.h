// What the parts of prefill share: the threads' shares and the workspace.
//
// The query heads of one KV head see the same keys, so the unit of work is a query: query `i` of a KV head is row
// i / group_size, head i % group_size of the group. A thread's share is a run of whole rows, cut by cost across KV heads,
// and it takes them in blocks of at most block_queries. A query's arithmetic does not depend on which others share its
// block, so the team's size changes no bit.
#pragma once

#include <cstdint>

#include "locks/attend.h"

namespace locks::prefill_stage {

inline constexpr int kBlockTokens = 128;    // keys and values unpacked at a time
inline constexpr int kMaxTileQueries = 12;  // of any target, each of which divides it
inline constexpr int kMaxLanes = 16;

/// Queries that share unpacked keys and values, 1536 at head_dim 64: with their outputs they take 768 KiB, which stream
/// through once for every kBlockTokens, and unpacking costs 1 to 2 % of attending. A multiple of kMaxTileQueries and of
/// kMaxLanes.
[[nodiscard]] constexpr int block_queries(int head_dim) noexcept { return 98304 / head_dim / 48 * 48; }

/// One thread's memory; every array begins on 64 bytes.
struct Scratch {
  float* keys;           // [panels of tokens, head_dim, panel]
  float* values;         // [panels of dimensions, kBlockTokens, panel]
  float* queries;        // [tiles, head_dim, tile], scaled
  float* outputs;        // [block_queries, head_dim]: sums of weight * value
  float* weights;        // [kMaxTileQueries, kBlockTokens]: logits, then weights
  float* weight_sums;    // [block_queries, kLanes]
  float* references;     // [block_queries]: weight = 2^(logit - reference)
  std::int32_t* limits;  // [block_queries]: tokens that the query sees
};

[[nodiscard]] constexpr std::int64_t scratch_floats(int head_dim) noexcept {
  const std::int64_t queries = block_queries(head_dim);
  return 2 * (kBlockTokens + queries) * head_dim + kMaxTileQueries * kBlockTokens + queries * (kMaxLanes + 2);
}

[[nodiscard]] inline Scratch scratch_of(const PrefillArgs& args, int thread) noexcept {
  const int head_dim = args.geometry.head_dim;
  const std::int64_t queries = block_queries(head_dim);
  float* next = reinterpret_cast<float*>(args.workspace.data()) + thread * scratch_floats(head_dim);
  const auto take = [&next](std::int64_t floats) {
    float* const taken = next;
    next += floats;
    return taken;
  };
  Scratch scratch{};
  scratch.keys = take(std::int64_t{kBlockTokens} * head_dim);
  scratch.values = take(std::int64_t{kBlockTokens} * head_dim);
  scratch.queries = take(queries * head_dim);
  scratch.outputs = take(queries * head_dim);
  scratch.weights = take(kMaxTileQueries * kBlockTokens);
  scratch.weight_sums = take(queries * kMaxLanes);
  scratch.references = take(queries);
  scratch.limits = reinterpret_cast<std::int32_t*>(take(queries));
  return scratch;
}

/// Number in the cache of the page that holds token `token` of the request.
[[nodiscard]] inline std::int64_t page_of(const PrefillArgs& args, int token) noexcept {
  const int pages_per_block = args.keys.block_tokens / kPageTokens;
  const int page = token / kPageTokens;
  return std::int64_t{args.blocks[page / pages_per_block]} * pages_per_block + page % pages_per_block;
}

/// Calls visit(kv_head, first_row, end_row) for every run of rows in this thread's share. A row costs as many tokens as
/// it sees, and belongs to the thread in whose part of the whole cost it begins.
template <class Visit>
void for_each_run(const PrefillArgs& args, Team team, const Visit& visit) {
  std::int64_t head_cost = 0;
  for (const std::int32_t tokens : args.row_tokens) head_cost += tokens;
  const auto [first, end] = team.share(head_cost * args.geometry.kv_heads);
  const auto rows = static_cast<int>(args.row_tokens.size());
  for (int kv_head = 0; kv_head < args.geometry.kv_heads; ++kv_head) {
    std::int64_t at = kv_head * head_cost;
    if (at >= end || at + head_cost <= first) continue;
    int row = 0;
    for (; row < rows && at < first; ++row) at += args.row_tokens[row];
    const int first_row = row;
    for (; row < rows && at < end; ++row) at += args.row_tokens[row];
    if (row > first_row) visit(kv_head, first_row, row);
  }
}

void prefill_reference(const PrefillArgs& args, Team team) noexcept;
void prefill_cpu(const PrefillArgs& args, Team team, Target target) noexcept;

}  // namespace locks::prefill_stage
