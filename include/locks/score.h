// Stage 2: how much attention mass each page will get, from its record alone.
//
// Queries are quantised first, by a rule that is part of the definition (so that every target computes the same
// integers). With q' = q, or rotate(q) if the format rotates, a = max |q'_i|, in float:
//     q8_i  = round_half_even(q'_i * (127 / a)),    scale8  = a / 127
//     q16_i = round_half_even(q'_i * (32767 / a)),  scale16 = a / 32767
// all zero if a is 0 or not finite, or so small (below 1e-34) that 32767 / a is not finite.
// The record's mean meets q16, its basis q8:
//     m     = softmax_scale * scale16 * mean_scale * sum_i mean_i q16_i
//     z_r   = scale8 * step_r * (sum_i code_ri q8_i - zero_r * sum_i q8_i)
//     dev_t = softmax_scale * sum_r z_r c_tr                                    (token t's logit is m + dev_t)
//     log_mass = m + log sum_t exp(min(max(dev_t, -80), 80))
// A page that its own KV head's record marks always-attend has log_mass +infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/target.h"
#include "locks/team.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks {

/// Keeps exp() and its sum over a page finite and positive. A token this far above its page's mean decides the selection
/// anyway, and one as far below counts for nothing beside the rest, whose deviations average to about zero.
inline constexpr float kMaxDeviation = 80.0F;

struct ScoreArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [requests, query_heads, head_dim]; head_dim contiguous
  SummaryStore summaries;
  PageTable table;
  View<float, 3> log_mass;         // out: [requests, query_heads, pages of the longest request]; pages contiguous
  std::span<std::byte> workspace;  // score_workspace_bytes, 64-byte aligned
};

[[nodiscard]] std::size_t score_workspace_bytes(const Geometry& geometry, int num_requests) noexcept;
/// Throws std::invalid_argument, naming the argument.
void check_score(const ScoreArgs& args);

/// Quantises this thread's share of the queries into the workspace. All threads must be done before score().
void prepare_queries(const ScoreArgs& args, Team team, Target target);
/// Scores this thread's share of the filled pages of every request.
void score(const ScoreArgs& args, Team team, Target target);
/// Logits of the 16 tokens of some pages (indices within the request), for all query heads of one KV head.
void score_tokens(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                  View<float, 3> logits /* out: [page_indices, group_size, 16], contiguous */, Target target);

}  // namespace locks
