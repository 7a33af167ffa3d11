// A decode step on the GPU in which something else than LOCKS's records scores the pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/cuda.h"

namespace locks::cuda {

class PageScorer {
 public:
  /// Scores are compared as they are, [requests, lists, pages]; or they are log-masses [requests, query_heads, pages].
  bool ranks = false;
  std::int64_t page_bytes = 0;  // read of a page and a KV head

  PageScorer() = default;
  PageScorer(const PageScorer&) = delete;
  PageScorer& operator=(const PageScorer&) = delete;
  /// The step's first kernels: scores of the pages that can be selected. With parts, the logits [requests, lists, selectable
  /// pages, heads, 16] of all of them too: every one is a candidate.
  virtual void score(View<float, 3> scores, View<float, 5> logits, Stream stream) const = 0;

 protected:
  ~PageScorer() = default;
};

/// As run(), without completion; the inputs' summaries play no part.
void run(const DecodePlan& plan, const DecodeInputs& inputs, const PageScorer& scorer, const HeadRows& out,
         std::span<DecodeReport> reports, std::span<std::byte> workspace, Stream stream);

}  // namespace locks::cuda
