// How the tokens to attend are cut into threads' shares, and where the partial states lie.
//
// A row is what shares one sequence of tokens: a (request, list), or, when every token is attended, a request with all
// its KV heads, because the heads of a token usually lie side by side. Rows stand one behind the other, each as long as
// its tokens, and every thread takes an even part of that line. A part touches an interval of rows, and so
// (row, thread) pairs form a staircase: `row + thread` numbers them without gaps or repeats.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "locks/attend.h"

namespace locks::attend_work {

inline constexpr int kChunkTokens = 32;  // attended at a time; their rows and the next ones should fit the L1 cache

/// The entries [first_entry, end_entry) of one row, and the partial states that they go to.
struct Piece {
  int request = 0;
  int list = 0;         // meaningless if dense
  int first_entry = 0;  // of the list; if dense, a page index
  int end_entry = 0;
  float* states = nullptr;  // of the row's query heads, state_floats apart
};

/// One partial state: sum of weights * value [head_dim], then the sum of weights in 16 parts, then the max. Vectors of any
/// length add their lanes to the parts; only merging adds those up. Padded to keep 64-byte alignment.
[[nodiscard]] constexpr int state_floats(int head_dim) noexcept { return head_dim + 32; }
inline constexpr int kSumParts = 16;
[[nodiscard]] inline float& state_max(float* state, int head_dim) noexcept { return state[head_dim + kSumParts]; }

/// Rows that a thread wrote partial states of, [first, end).
struct alignas(64) RowInterval {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

[[nodiscard]] inline bool is_dense(const AttendArgs& args) noexcept { return args.selected.data == nullptr; }
[[nodiscard]] inline int rows_per_request(const AttendArgs& args) noexcept { return is_dense(args) ? 1 : args.num_lists; }
[[nodiscard]] inline int heads_per_row(const AttendArgs& args) noexcept {
  return args.geometry.query_heads / rows_per_request(args);
}

[[nodiscard]] inline RowInterval* row_intervals(const AttendArgs& args) noexcept {
  return reinterpret_cast<RowInterval*>(args.workspace.data());
}
[[nodiscard]] inline float* row_states(const AttendArgs& args, int num_threads, std::int64_t row, int thread) noexcept {
  auto* const states = reinterpret_cast<float*>(row_intervals(args) + num_threads);
  return states + (row + thread) * heads_per_row(args) * state_floats(args.geometry.head_dim);
}

[[nodiscard]] inline int num_entries(const AttendArgs& args, int request, int list) noexcept {
  if (is_dense(args)) return (args.table.context_tokens[request] + kPageTokens - 1) / kPageTokens;
  return args.num_selected(request, list);
}
[[nodiscard]] inline int row_tokens(const AttendArgs& args, int request, int list) noexcept {
  if (is_dense(args)) return args.table.context_tokens[request];
  const SelectedPage* const entries = args.selected.at(request, list, 0);
  int tokens = 0;
  for (int i = 0, count = args.num_selected(request, list); i < count; ++i) tokens += std::popcount(entries[i].mask);
  return tokens;
}
/// The tokens of an entry, as a mask.
[[nodiscard]] inline SelectedPage entry(const AttendArgs& args, int request, int list, int index) noexcept {
  if (!is_dense(args)) return *args.selected.at(request, list, index);
  const int left = args.table.context_tokens[request] - index * kPageTokens;
  return {index, left >= kPageTokens ? kWholePage : static_cast<std::uint16_t>((1 << left) - 1)};
}

/// The entry at which token `token` of a row begins or which follows it: entries before it start before that token.
[[nodiscard]] inline int entry_of_token(const AttendArgs& args, int request, int list, std::int64_t token) noexcept {
  if (is_dense(args)) return static_cast<int>((token + kPageTokens - 1) / kPageTokens);
  int index = 0;
  for (std::int64_t before = 0; before < token; ++index) before += std::popcount(entry(args, request, list, index).mask);
  return index;
}

/// Calls visit(piece) for every row that this thread's share touches, its states made empty.
template <class Visit>
void for_each_piece(const AttendArgs& args, Team team, const Visit& visit) {
  const int requests = args.table.num_requests();
  const int per_request = rows_per_request(args);
  std::int64_t total = 0;
  for (int request = 0; request < requests; ++request) {
    for (int list = 0; list < per_request; ++list) total += row_tokens(args, request, list);
  }
  const auto [first, end] = team.share(total);
  RowInterval touched;
  std::int64_t begin = 0;  // of the row, in the line of all tokens
  for (std::int64_t row = 0; row < std::int64_t{requests} * per_request && begin < end; ++row) {
    const auto request = static_cast<int>(row / per_request);
    const auto list = static_cast<int>(row % per_request);
    const int tokens = row_tokens(args, request, list);
    if (begin + tokens > first && first < end) {
      if (touched.end == 0) touched.first = row;
      touched.end = row + 1;
      float* const states = row_states(args, team.count, row, team.index);
      const int head_dim = args.geometry.head_dim;
      for (int head = 0; head < heads_per_row(args); ++head) {
        float* const state = states + std::int64_t{head} * state_floats(head_dim);
        for (int i = 0; i < state_floats(head_dim); ++i) state[i] = 0.0F;
        state_max(state, head_dim) = -std::numeric_limits<float>::infinity();
      }
      const int first_entry = first > begin ? entry_of_token(args, request, list, first - begin) : 0;
      const int end_entry =
          end < begin + tokens ? entry_of_token(args, request, list, end - begin) : num_entries(args, request, list);
      visit(Piece{request, list, first_entry, end_entry, states});
    }
    begin += tokens;
  }
  row_intervals(args)[team.index] = touched;
}

}  // namespace locks::attend_work
