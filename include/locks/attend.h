// Stage 4: exact attention over listed tokens, in fp32, and the completion of what is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/select.h"
#include "locks/target.h"
#include "locks/team.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks {

/// The state of a softmax that has seen some tokens, for each query head: [requests, query_heads, 2 + head_dim] floats:
/// max logit, sum of exp(logit - max), sum of exp(logit - max) * value. States merge in any order; the empty state
/// (-infinity, 0, 0...) changes nothing.
using SoftmaxStates = View<float, 3>;

void merge_state(std::span<float> into, std::span<const float> from) noexcept;  // both 2 + head_dim

struct AttendArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [requests, query_heads, head_dim]; head_dim contiguous
  PagedCache keys;
  PagedCache values;
  PageTable table;
  /// Lists: query heads [list * query_heads / num_lists, ...) of a request share list `list`; num_lists is kv_heads, or
  /// query_heads. Null data: every token of the context (dense attention), num_lists = kv_heads.
  int num_lists = 0;
  View<const SelectedPage, 3> selected;      // [requests, lists, capacity]; entries contiguous
  View<const std::int32_t, 2> num_selected;  // [requests, lists]
  std::span<std::byte> workspace;            // attend_workspace_bytes, 64-byte aligned; partial states
  int most_row_tokens = 0;  // of a list, if that is known; a GPU divides its work for so many, and attends no more
};

[[nodiscard]] std::size_t attend_workspace_bytes(const Geometry& geometry, int num_requests, int num_lists,
                                                 int num_threads) noexcept;
/// Throws std::invalid_argument, naming the argument.
void check_attend(const AttendArgs& args);

/// This thread's share of all listed tokens, into partial states in the workspace. All threads must be done before
/// merge_partials().
void attend(const AttendArgs& args, Team team, Target target);
/// Merges the partial states of one list, of a team of `num_threads`, into `states` (which may hold others already).
/// Partial states merge in thread order, so a result depends on the number of threads only through rounding.
void merge_partials(const AttendArgs& args, int request, int list, int num_threads, SoftmaxStates states) noexcept;
/// out = sum of values / sum of weights; zeros for a state that saw nothing.
void finish(SoftmaxStates states, int request, int query_head, std::span<float> out) noexcept;

/// What a skipped token contributes is estimated from its page's record: weight p_t = exp(logit_t), value
/// mean + sum_r slope_r c_tr. `skipped_log_mass` [heads] is the logarithm of all skipped mass: the completed pages
/// carry all of it, their own sums being scaled up to it.
struct CompleteArgs {
  int head_dim = 0;
  SummaryStore summaries;  // with value part
  PageTable table;
  int request = 0;
  int kv_head = 0;
  int first_query_head = 0;                 // of the list
  std::span<const SelectedPage> completed;  // masks of the tokens that were not attended
  View<const float, 3> logits;              // [completed, heads, 16]
  std::span<const float> skipped_log_mass;  // [heads]
  std::span<float> scratch;                 // complete_scratch_floats
};
[[nodiscard]] std::size_t complete_scratch_floats(int head_dim, int heads) noexcept;
/// Merges the completion into `states`.
void complete(const CompleteArgs& args, SoftmaxStates states, Target target);

/// Exact causal attention for the rows of a prompt, one request: row i sees the first row_tokens[i] tokens.
struct PrefillArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [rows, query_heads, head_dim]; head_dim contiguous
  PagedCache keys;
  PagedCache values;
  std::span<const std::int32_t> blocks;      // the request's blocks
  std::span<const std::int32_t> row_tokens;  // [rows], each at least 1
  View<float, 3> out;                        // [rows, query_heads, head_dim]; head_dim contiguous
  std::span<std::byte> workspace;            // prefill_workspace_bytes, 64-byte aligned
};
[[nodiscard]] std::size_t prefill_workspace_bytes(const Geometry& geometry, int num_threads) noexcept;
void check_prefill(const PrefillArgs& args);
void prefill(const PrefillArgs& args, Team team, Target target);

}  // namespace locks
