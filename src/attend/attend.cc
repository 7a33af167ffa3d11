#include "locks/attend.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "attend/attend_work.h"
#include "attend/backends.h"
#include "attend/merge.h"
#include "cpu/check.h"

namespace locks {
namespace {

using attend_work::StateParts;

void check_lists(const AttendArgs& args) {
  const std::int64_t requests = args.table.num_requests();
  if (args.num_lists != args.geometry.kv_heads && args.num_lists != args.geometry.query_heads) {
    check::fail("num_lists",
                "kv_heads (" + std::to_string(args.geometry.kv_heads) + ") or query_heads (" +
                    std::to_string(args.geometry.query_heads) + ")",
                std::to_string(args.num_lists));
  }
  check::view<const SelectedPage, 3>("selected", args.selected, {requests, args.num_lists, -1},
                                     "[requests, lists, capacity]");
  const auto& counts = args.num_selected;
  if (counts.data == nullptr || counts.shape[0] != requests || counts.shape[1] != args.num_lists) {
    check::fail("num_selected",
                "[requests, lists] = " + check::shape_text(std::array<std::int64_t, 2>{requests, args.num_lists}),
                counts.data == nullptr ? "no data" : check::shape_text(counts.shape));
  }
  for (int request = 0; request < requests; ++request) {
    const int pages = (args.table.context_tokens[request] + kPageTokens - 1) / kPageTokens;
    for (int list = 0; list < args.num_lists; ++list) {
      const std::string where = "[" + std::to_string(request) + ", " + std::to_string(list);
      const std::int32_t count = counts(request, list);
      if (count < 0 || count > args.selected.shape[2]) {
        check::fail("num_selected" + where + "]", "0 to " + std::to_string(args.selected.shape[2]), std::to_string(count));
      }
      for (int i = 0; i < count; ++i) {
        const std::int32_t page = args.selected(request, list, i).page;
        if (page < 0 || page >= pages) {
          check::fail("selected" + where + ", " + std::to_string(i) + "].page", "a page below " + std::to_string(pages),
                      std::to_string(page));
        }
      }
    }
  }
}

}  // namespace

std::size_t attend_workspace_bytes(const Geometry& geometry, int num_requests, int /*num_lists*/, int num_threads) noexcept {
  const auto floats = static_cast<std::size_t>(attend_work::state_floats(geometry.head_dim));
  const auto requests = static_cast<std::size_t>(num_requests);
  const auto threads = static_cast<std::size_t>(num_threads);
  // Dense attention has one row per request, of all heads: a thread's extra slot is largest then.
  const std::size_t slots = (requests + threads) * static_cast<std::size_t>(geometry.query_heads);
  return threads * sizeof(attend_work::RowInterval) + slots * floats * sizeof(float);
}

void check_attend(const AttendArgs& args) {
  check::geometry(args.geometry);
  const int head_dim = args.geometry.head_dim;
  check::cpu_cache("keys", args.keys, head_dim, args.geometry.kv_heads);
  check::cpu_cache("values", args.values, head_dim, args.geometry.kv_heads);
  for (const auto& [name, tokens] : {std::pair{"keys.block_tokens", args.keys.block_tokens},
                                     std::pair{"values.block_tokens", args.values.block_tokens}}) {
    if (tokens != args.table.block_tokens) {
      check::fail(name, "table.block_tokens (" + std::to_string(args.table.block_tokens) + ")", std::to_string(tokens));
    }
  }
  check::table(args.table, std::min(args.keys.num_pages, args.values.num_pages), false);
  const std::int64_t requests = args.table.num_requests();
  check::view<const float, 3>("queries", args.queries, {requests, args.geometry.query_heads, head_dim},
                              "[requests, query_heads, head_dim]");
  if (!attend_work::is_dense(args)) {
    check_lists(args);
  } else if (args.num_lists != args.geometry.kv_heads) {
    check::fail("num_lists", "kv_heads (" + std::to_string(args.geometry.kv_heads) + ") if nothing is listed",
                std::to_string(args.num_lists));
  }
  check::workspace(args.workspace, attend_workspace_bytes(args.geometry, static_cast<int>(requests), args.num_lists, 1));
}

void attend(const AttendArgs& args, Team team, Target target) {
  if (target == Target::kReference) return attend_reference(args, team);
  attend_cpu(args, team, target);
}

void merge_state(std::span<float> into, std::span<const float> from) noexcept {
  auto* const other = const_cast<float*>(from.data());  // merge() only reads it
  attend_work::merge({into.data(), &into[1], &into[2]}, {other, other + 1, other + 2}, static_cast<int>(into.size()) - 2);
}

void merge_partials(const AttendArgs& args, int request, int list, int num_threads, SoftmaxStates states) noexcept {
  const int head_dim = args.geometry.head_dim;
  const int group = args.geometry.query_heads / args.num_lists;
  const bool dense = attend_work::is_dense(args);
  const std::int64_t row = std::int64_t{request} * attend_work::rows_per_request(args) + (dense ? 0 : list);
  const int first_in_row = dense ? list * group : 0;
  for (int thread = 0; thread < num_threads; ++thread) {
    const attend_work::RowInterval& rows = attend_work::row_intervals(args)[thread];
    if (row < rows.first || row >= rows.end) continue;
    float* const partials = attend_work::row_states(args, num_threads, row, thread);
    for (int head = 0; head < group; ++head) {
      float* const partial = partials + std::int64_t{first_in_row + head} * attend_work::state_floats(head_dim);
      float* const state = states.at(request, list * group + head, 0);
      float sum = 0.0F;
      for (int part = 0; part < attend_work::kSumParts; ++part) sum += partial[head_dim + part];
      attend_work::merge({state, state + 1, state + 2}, {&attend_work::state_max(partial, head_dim), &sum, partial},
                         head_dim);
    }
  }
}

void finish(SoftmaxStates states, int request, int query_head, std::span<float> out) noexcept {
  const float* const state = states.at(request, query_head, 0);
  const float sum = state[1];
  for (std::size_t dim = 0; dim < out.size(); ++dim) out[dim] = sum == 0.0F ? 0.0F : state[2 + dim] / sum;
}

}  // namespace locks
