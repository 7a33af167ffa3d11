#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/attend_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first

#include <algorithm>
#include <bit>
#include <utility>

#include "attend/backends.h"
#include "attend/attend_work.h"
#include "attend/chunk-inl.h"
#include "cpu/dispatch.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {

/// Hands out the rows of a piece, a chunk after the other. Tokens of short entries share a chunk. If dense, the KV heads of
/// the same pages follow each other.
class ChunkReader {
 public:
  ChunkReader(const AttendArgs& args, const attend_work::Piece& piece)
      : args_(args), piece_(piece), dense_(attend_work::is_dense(args)), entry_(piece.first_entry) {
    if (!dense_) kv_head_ = piece.list * args.geometry.kv_heads / args.num_lists;
    load_entry();
  }

  /// No tokens: there are no more chunks.
  void next(Chunk& chunk) {
    chunk.tokens = 0;
    chunk.kv_head = kv_head_;
    const int first_entry = entry_;
    while (chunk.tokens < kChunkTokens && entry_ < piece_.end_entry) {
      take(chunk);
      if (mask_ != 0) return;
      ++entry_;
      load_entry();
    }
    if (dense_ && chunk.tokens > 0) {
      if (++kv_head_ < args_.geometry.kv_heads) {
        entry_ = first_entry;
        load_entry();
      } else {
        kv_head_ = 0;
      }
    }
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
      chunk.values[chunk.tokens] = scattered ? values.token(page_, token, kv_head_) : first_value + token * values.token_stride;
      ++chunk.tokens;
    }
  }

  const AttendArgs& args_;
  const attend_work::Piece& piece_;
  const bool dense_;
  int entry_;
  int kv_head_ = 0;
  std::int64_t page_ = 0;
  std::uint32_t mask_ = 0;  // tokens of the entry that are not handed out yet
};
static_assert(kChunkTokens % kPageTokens == 0, "a dense chunk is whole pages: the next KV head starts where this one did");

void attend_piece(const AttendArgs& args, const attend_work::Piece& piece) {
  using LogitsKernel = void (*)(const Chunk&, const Chunk&, const Heads&, float*);
  using ValuesKernel = void (*)(const Chunk&, const Chunk&, const Heads&, const float*, const float*);
  LogitsKernel logits_kernel = nullptr;
  ValuesKernel values_kernel = nullptr;
  with_dtype(args.keys.dtype, [&]<DType kType>() { logits_kernel = &chunk_logits<kType>; });
  with_dtype(args.values.dtype, [&]<DType kType>() { values_kernel = &chunk_values<kType>; });

  const Geometry& geometry = args.geometry;
  const bool dense = attend_work::is_dense(args);
  const int group = geometry.query_heads / (dense ? geometry.kv_heads : args.num_lists);
  const int state_floats = attend_work::state_floats(geometry.head_dim);
  alignas(64) float logits[kMaxHeads * kChunkTokens];
  alignas(64) float rescale[kMaxHeads];
  Chunk chunks[2];
  ChunkReader reader(args, piece);
  reader.next(chunks[0]);
  for (int current = 0; chunks[current].tokens > 0; current ^= 1) {
    const Chunk& chunk = chunks[current];
    Chunk& next = chunks[current ^ 1];
    reader.next(next);
    for (int first = 0; first < group; first += kMaxHeads) {
      const int head_in_row = (dense ? chunk.kv_head * group : 0) + first;
      const int query_head = (dense ? 0 : piece.list * group) + head_in_row;
      const Heads heads{std::min(group - first, kMaxHeads),
                        geometry.head_dim,
                        geometry.softmax_scale,
                        args.queries.at(piece.request, query_head, 0),
                        args.queries.stride[1],
                        piece.states + std::int64_t{head_in_row} * state_floats};
      logits_kernel(chunk, next, heads, logits);
      chunk_softmax(heads, chunk.tokens, logits, rescale);
      values_kernel(chunk, next, heads, logits, rescale);
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
