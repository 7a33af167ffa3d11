// Some pages of a request against some query heads of one KV head. Included once per target (dispatch.h).
#if defined(LOCKS_SCORE_BATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SCORE_BATCH_INL_H_
#undef LOCKS_SCORE_BATCH_INL_H_
#else
#define LOCKS_SCORE_BATCH_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/half.h"
#include "score/kernels.h"
#include "score/record-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kMaxHeads = HWY_TARGET == HWY_SCALAR ? 1 : 4;  // that share one unpacking of a record
inline constexpr int kBatchPages = 16;
inline constexpr float kLog2E = 1.44269504F;

/// Pages that are scored together, so that sums across lanes, logarithms and stores are done for many at once. If there are
/// fewer than kBatchPages, the last is repeated.
struct Batch {
  template <class PageIndex>
  Batch(const ScoreArgs& args, int request, int count, PageIndex index_of) noexcept : pages(std::min(count, kBatchPages)) {
    for (int i = 0; pages > 0 && i < kBatchPages; ++i) {
      records[i] = args.summaries.record(args.table.page(request, index_of(std::min(i, pages - 1))), 0);
    }
  }
  const std::byte* records[kBatchPages];  // of the first KV head
  int pages;
};

/// The query heads of a group that are scored together, and where their results go.
struct BatchHeads {
  int request = 0;
  int kv_head = 0;
  int first_query_head = 0;
  int first_page = 0;                      // in the rows of log_mass
  const View<float, 3>* logits = nullptr;  // of the tokens of these pages and the group, instead of log_mass
};

/// While the records of a batch and KV head are scored, the next ones are fetched.
struct Ahead {
  const std::byte* const* records = nullptr;
  std::int64_t head_offset = 0;

  /// Lines [first, last) of 64 bytes.
  HWY_INLINE void fetch(int page, int first, int last) const noexcept {
    if (records == nullptr) return;
    for (int line = first; line < last; ++line) __builtin_prefetch(records[page] + head_offset + 64 * line, 0, 3);
  }
};

/// Everything of one batch and some heads, small enough for the first-level cache.
template <class Shape, int kHeads>
struct BatchScratch {
  Ranks<Shape, kHeads> z[kBatchPages];
  alignas(64) std::int32_t means[kHeads][kBatchPages][kLanes];  // parts of the sums
  alignas(64) float tokens[kHeads][kBatchPages][kPageTokens];   // deviations, in the order of token_of_lane
  alignas(64) float masses[kHeads][kBatchPages][kLanes];        // parts of the sums
  alignas(64) float mean_scales[kBatchPages];
  std::byte flags[kBatchPages];
  std::byte any_flag;
};

/// Two passes, each short enough for the processor to work on several pages at a time.
template <class Shape, int kHeads>
void find_deviations(const Shape& shape, const Batch& batch, std::int64_t head_offset, const Heads<Shape, kHeads>& heads,
                     const Ahead& ahead, BatchScratch<Shape, kHeads>& scratch) noexcept {
  const F32 d;
  const RecordLayout at = shape.layout();
  const int lines = (at.record_bytes + 63) / 64;
  scratch.any_flag = std::byte{0};
  for (int page = 0; page < kBatchPages; ++page) {
    ahead.fetch(page, 0, lines / 2);
    const std::byte* record = batch.records[page] + head_offset;
    project(shape, record, heads, scratch.z[page]);
    VI mean[kHeads];
    mean_sums(shape, record, heads.blocks, mean);
    for (int head = 0; head < kHeads; ++head) hn::Store(mean[head], hn::RebindToSigned<F32>(), scratch.means[head][page]);
    scratch.mean_scales[page] = bf16_to_float(load_u16(record + at.mean_scale_at));
    scratch.flags[page] = record[at.flags_at] & std::byte{kFlagAlwaysAttend};
    scratch.any_flag |= scratch.flags[page];
  }
  for (int page = 0; page < kBatchPages; ++page) {
    ahead.fetch(page, lines / 2, lines);
    VF tokens[kHeads][kTokenVectors];
    deviations(shape, batch.records[page] + head_offset, scratch.z[page], tokens);
    for (int head = 0; head < kHeads; ++head) {
      for (int v = 0; v < kTokenVectors; ++v) hn::Store(tokens[head][v], d, scratch.tokens[head][page] + v * kLanes);
    }
  }
}

/// m of the pages [page, page + kLanes).
template <class Shape, int kHeads>
HWY_INLINE VF mean_logits(const BatchScratch<Shape, kHeads>& scratch, int head, int page, float factor) {
  const F32 d;
  const VF sums = hn::ConvertTo(d, sum_rows(hn::RebindToSigned<F32>(), scratch.means[head][page]));
  // In this order a zero sum stays zero whatever the scales are.
  return hn::Mul(hn::Mul(sums, hn::Load(d, scratch.mean_scales + page)), hn::Set(d, factor));
}

template <class Shape, int kHeads>
void write_log_masses(const ScoreArgs& args, const BatchHeads& which, int pages, const float* scale16,
                      BatchScratch<Shape, kHeads>& scratch) noexcept {
  const F32 d;
  for (int row = 0; row < kHeads * kBatchPages; ++row) {
    const float* from = scratch.tokens[0][0] + row * kPageTokens;
    VF mass = exp2(clamp(hn::Load(d, from), kMaxDeviation * kLog2E));
    for (int v = 1; v < kTokenVectors; ++v) {
      mass = hn::Add(mass, exp2(clamp(hn::Load(d, from + v * kLanes), kMaxDeviation * kLog2E)));
    }
    hn::Store(mass, d, scratch.masses[0][0] + row * kLanes);
  }
  for (int head = 0; head < kHeads; ++head) {
    const float factor = scale16[head] * args.geometry.softmax_scale;
    alignas(64) float log_mass[kBatchPages];
    for (int page = 0; page < kBatchPages; page += kLanes) {
      const VF mass = log(sum_rows(d, scratch.masses[head][page]));
      hn::Store(hn::Add(mean_logits(scratch, head, page, factor), mass), d, log_mass + page);
    }
    for (int page = 0; scratch.any_flag != std::byte{0} && page < kBatchPages; ++page) {
      if (scratch.flags[page] != std::byte{0}) log_mass[page] = std::numeric_limits<float>::infinity();
    }
    std::copy_n(log_mass, pages, args.log_mass.at(which.request, which.first_query_head + head, which.first_page));
  }
}

template <class Shape, int kHeads>
void write_token_logits(const ScoreArgs& args, const BatchHeads& which, int pages, const float* scale16,
                        const BatchScratch<Shape, kHeads>& scratch) noexcept {
  for (int head = 0; head < kHeads; ++head) {
    const float factor = scale16[head] * args.geometry.softmax_scale;
    const int head_in_group = which.first_query_head + head - which.kv_head * args.geometry.group_size();
    alignas(64) float means[kBatchPages];
    for (int page = 0; page < kBatchPages; page += kLanes) {
      hn::Store(mean_logits(scratch, head, page, factor), F32(), means + page);
    }
    for (int page = 0; page < pages; ++page) {
      float* out = which.logits->at(which.first_page + page, head_in_group);
      for (int lane = 0; lane < kPageTokens; ++lane) {
        out[token_of_lane<Shape>(lane)] = means[page] + scratch.tokens[head][page][lane];
      }
    }
  }
}

template <class Shape, int kHeads>
void score_heads(const ScoreArgs& args, const Shape& shape, const Batch& batch, const BatchHeads& which,
                 const Ahead& ahead) noexcept {
  const float softmax_scale = args.geometry.softmax_scale;
  const Heads<Shape, kHeads> heads(shape, prepared_query(args, which.request, which.first_query_head),
                                   which.logits == nullptr ? softmax_scale * kLog2E : softmax_scale);
  BatchScratch<Shape, kHeads> scratch;
  find_deviations(shape, batch, which.kv_head * args.summaries.head_stride, heads, ahead, scratch);
  if (which.logits == nullptr) {
    write_log_masses(args, which, batch.pages, heads.scale16, scratch);
  } else {
    write_token_logits(args, which, batch.pages, heads.scale16, scratch);
  }
}

/// All query heads of a KV head, kMaxHeads at a time; those beyond unpack the records again.
template <class Shape>
void score_group(const ScoreArgs& args, const Shape& shape, const Batch& batch, BatchHeads which, Ahead ahead) noexcept {
  const int group = args.geometry.group_size();
  which.first_query_head = which.kv_head * group;
  for (int rest = group; rest > 0;) {
    const int heads = std::min(rest, kMaxHeads);
    if (heads == 1) score_heads<Shape, 1>(args, shape, batch, which, ahead);
    if constexpr (kMaxHeads > 1) {
      if (heads == 2) score_heads<Shape, 2>(args, shape, batch, which, ahead);
      if (heads == 3) score_heads<Shape, 3>(args, shape, batch, which, ahead);
      if (heads == 4) score_heads<Shape, 4>(args, shape, batch, which, ahead);
    }
    which.first_query_head += heads;
    rest -= heads;
    ahead = {};
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SCORE_BATCH_INL_H_
