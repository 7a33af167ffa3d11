// The stages as kernels of a step, which start early (start.h). score_in_step(), or another scorer, is the first.
#pragma once

#include <array>
#include <cstdint>

#include "locks/cuda.h"

namespace locks::cuda {

/// Which pages a step scores: those that can be selected, and the first ones.
struct StepPages {
  SelectConfig config;
  int min_context_tokens = 0;
};

void score_in_step(const ScoreArgs& args, const StepPages& pages, Stream stream);
/// Contexts of at most `whole_tokens` tokens have no candidates.
void score_tokens_in_step(const TokenScoreArgs& args, int whole_tokens, Stream stream);
/// The candidates; with whole pages, the selection, and if the rest is wanted, what is skipped and the pages that stand in
/// for it.
void select_pages_in_step(const SelectArgs& args, bool wants_rest, Stream stream);
/// The same of parts; of whole pages nothing is left.
void select_tokens_in_step(const SelectArgs& args, bool wants_rest, Stream stream);

/// Contexts of at most `whole_tokens` tokens are attended whole, without a look at their lists: that begins while the
/// kernels in front are at work, the first of which has waited for what was queued before. `completion`: null for none.
void attend_in_step(const AttendArgs& args, int whole_tokens, const CompletionArgs* completion, SoftmaxStates states,
                    const HeadRows& out, Stream stream);

/// Throws what attend() would, before anything is queued that reads the cache.
void check_attend(const AttendArgs& args, SoftmaxStates states);
/// Throws if outputs are none of this shape, [requests, query_heads, head_dim], or of a type that is not written.
void check_out(const std::array<std::int64_t, 3>& shape, const HeadRows& out);

}  // namespace locks::cuda
