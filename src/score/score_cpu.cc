#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "score/score_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/dispatch.h"
#include "cpu/half.h"
#include "score/kernels.h"
#include "score/record-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kMaxHeads = 4;  // that share one unpacking of a record; larger groups unpack it again
inline constexpr float kLog2E = 1.44269504F;

/// kLanes pages (or fewer, at the end) of a request, scored together so that sums across lanes, logarithms and stores
/// are done for all of them at once.
struct Batch {
  const std::byte* records[kLanes];  // of the first KV head
  int first_page = 0;
  int pages = 0;
};

HWY_INLINE void prefetch_record(const std::byte* record, int bytes) {
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(record + at, 0, 3);
}

template <int kHeads>
void score_batch(const ScoreArgs& args, const RecordShape& shape, const Batch& batch, const Batch& next, int request,
                 int kv_head, int query_head) noexcept {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const float softmax_scale = args.geometry.softmax_scale;
  const Heads<kHeads> heads(shape, prepared_query(args, shape.query, request, query_head), softmax_scale * kLog2E);
  const std::int64_t head_offset = kv_head * args.summaries.head_stride;
  alignas(64) float masses[kHeads][kLanes * kLanes];        // [pages, parts of the sum]
  alignas(64) std::int32_t means[kHeads][kLanes * kLanes];
  alignas(64) float mean_scales[kLanes];
  bool flagged[kLanes] = {};
  bool any_flagged = false;
  for (int page = 0; page < kLanes; ++page) {
    if (page < next.pages) prefetch_record(next.records[page] + head_offset, shape.at.record_bytes);
    const std::byte* record = batch.records[std::min(page, batch.pages - 1)] + head_offset;
    VF logits[kHeads][kTokenVectors];
    deviations(shape, record, heads, logits);
    VI mean[kHeads];
    mean_sums(shape, record, heads.blocks, mean);
    for (int head = 0; head < kHeads; ++head) {
      VF mass = exp2(clamp(logits[head][0], kMaxDeviation * kLog2E));
      for (int v = 1; v < kTokenVectors; ++v) mass = hn::Add(mass, exp2(clamp(logits[head][v], kMaxDeviation * kLog2E)));
      hn::Store(mass, d, masses[head] + page * kLanes);
      hn::Store(mean[head], di, means[head] + page * kLanes);
    }
    mean_scales[page] = bf16_to_float(load_u16(record + shape.at.mean_scale_at));
    flagged[page] = (record[shape.at.flags_at] & std::byte{kFlagAlwaysAttend}) != std::byte{0};
    any_flagged |= flagged[page];
  }
  for (int head = 0; head < kHeads; ++head) {
    const VF sums = hn::ConvertTo(d, sum_rows(di, means[head]));
    // In this order a zero sum stays zero whatever the scales are.
    const VF mean_logit = hn::Mul(hn::Mul(sums, hn::Load(d, mean_scales)), hn::Set(d, heads.mean_factor[head] * softmax_scale));
    alignas(64) float log_mass[kLanes];
    hn::Store(hn::Add(mean_logit, log(sum_rows(d, masses[head]))), d, log_mass);
    if (any_flagged) {
      for (int page = 0; page < kLanes; ++page) {
        if (flagged[page]) log_mass[page] = std::numeric_limits<float>::infinity();
      }
    }
    std::copy_n(log_mass, batch.pages, args.log_mass.at(request, query_head + head, batch.first_page));
  }
}

void score_pages(const ScoreArgs& args, const QueryLayout& query, int request, int first, int last) noexcept {
  const RecordShape shape(*args.summaries.format, args.geometry.head_dim, query);
  const int group = args.geometry.group_size();
  const auto batch_at = [&](int first_page) HWY_ATTR {
    Batch batch;
    batch.first_page = first_page;
    batch.pages = std::min(kLanes, last - first_page);
    for (int i = 0; i < batch.pages; ++i) batch.records[i] = args.summaries.record(args.table.page(request, first_page + i), 0);
    return batch;
  };
  Batch batch = batch_at(first);
  for (; batch.pages > 0;) {
    const Batch next = batch_at(std::min(batch.first_page + kLanes, last));
    for (int kv_head = 0; kv_head < args.geometry.kv_heads; ++kv_head) {
      for (int head = 0; head < group;) {
        const int query_head = kv_head * group + head;
        Batch ahead = next;
        if (head > 0) ahead.pages = 0;
        const int heads = std::min(kMaxHeads, group - head);
        if (heads == 4) score_batch<4>(args, shape, batch, ahead, request, kv_head, query_head);
        if (heads == 3) score_batch<3>(args, shape, batch, ahead, request, kv_head, query_head);
        if (heads == 2) score_batch<2>(args, shape, batch, ahead, request, kv_head, query_head);
        if (heads == 1) score_batch<1>(args, shape, batch, ahead, request, kv_head, query_head);
        head += heads;
      }
    }
    batch = next;
  }
}

void score_tokens(const ScoreArgs& args, const QueryLayout& query, int request, int kv_head,
                  std::span<const std::int32_t> page_indices, View<float, 3> logits) noexcept {
  const F32 d;
  const RecordShape shape(*args.summaries.format, args.geometry.head_dim, query);
  const int group = args.geometry.group_size();
  const float softmax_scale = args.geometry.softmax_scale;
  for (int head = 0; head < group; ++head) {
    const Heads<1> heads(shape, prepared_query(args, query, request, kv_head * group + head), softmax_scale);
    for (std::size_t i = 0; i < page_indices.size(); ++i) {
      const std::byte* record = args.summaries.record(args.table.page(request, page_indices[i]), kv_head);
      VF deviation[1][kTokenVectors];
      deviations(shape, record, heads, deviation);
      VI mean[1];
      mean_sums(shape, record, heads.blocks, mean);
      const auto sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(hn::RebindToSigned<F32>(), mean[0])));
      const float mean_scale = bf16_to_float(load_u16(record + shape.at.mean_scale_at));
      const float mean_logit = sum * mean_scale * (heads.mean_factor[0] * softmax_scale);
      alignas(64) float lanes[kPageTokens];
      for (int v = 0; v < kTokenVectors; ++v) hn::Store(hn::Add(deviation[0][v], hn::Set(d, mean_logit)), d, lanes + v * kLanes);
      float* out = logits.at(i, head);
      for (int lane = 0; lane < kPageTokens; ++lane) out[token_of_lane(shape, lane)] = lanes[lane];
    }
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks {

void score_pages_simd(const ScoreArgs& args, int request, int first, int last, Target target) noexcept {
  const QueryLayout query = query_layout(args.geometry.head_dim, blocks_per_vector(target));
  LOCKS_PICK(score_pages, target)(args, query, request, first, last);
}

void score_tokens_simd(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                       View<float, 3> logits, Target target) noexcept {
  const QueryLayout query = query_layout(args.geometry.head_dim, blocks_per_vector(target));
  LOCKS_PICK(score_tokens, target)(args, query, request, kv_head, page_indices, logits);
}

}  // namespace locks
#endif  // HWY_ONCE
