#include "attend/prefill.h"

#include <algorithm>
#include <array>
#include <string>

#include "cpu/check.h"

namespace locks {
namespace {

void check_slots(const std::string& name, const PagedCache& cache, const PrefillArgs& args, int tokens) {
  if (cache.page_slots == nullptr) return;
  for (int token = 0; token < tokens; ++token) {
    const std::int64_t at = prefill_stage::page_of(args, token) * kPageTokens + token % kPageTokens;
    const std::int64_t slot = cache.page_slots[at];
    if (slot < 0 || slot >= cache.num_slots) {
      check::fail(name + ".page_slots[" + std::to_string(at / kPageTokens) + ", " + std::to_string(at % kPageTokens) + "]",
                  "a row below num_slots, " + std::to_string(cache.num_slots), std::to_string(slot));
    }
  }
}

}  // namespace

std::size_t prefill_workspace_bytes(const Geometry& geometry, int num_threads) noexcept {
  return static_cast<std::size_t>(num_threads) * sizeof(float) *
         static_cast<std::size_t>(prefill_stage::scratch_floats(geometry.head_dim));
}

void check_prefill(const PrefillArgs& args) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  const auto rows = static_cast<std::int64_t>(args.row_tokens.size());
  if (rows == 0 && args.queries.shape[0] == 0 && args.out.shape[0] == 0) return;
  const std::array<std::int64_t, 3> shape{rows, geometry.query_heads, geometry.head_dim};
  check::view("queries", args.queries, shape, "[row_tokens, query_heads, head_dim]");
  check::view("out", args.out, shape, "[row_tokens, query_heads, head_dim]");
  check::cpu_cache("keys", args.keys, geometry.head_dim, geometry.kv_heads);
  check::cpu_cache("values", args.values, geometry.head_dim, geometry.kv_heads);
  if (args.values.block_tokens != args.keys.block_tokens) {
    check::fail("values.block_tokens", "that of the keys, " + std::to_string(args.keys.block_tokens),
                std::to_string(args.values.block_tokens));
  }
  const std::int64_t block_tokens = args.keys.block_tokens;
  const auto capacity = static_cast<std::int64_t>(args.blocks.size()) * block_tokens;
  std::int32_t most = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t tokens = args.row_tokens[row];
    most = std::max(most, tokens);
    if (tokens >= 1 && tokens <= capacity) continue;
    check::fail("row_tokens[" + std::to_string(row) + "]",
                "1 to " + std::to_string(capacity) + " tokens (" + std::to_string(args.blocks.size()) + " blocks)",
                std::to_string(tokens));
  }
  const std::int64_t num_blocks = std::min(args.keys.num_pages, args.values.num_pages) / (block_tokens / kPageTokens);
  for (std::int64_t i = 0; i * block_tokens < most; ++i) {
    if (args.blocks[i] >= 0 && args.blocks[i] < num_blocks) continue;
    check::fail("blocks[" + std::to_string(i) + "]", "a block number below " + std::to_string(num_blocks),
                std::to_string(args.blocks[i]));
  }
  check_slots("keys", args.keys, args, most);
  check_slots("values", args.values, args, most);
  check::workspace(args.workspace, prefill_workspace_bytes(geometry, 1));
}

void prefill(const PrefillArgs& args, Team team, Target target) {
  if (target == Target::kReference) return prefill_stage::prefill_reference(args, team);
  check::workspace(args.workspace, prefill_workspace_bytes(args.geometry, team.count));
  prefill_stage::prefill_cpu(args, team, target);
}

}  // namespace locks
