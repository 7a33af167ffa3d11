#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/attend_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first

#include <algorithm>
#include <bit>
#include <utility>

#include "attend/attend_work.h"
#include "attend/backends.h"
#include "attend/chunk-inl.h"
#include "attend/logits-inl.h"
#include "attend/values-inl.h"
#include "cpu/dispatch.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {

/// Hands out the rows of a piece, a chunk after the other: those of the list's KV head or, if dense, of the first one.
/// Tokens of short entries share a chunk.
class ChunkReader {
 public:
  ChunkReader(const AttendArgs& args, const attend_work::Piece& piece)
      : args_(args),
        piece_(piece),
        kv_head_(attend_work::is_dense(args) ? 0 : piece.list * args.geometry.kv_heads / args.num_lists),
        entry_(piece.first_entry) {
    load_entry();
  }

  /// No tokens: there are no more chunks.
  void next(Chunk& chunk) {
    chunk.tokens = 0;
    while (chunk.tokens < kChunkTokens && entry_ < piece_.end_entry) {
      take(chunk);
      if (mask_ != 0) break;
      ++entry_;
      load_entry();
    }
    chunk.pad();
  }

 private:
  void load_entry() {
    if (entry_ >= piece_.end_entry) return;
    const SelectedPage entry = attend_work::entry(args_, piece_.request, piece_.list, entry_);
    mask_ = entry.mask;
    page_ = args_.table.page(piece_.request, entry.page);
  }

  /// As many tokens of the entry as fit.
  void take(Chunk& chunk) {
    const PagedCache& keys = args_.keys;
    const PagedCache& values = args_.values;
    const bool scattered = keys.page_slots != nullptr || values.page_slots != nullptr;
    const std::byte* const first_key = scattered ? nullptr : keys.token(page_, 0, kv_head_);
    const std::byte* const first_value = scattered ? nullptr : values.token(page_, 0, kv_head_);
    while (mask_ != 0 && chunk.tokens < kChunkTokens) {
      const int token = std::countr_zero(mask_);
      mask_ &= mask_ - 1;
      chunk.keys[chunk.tokens] = scattered ? keys.token(page_, token, kv_head_) : first_key + token * keys.token_stride;
      chunk.values[chunk.tokens] =
          scattered ? values.token(page_, token, kv_head_) : first_value + token * values.token_stride;
      ++chunk.tokens;
    }
  }

  const AttendArgs& args_;
  const attend_work::Piece& piece_;
  const int kv_head_;
  int entry_;
  std::int64_t page_ = 0;
  std::uint32_t mask_ = 0;  // tokens of the entry that are not handed out yet
};

/// Rows that are far apart cost a lookup of their memory page each, as slow as a miss, and a processor makes few at a time:
/// they are begun early, by a row in four, since a page of memory holds some rows. (Inlined: see complete_cpu.cc.)
HWY_INLINE void begin_address_lookups(const Chunk& chunk) {
  for (int token = 0; token < chunk.tokens; token += 4) {
    __builtin_prefetch(chunk.keys[token], 0, kIntoL2);
    __builtin_prefetch(chunk.values[token], 0, kIntoL2);
  }
}

void attend_piece(const AttendArgs& args, const attend_work::Piece& piece) {
  using LogitsKernel = void (*)(const Chunk&, std::int64_t, const Ahead&, const Heads&, float*);
  using ValuesKernel =
      void (*)(const Chunk&, std::int64_t, const ValueScales&, const Ahead&, const Heads&, const float*, const float*);
  LogitsKernel logits_kernel = nullptr;
  ValuesKernel values_kernel = nullptr;
  with_dtype(args.keys.dtype, [&]<DType kType>() { logits_kernel = &chunk_logits<kType>; });
  with_dtype(args.values.dtype, [&]<DType kType>() { values_kernel = &chunk_values<kType>; });

  const int head_dim = args.geometry.head_dim;
  const int kv_heads = attend_work::is_dense(args) ? args.geometry.kv_heads : 1;  // that attend the same tokens
  const int row_heads = attend_work::heads_per_row(args);
  const int group = row_heads / kv_heads;
  const int first_query_head = attend_work::is_dense(args) ? 0 : piece.list * row_heads;
  alignas(64) float logits[kMaxHeads * kChunkTokens];
  float rescale[kMaxHeads];
  ValueScales value_scales;
  Chunk chunks[3];
  ChunkReader reader(args, piece);
  reader.next(chunks[0]);
  reader.next(chunks[1]);
  for (int current = 0; chunks[current].tokens > 0; current = (current + 1) % 3) {
    const Chunk& chunk = chunks[current];
    const Chunk& next = chunks[(current + 1) % 3];
    Chunk& after_next = chunks[(current + 2) % 3];
    reader.next(after_next);
    begin_address_lookups(after_next);
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      // The next KV head's rows of these tokens, or the first one's of the next tokens.
      const bool last_head = kv_head + 1 == kv_heads;
      const Chunk& soon = last_head ? next : chunk;
      const int soon_head = last_head ? 0 : kv_head + 1;
      const Ahead keys_ahead{soon.keys, soon.tokens, soon_head * args.keys.head_stride,
                             row_bytes(args.keys.dtype, head_dim)};
      const Ahead values_ahead{soon.values, soon.tokens, soon_head * args.values.head_stride,
                               row_bytes(args.values.dtype, head_dim)};
      const std::int64_t key_offset = kv_head * args.keys.head_stride;
      const std::int64_t value_offset = kv_head * args.values.head_stride;
      if (args.values.dtype == DType::kQ8_0) value_scales.gather(chunk, value_offset, head_dim);
      for (int first = 0; first < group; first += kMaxHeads) {
        const int head = kv_head * group + first;
        const Heads heads{std::min(group - first, kMaxHeads),
                          head_dim,
                          args.geometry.softmax_scale,
                          args.queries.at(piece.request, first_query_head + head, 0),
                          args.queries.stride[1],
                          piece.states + std::int64_t{head} * attend_work::state_floats(head_dim)};
        logits_kernel(chunk, key_offset, keys_ahead, heads, logits);
        chunk_softmax(heads, chunk.tokens, logits, rescale);
        values_kernel(chunk, value_offset, value_scales, values_ahead, heads, logits, rescale);
      }
    }
  }
}

void attend_cpu(const AttendArgs& args, Team team) {
  attend_work::for_each_piece(args, team, [&args](const attend_work::Piece& piece) { attend_piece(args, piece); });
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks {

void attend_cpu(const AttendArgs& args, Team team, Target target) { LOCKS_PICK(attend_cpu, target)(args, team); }

}  // namespace locks
#endif
