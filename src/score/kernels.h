// What score.cc chooses from: the reference and the SIMD targets, on one request's pages. They check nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/score.h"
#include "score/query.h"

namespace locks {

[[nodiscard]] inline const std::byte* prepared_query(const ScoreArgs& args, int request, int query_head) noexcept {
  return args.workspace.data() + (std::int64_t{request} * args.geometry.query_heads + query_head) * QueryLayout::kBytes;
}

/// log_mass of the request's pages [first, last), all query heads.
void score_pages_reference(const ScoreArgs& args, int request, int first, int last);
/// `use_vnni`: the processor has AVX512_VNNI; only the AVX-512 target asks.
void score_pages_simd(const ScoreArgs& args, int request, int first, int last, Target target, bool use_vnni) noexcept;

void score_tokens_reference(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                            const View<float, 3>& logits);
void score_tokens_simd(const ScoreArgs& args, int request, int kv_head, std::span<const std::int32_t> page_indices,
                       const View<float, 3>& logits, Target target, bool use_vnni) noexcept;

}  // namespace locks
