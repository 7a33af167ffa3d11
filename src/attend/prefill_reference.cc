// The definition of causal attention, in double precision:
//     logit_t = softmax_scale * sum_i q_i k_ti,   out = sum_t exp(logit_t - max) v_t / sum_t exp(logit_t - max)
// over the first row_tokens tokens of the request.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attend/prefill.h"
#include "cpu/element.h"

namespace locks::prefill_stage {
namespace {

double logit(const PrefillArgs& args, const float* query, int token, int kv_head) {
  const std::byte* key = args.keys.token(page_of(args, token), token % kPageTokens, kv_head);
  double sum = 0.0;
  for (int dim = 0; dim < args.geometry.head_dim; ++dim) sum += query[dim] * double{row_element(args.keys.dtype, key, dim)};
  return sum * static_cast<double>(args.geometry.softmax_scale);
}

void attend_row(const PrefillArgs& args, int row, int query_head) {
  const int kv_head = query_head / args.geometry.group_size();
  const float* query = args.queries.at(row, query_head, 0);
  const int tokens = args.row_tokens[row];
  double largest = -std::numeric_limits<double>::infinity();
  for (int token = 0; token < tokens; ++token) largest = std::max(largest, logit(args, query, token, kv_head));

  std::array<double, kMaxHeadDim> sum{};
  double total = 0.0;
  for (int token = 0; token < tokens; ++token) {
    const double weight = std::exp(logit(args, query, token, kv_head) - largest);
    const std::byte* value = args.values.token(page_of(args, token), token % kPageTokens, kv_head);
    total += weight;
    for (int dim = 0; dim < args.geometry.head_dim; ++dim)
      sum[dim] += weight * double{row_element(args.values.dtype, value, dim)};
  }
  float* out = args.out.at(row, query_head, 0);
  for (int dim = 0; dim < args.geometry.head_dim; ++dim) out[dim] = static_cast<float>(sum[dim] / total);
}

}  // namespace

void prefill_reference(const PrefillArgs& args, Team team) noexcept {
  const int group = args.geometry.group_size();
  for_each_run(args, team, [&](int kv_head, int first_row, int end_row) {
    for (int row = first_row; row < end_row; ++row) {
      for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) attend_row(args, row, head);
    }
  });
}

}  // namespace locks::prefill_stage
