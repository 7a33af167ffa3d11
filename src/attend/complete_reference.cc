#include <array>
#include <cmath>
#include <limits>

#include "attend/backends.h"
#include "attend/merge.h"
#include "cpu/half.h"
#include "locks/rotation.h"

namespace locks {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// What the completed pages give one head: sum of weights, and of weights * values in the rotated space.
struct Sums {
  double weight = 0.0;
  std::array<double, kMaxHeadDim> value{};
};

double largest_logit(const CompleteArgs& args, int head) {
  double largest = kNone;
  for (std::size_t i = 0; i < args.completed.size(); ++i) {
    for (int token = 0; token < kPageTokens; ++token) {
      const double logit = args.logits(i, head, token);
      if ((args.completed[i].mask >> token & 1) != 0 && logit > largest) largest = logit;
    }
  }
  return largest == kNone ? 0.0 : largest;
}

Sums sum_head(const CompleteArgs& args, int head) {
  const SummaryFormat& format = *args.summaries.format;
  const double reference = largest_logit(args, head);
  Sums sums;
  for (std::size_t i = 0; i < args.completed.size(); ++i) {
    const std::int64_t page = args.table.page(args.request, args.completed[i].page);
    const DecodedSummary keys = decode_record(format, args.head_dim, args.summaries.record(page, args.kv_head));
    const DecodedValues values = decode_value_record(format, args.head_dim, args.summaries.value_record(page, args.kv_head));
    for (int token = 0; token < kPageTokens; ++token) {
      if ((args.completed[i].mask >> token & 1) == 0) continue;
      const double weight = std::exp(args.logits(i, head, token) - reference);
      sums.weight += weight;
      for (int dim = 0; dim < args.head_dim; ++dim) {
        double value = values.mean[dim];
        for (int rank = 0; rank < format.rank; ++rank) value += values.slopes[rank][dim] * keys.coefficients[token][rank];
        sums.value[dim] += weight * value;
      }
    }
  }
  return sums;
}

}  // namespace

void complete_reference(const CompleteArgs& args, SoftmaxStates states) {
  for (int head = 0; head < static_cast<int>(args.skipped_log_mass.size()); ++head) {
    float log_mass = args.skipped_log_mass[head];
    const Sums sums = sum_head(args, head);
    if (sums.weight == 0.0 || log_mass == kNone) continue;
    std::array<float, kMaxHeadDim> mean{};
    for (int dim = 0; dim < args.head_dim; ++dim) mean[dim] = static_cast<float>(sums.value[dim] / sums.weight);
    rotate_back(std::span(mean).first(args.head_dim));
    float one = 1.0F;
    float* const state = states.at(args.request, args.first_query_head + head, 0);
    attend_work::merge({state, state + 1, state + 2}, {&log_mass, &one, mean.data()}, args.head_dim);
  }
}

}  // namespace locks
