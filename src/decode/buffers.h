// The one workspace of a decode step, cut into what its phases share and what each thread has to itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/decode.h"

namespace locks::decode {

/// What one list's choice adds to the report of its request.
struct ListTotals {
  std::int32_t selected_tokens = 0;
  std::int32_t completed_pages = 0;
  float coverage = 0.0F;  // sum over the list's query heads
};

struct Buffers {
  std::span<std::byte> score_workspace;
  std::span<std::byte> attend_workspace;
  View<float, 3> log_mass;                // [requests, query_heads, pages]; becomes head shares
  SoftmaxStates states;                   // [requests, query_heads, 2 + head_dim]
  View<SelectedPage, 2> always_lists;     // [requests, capacity]; what a request attends whatever the scores say
  std::span<std::int32_t> num_always;     // [requests]
  std::span<std::int32_t> scored_tokens;  // [requests]; 0 if attended whole

  View<float, 3> share;     // [requests, lists, pages]
  View<float, 2> log_norm;  // [requests, query_heads], like the next
  View<float, 2> selectable;
  View<float, 2> skipped_log_mass;
  View<std::int32_t, 3> candidates;      // [requests, lists, capacity]
  View<std::int32_t, 2> num_candidates;  // [requests, lists]
  View<float, 5> logits;                 // [requests, lists, candidates, group_size, 16]; none with whole pages
  View<SelectedPage, 3> selected;        // [requests, lists, capacity]
  View<std::int32_t, 2> num_selected;    // [requests, lists]
  View<SelectedPage, 3> completed;       // [requests, lists, capacity]
  View<ListTotals, 2> totals;            // [requests, lists]

  // This thread's, for the list in hand.
  std::span<float> always_log_mass;  // [heads]
  std::span<std::int32_t> order;
  std::span<float> part_shares;
  std::span<std::int32_t> pages;      // of completed pages
  std::span<float> completed_logits;  // [completed pages, group_size, 16]
  std::span<float> complete_scratch;
};

/// What a context attends whatever the scores say; everything if it is short.
[[nodiscard]] AlwaysAttended always_of(const DecodePlan& plan, int context_tokens) noexcept;

/// The buffers of thread `thread` in the workspace at `memory`. They fill workspace_bytes().
[[nodiscard]] Buffers buffers(const DecodePlan& plan, std::byte* memory, int thread) noexcept;
[[nodiscard]] std::size_t buffers_bytes(const DecodePlan& plan) noexcept;

}  // namespace locks::decode
