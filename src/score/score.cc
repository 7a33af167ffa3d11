#include "locks/score.h"

#include <algorithm>
#include <string>

#include "cpu/check.h"
#include "score/kernels.h"
#include "score/query.h"

namespace locks {
namespace {

bool has_vnni() noexcept {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}

}  // namespace

std::size_t score_workspace_bytes(const Geometry& geometry, int num_requests) noexcept {
  return static_cast<std::size_t>(num_requests) * static_cast<std::size_t>(geometry.query_heads) *
         static_cast<std::size_t>(QueryLayout::kBytes);
}

void check_score(const ScoreArgs& args) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  check::store("summaries", args.summaries, geometry.head_dim, geometry.kv_heads);
  check::table(args.table, args.summaries.num_pages, true);
  const int requests = args.table.num_requests();
  int longest = 0;
  for (int request = 0; request < requests; ++request) longest = std::max(longest, args.table.filled_pages(request));
  check::workspace(args.workspace, score_workspace_bytes(geometry, requests));
  if (requests == 0) return;
  check::view("queries", args.queries, {requests, geometry.query_heads, geometry.head_dim},
              "[requests, query_heads, head_dim]");
  if (longest == 0) return;
  check::view("log_mass", args.log_mass, {requests, geometry.query_heads, -1}, "[requests, query_heads, pages]");
  if (args.log_mass.shape[2] < longest) {
    check::fail("log_mass", "room for the " + std::to_string(longest) + " filled pages of the longest request",
                std::to_string(args.log_mass.shape[2]));
  }
}

void prepare_queries(const ScoreArgs& args, Team team, Target target) {
  const Geometry& geometry = args.geometry;
  const int blocks = blocks_per_vector(target);
  const auto [first, last] = team.share(std::int64_t{args.table.num_requests()} * geometry.query_heads);
  for (std::int64_t i = first; i < last; ++i) {
    const auto request = i / geometry.query_heads;
    prepare_query(args.queries.at(request, i % geometry.query_heads), geometry.head_dim, args.summaries.format->rotated,
                  blocks, args.workspace.data() + i * QueryLayout::kBytes);
  }
}

void score(const ScoreArgs& args, Team team, Target target) {
  std::int64_t pages = 0;
  for (int request = 0; request < args.table.num_requests(); ++request) pages += args.table.filled_pages(request);
  const auto [first, last] = team.share(pages);
  std::int64_t before = 0;  // pages of the requests already passed
  for (int request = 0; request < args.table.num_requests() && before < last; ++request) {
    const int filled = args.table.filled_pages(request);
    const int from = static_cast<int>(std::clamp<std::int64_t>(first - before, 0, filled));
    const int to = static_cast<int>(std::clamp<std::int64_t>(last - before, 0, filled));
    before += filled;
    if (from == to) continue;
    if (target == Target::kReference) {
      score_pages_reference(args, request, from, to);
    } else {
      score_pages_simd(args, request, from, to, target, has_vnni());
    }
  }
}

void score_tokens(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                  View<float, 3> logits, Target target) {
  if (target == Target::kReference) {
    score_tokens_reference(args, request, kv_head, page_indices, logits);
  } else {
    score_tokens_simd(args, request, kv_head, page_indices, logits, target, has_vnni());
  }
}

}  // namespace locks
