#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attend/attend_work.h"
#include "attend/backends.h"
#include "cpu/element.h"

namespace locks {
namespace {

/// Calls visit(page, token) for every token of the piece.
template <class Visit>
void for_each_token(const AttendArgs& args, const attend_work::Piece& piece, const Visit& visit) {
  for (int index = piece.first_entry; index < piece.end_entry; ++index) {
    const SelectedPage entry = attend_work::entry(args, piece.request, piece.list, index);
    const std::int64_t page = args.table.page(piece.request, entry.page);
    for (int token = 0; token < kPageTokens; ++token) {
      if ((entry.mask >> token & 1) != 0) visit(page, token);
    }
  }
}

void attend_head(const AttendArgs& args, const attend_work::Piece& piece, int kv_head, int query_head, float* state) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int head_dim = args.geometry.head_dim;
  const float* const query = args.queries.at(piece.request, query_head, 0);
  const auto logit = [&](std::int64_t page, int token) {
    const std::byte* const key = args.keys.token(page, token, kv_head);
    double dot = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) dot += query[dim] * double{row_element(args.keys.dtype, key, dim)};
    return args.geometry.softmax_scale * scale_of(args.keys) * dot;
  };
  double max = kNone;
  for_each_token(args, piece, [&](std::int64_t page, int token) {
    const double value = logit(page, token);
    if (value > max) max = value;
  });
  const double reference = max == kNone ? 0.0 : max;
  double sum = 0.0;
  std::array<double, kMaxHeadDim> out{};
  for_each_token(args, piece, [&](std::int64_t page, int token) {
    const double weight = std::exp(logit(page, token) - reference);
    const std::byte* const value = args.values.token(page, token, kv_head);
    sum += weight;
    const double scaled = weight * scale_of(args.values);
    for (int dim = 0; dim < head_dim; ++dim) out[dim] += scaled * double{row_element(args.values.dtype, value, dim)};
  });
  const auto stored_max = static_cast<float>(max);
  attend_work::state_max(state, head_dim) = stored_max;
  // What the max lost by rounding goes into the sums' common factor, which the bound keeps a float when logits are huge.
  const double factor = max == kNone ? 1.0 : std::exp(std::clamp(max - stored_max, -40.0, 40.0));
  state[head_dim] = static_cast<float>(sum * factor);
  for (int dim = 0; dim < head_dim; ++dim) state[dim] = static_cast<float>(out[dim] * factor);
}

}  // namespace

void attend_reference(const AttendArgs& args, Team team) {
  attend_work::for_each_piece(args, team, [&args](const attend_work::Piece& piece) {
    const Geometry& geometry = args.geometry;
    const bool dense = attend_work::is_dense(args);
    const int heads = attend_work::heads_per_row(args);
    for (int head = 0; head < heads; ++head) {
      const int query_head = (dense ? 0 : piece.list * heads) + head;
      attend_head(args, piece, query_head / geometry.group_size(), query_head,
                  piece.states + std::int64_t{head} * attend_work::state_floats(geometry.head_dim));
    }
  });
}

}  // namespace locks
