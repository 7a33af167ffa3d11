// The definition, in the order of score.h. Integers are exact; the rest is double.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "score/kernels.h"

namespace locks {
namespace {

struct TokenLogits {
  double mean_logit = 0.0;
  std::array<double, kPageTokens> deviation{};
};

TokenLogits token_logits(const ScoreArgs& args, const std::byte* query, const DecodedSummary& summary) {
  const int head_dim = args.geometry.head_dim;
  const double softmax_scale = args.geometry.softmax_scale;
  QueryScales scales;
  std::memcpy(&scales, query, sizeof scales);
  const auto* q8 = reinterpret_cast<const std::int8_t*>(query + QueryLayout::kQ8At);
  const auto* q16 = reinterpret_cast<const std::int16_t*>(query + QueryLayout::kQ16At);

  TokenLogits out;
  for (int dim = 0; dim < head_dim; ++dim) out.mean_logit += summary.mean[dim] * q16[dim];
  out.mean_logit *= softmax_scale * scales.scale16;
  for (int rank = 0; rank < args.summaries.format->rank; ++rank) {
    double z = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) z += summary.basis[rank][dim] * q8[dim];
    z *= scales.scale8;
    for (int token = 0; token < kPageTokens; ++token) {
      out.deviation[token] += softmax_scale * z * summary.coefficients[token][rank];
    }
  }
  return out;
}

}  // namespace

void score_pages_reference(const ScoreArgs& args, int request, int first, int last) {
  const int group = args.geometry.group_size();
  for (int index = first; index < last; ++index) {
    for (int kv_head = 0; kv_head < args.geometry.kv_heads; ++kv_head) {
      const std::byte* record = args.summaries.record(args.table.page(request, index), kv_head);
      const DecodedSummary summary = decode_record(*args.summaries.format, args.geometry.head_dim, record);
      for (int query_head = kv_head * group; query_head < (kv_head + 1) * group; ++query_head) {
        float& log_mass = args.log_mass(request, query_head, index);
        log_mass = std::numeric_limits<float>::infinity();
        if (summary.always_attend) continue;
        const TokenLogits logits = token_logits(args, prepared_query(args, request, query_head), summary);
        constexpr double kLimit = kMaxDeviation;
        double mass = 0.0;
        for (const double deviation : logits.deviation) mass += std::exp(std::clamp(deviation, -kLimit, kLimit));
        log_mass = static_cast<float>(logits.mean_logit + std::log(mass));
      }
    }
  }
}

void score_tokens_reference(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                            const View<float, 3>& logits) {
  const int group = args.geometry.group_size();
  for (std::size_t i = 0; i < page_indices.size(); ++i) {
    const std::byte* record = args.summaries.record(args.table.page(request, page_indices[i]), kv_head);
    const DecodedSummary summary = decode_record(*args.summaries.format, args.geometry.head_dim, record);
    for (int head = 0; head < group; ++head) {
      const TokenLogits token = token_logits(args, prepared_query(args, request, kv_head * group + head), summary);
      for (int t = 0; t < kPageTokens; ++t) {
        logits(i, head, t) = static_cast<float>(token.mean_logit + token.deviation[t]);
      }
    }
  }
}

}  // namespace locks
