#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "score/score_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>
#include <cstdint>

#include "cpu/dispatch.h"
#include "score/batch-inl.h"
#include "score/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {

template <class Shape>
void score_pages_as(const ScoreArgs& args, int request, int first, int last) noexcept {
  const Shape shape(args.geometry.head_dim);
  const int kv_heads = args.geometry.kv_heads;
  const auto batch_at = [&](int page) HWY_ATTR {
    return Batch(args, request, last - page, [page](int i) HWY_ATTR { return page + i; });
  };
  Batch batch = batch_at(first);
  for (int page = first; page < last; page += kBatchPages) {
    const Batch next = batch_at(std::min(page + kBatchPages, last));
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      Ahead ahead;
      if (kv_head + 1 < kv_heads) {
        ahead = {batch.records, (kv_head + 1) * args.summaries.head_stride};
      } else if (next.pages > 0) {
        ahead = {next.records, 0};
      }
      score_group(args, shape, batch, {.request = request, .kv_head = kv_head, .first_page = page}, ahead);
    }
    batch = next;
  }
}

template <class Shape>
void score_tokens_as(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                     const View<float, 3>& logits) noexcept {
  const Shape shape(args.geometry.head_dim);
  const int count = static_cast<int>(page_indices.size());
  const auto batch_at = [&](int first) HWY_ATTR {
    return Batch(args, request, count - first, [&](int i) HWY_ATTR { return page_indices[first + i]; });
  };
  Batch batch = batch_at(0);
  for (int first = 0; first < count; first += kBatchPages) {
    const Batch next = batch_at(std::min(first + kBatchPages, count));
    const Ahead ahead = next.pages > 0 ? Ahead{next.records, kv_head * args.summaries.head_stride} : Ahead{};
    score_group(args, shape, batch, {.request = request, .kv_head = kv_head, .first_page = first, .logits = &logits}, ahead);
    batch = next;
  }
}

/// Calls f with the format as a template argument.
template <class F>
void with_format(const SummaryFormat& format, F f) {
  switch (format.id) {
    case FormatId::kPaper:
      return f.template operator()<kPaper>();
    case FormatId::kGraded8:
      return f.template operator()<kGraded8>();
    case FormatId::kGraded12:
      return f.template operator()<kGraded12>();
    case FormatId::kGraded4:
      return f.template operator()<kGraded4>();
  }
}

/// Calls f with the shape as a template argument.
template <class F>
void with_shape(const ScoreArgs& args, bool use_vnni, F f) {
  with_format(*args.summaries.format, [&]<const SummaryFormat & kFormat>() HWY_ATTR {
    if constexpr (HWY_TARGET == HWY_AVX3) {
      if (use_vnni) return f.template operator()<Shape<kFormat, 0, true>>();
    } else if constexpr (HWY_TARGET == HWY_AVX2) {  // its loops are longer, and gain from being unrolled
      if (args.geometry.head_dim == 64) return f.template operator()<Shape<kFormat, 64, false>>();
      if (args.geometry.head_dim == 128) return f.template operator()<Shape<kFormat, 128, false>>();
    }
    f.template operator()<Shape<kFormat, 0, false>>();
  });
}

void score_pages(const ScoreArgs& args, int request, int first, int last, bool use_vnni) noexcept {
  with_shape(args, use_vnni, [&]<class Shape>() HWY_ATTR { score_pages_as<Shape>(args, request, first, last); });
}

void score_tokens(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                  const View<float, 3>& logits, bool use_vnni) noexcept {
  with_shape(args, use_vnni,
             [&]<class Shape>() HWY_ATTR { score_tokens_as<Shape>(args, request, kv_head, page_indices, logits); });
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks {

void score_pages_simd(const ScoreArgs& args, int request, int first, int last, Target target, bool use_vnni) noexcept {
  LOCKS_PICK(score_pages, target)(args, request, first, last, use_vnni);
}

void score_tokens_simd(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                       const View<float, 3>& logits, Target target, bool use_vnni) noexcept {
  LOCKS_PICK(score_tokens, target)(args, request, kv_head, page_indices, logits, use_vnni);
}

}  // namespace locks
#endif  // HWY_ONCE
