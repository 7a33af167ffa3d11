// The arithmetic of exact attention: a chunk of tokens at a time, for all query heads that share their rows.
// Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_ATTEND_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_ATTEND_CHUNK_INL_H_
#undef LOCKS_ATTEND_CHUNK_INL_H_
#else
#define LOCKS_ATTEND_CHUNK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attend/attend_work.h"
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using attend_work::kChunkTokens;
inline constexpr int kMaxHeads = 64;   // of one chunk: the softmax of a larger group is done in parts
inline constexpr int kTileHeads = 4;   // that share one conversion of a row to float

/// Rows of some tokens of one KV head, from any pages.
struct Chunk {
  int tokens = 0;
  int kv_head = 0;
  const std::byte* keys[kChunkTokens];
  const std::byte* values[kChunkTokens];
};

/// The query heads that attend a chunk, and their partial states.
struct Heads {
  int count = 0;
  int head_dim = 0;
  float softmax_scale = 0.0F;
  const float* queries = nullptr;
  std::int64_t query_stride = 0;
  float* states = nullptr;  // attend_work::state_floats apart
};

HWY_INLINE void prefetch_rows(const std::byte* const* rows, int first, int end, std::int64_t bytes) {
  for (int token = first; token < end; ++token) {
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(rows[token] + at);
  }
}

/// Sums of the lanes of four vectors.
HWY_INLINE void sum_lanes_of_four(FloatVec a, FloatVec b, FloatVec c, FloatVec d, float* HWY_RESTRICT sums) {
  const FloatTag df;
#if HWY_TARGET == HWY_SCALAR
  const FloatVec all[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) sums[i] = hn::GetLane(all[i]);
  (void)df;
#else
  const hn::RepartitionToWide<FloatTag> pairs;
  const FloatVec ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const FloatVec cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto ab2 = hn::BitCast(pairs, ab);
  const auto cd2 = hn::BitCast(pairs, cd);
  const FloatVec abcd = hn::Add(hn::BitCast(df, hn::InterleaveLower(pairs, ab2, cd2)),
                                hn::BitCast(df, hn::InterleaveUpper(pairs, ab2, cd2)));
  const hn::Half<FloatTag> half;
  const auto folded = hn::Add(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<hn::Half<FloatTag>> quarter;
  hn::StoreU(hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded)), quarter, sums);
#else
  hn::StoreU(folded, half, sums);
#endif
#endif
}

/// Dot products of 4 tokens (or 2: with 16 registers, 4 heads leave room for no more) with kHeads queries.
template <DType kType, int kHeads, int kTokens>
HWY_INLINE void dot_tile(const std::byte* const* rows, const float* HWY_RESTRICT queries, std::int64_t query_stride, int head_dim,
                         float* HWY_RESTRICT logits /* [kHeads, kChunkTokens] */) {
  const FloatTag df;
  constexpr int kStep = kType == DType::kQ8_0 ? kQ8BlockElements : 16;  // dimensions; both divide head_dim
  FloatVec sum[kHeads][kTokens];
  for (auto& head : sum) {
    for (auto& vec : head) vec = hn::Zero(df);
  }
  for (int dim = 0; dim < head_dim; dim += kStep) {
    if constexpr (kType == DType::kQ8_0) {
      Q8Scale scale[kTokens];
      const std::byte* codes[kTokens];
      for (int token = 0; token < kTokens; ++token) {
        const std::byte* const block = rows[token] + dim / kQ8BlockElements * kQ8BlockBytes;
        scale[token] = load_q8_scale(block);
        codes[token] = block + 2;
      }
      for (int i = 0; i < kStep; i += kLanes) {
        FloatVec query[kHeads];
        for (int head = 0; head < kHeads; ++head) query[head] = hn::LoadU(df, queries + head * query_stride + dim + i);
        for (int token = 0; token < kTokens; ++token) {
          const FloatVec key = load_q8_values(codes[token] + i, scale[token]);
          for (int head = 0; head < kHeads; ++head) sum[head][token] = hn::MulAdd(key, query[head], sum[head][token]);
        }
      }
    } else {
      for (int i = 0; i < kStep; i += kLanes) {
        FloatVec query[kHeads];
        for (int head = 0; head < kHeads; ++head) query[head] = hn::LoadU(df, queries + head * query_stride + dim + i);
        for (int token = 0; token < kTokens; ++token) {
          const FloatVec key = load_values<kType>(rows[token], dim + i);
          for (int head = 0; head < kHeads; ++head) sum[head][token] = hn::MulAdd(key, query[head], sum[head][token]);
        }
      }
    }
  }
  if constexpr (kTokens == 4) {
    for (int head = 0; head < kHeads; ++head) {
      sum_lanes_of_four(sum[head][0], sum[head][1], sum[head][2], sum[head][3], logits + head * kChunkTokens);
    }
  } else {
    static_assert(kTokens == 2 && kHeads % 2 == 0);
    for (int head = 0; head < kHeads; head += 2) {
      float sums[4];
      sum_lanes_of_four(sum[head][0], sum[head][1], sum[head + 1][0], sum[head + 1][1], sums);
      std::copy_n(sums, 2, logits + head * kChunkTokens);
      std::copy_n(sums + 2, 2, logits + (head + 1) * kChunkTokens);
    }
  }
}

template <DType kType, int kHeads>
HWY_INLINE void dot_heads(const Chunk& chunk, const Chunk& next, bool prefetch, const Heads& heads, int first_head,
                          float* HWY_RESTRICT logits) {
  constexpr int kTokens = kHeads == 4 && HWY_TARGET == HWY_AVX2 ? 2 : 4;
  const std::int64_t bytes = row_bytes(kType, heads.head_dim);
  const float* const queries = heads.queries + first_head * heads.query_stride;
  for (int token = 0; token < chunk.tokens; token += kTokens) {
    const std::byte* rows[kTokens];  // past the last token, it again: its logits are not used
    for (int i = 0; i < kTokens; ++i) rows[i] = chunk.keys[std::min(token + i, chunk.tokens - 1)];
    const bool last = token + kTokens >= chunk.tokens;
    if (prefetch) prefetch_rows(next.keys, token, last ? next.tokens : std::min(token + kTokens, next.tokens), bytes);
    dot_tile<kType, kHeads, kTokens>(rows, queries, heads.query_stride, heads.head_dim,
                                     logits + first_head * kChunkTokens + token);
  }
}

/// The smallest number of equal parts of at most kTileHeads; their sizes differ by one at most.
HWY_INLINE int tile_end(int heads, int tile, int tiles) { return heads * (tile + 1) / tiles; }

/// Unscaled logits [heads, kChunkTokens] of a chunk; starts to read the next chunk's keys.
template <DType kType>
HWY_NOINLINE void chunk_logits(const Chunk& chunk, const Chunk& next, const Heads& heads, float* HWY_RESTRICT logits) {
  const int tiles = (heads.count + kTileHeads - 1) / kTileHeads;
  for (int tile = 0, first = 0; tile < tiles; ++tile) {
    const int end = tile_end(heads.count, tile, tiles);
    switch (end - first) {
      case 1: dot_heads<kType, 1>(chunk, next, tile == 0, heads, first, logits); break;
      case 2: dot_heads<kType, 2>(chunk, next, tile == 0, heads, first, logits); break;
      case 3: dot_heads<kType, 3>(chunk, next, tile == 0, heads, first, logits); break;
      default: dot_heads<kType, 4>(chunk, next, tile == 0, heads, first, logits); break;
    }
    first = end;
  }
}

/// The states' max grows to cover the scaled logits of a chunk, and their sums shrink by what `rescale` says.
inline HWY_NOINLINE void grow_max(const Heads& heads, int padded, const float* HWY_RESTRICT logits, float* HWY_RESTRICT rescale) {
  const FloatTag df;
  for (int head = 0; head < heads.count; ++head) {
    float* const state = heads.states + std::int64_t{head} * attend_work::state_floats(heads.head_dim);
    float& max = attend_work::state_max(state, heads.head_dim);
    FloatVec largest = hn::Set(df, max);
    for (int token = 0; token < padded; token += kLanes) {
      const FloatVec logit = hn::LoadU(df, logits + head * kChunkTokens + token);
      largest = hn::IfThenElse(hn::Gt(logit, largest), logit, largest);  // a NaN is passed over here, and kept by exp
    }
    const float new_max = hn::GetLane(hn::MaxOfLanes(df, largest));
    rescale[head] = new_max == max ? 1.0F : hn::GetLane(softmax_exp(df, hn::Set(df, max - new_max)));
    max = new_max;
    float* const parts = state + heads.head_dim;
    hn::StoreU(hn::Mul(hn::LoadU(df, parts), hn::Set(df, rescale[head])), df, parts);
  }
}

/// Logits to weights exp(logit - max), in place, and the states' max and sum of weights; the weighted sums of values are
/// still to be multiplied by `rescale`. While the max is -infinity, nothing seen but logits of -infinity, weights are 0.
inline HWY_NOINLINE void chunk_softmax(const Heads& heads, int tokens, float* HWY_RESTRICT logits, float* HWY_RESTRICT rescale) {
  const FloatTag df;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int state_floats = attend_work::state_floats(heads.head_dim);
  const int padded = (tokens + kLanes - 1) / kLanes * kLanes;
  const FloatVec scale = hn::Set(df, heads.softmax_scale);
  bool grows = false;
  for (int head = 0; head < heads.count; ++head) {
    float* const row = logits + head * kChunkTokens;
    const FloatVec max = hn::Set(df, attend_work::state_max(heads.states + std::int64_t{head} * state_floats, heads.head_dim));
    auto covered = hn::Eq(scale, scale);
    for (int token = 0; token < padded; token += kLanes) {
      const FloatVec logit = hn::Mul(hn::LoadU(df, row + token), scale);
      hn::StoreU(logit, df, row + token);
      covered = hn::And(covered, hn::Le(logit, max));
    }
    grows |= !hn::AllTrue(df, covered);
    rescale[head] = 1.0F;
    for (int token = tokens; token < padded; ++token) row[token] = kNone;
  }
  if (grows) grow_max(heads, padded, logits, rescale);
  for (int head = 0; head < heads.count; ++head) {
    float* const row = logits + head * kChunkTokens;
    float* const state = heads.states + std::int64_t{head} * state_floats;
    const float max = attend_work::state_max(state, heads.head_dim);
    const FloatVec reference = hn::Set(df, max == kNone ? 0.0F : max);
    FloatVec sum = hn::LoadU(df, state + heads.head_dim);
    for (int token = 0; token < padded; token += kLanes) {
      const FloatVec weight = softmax_exp(df, hn::Sub(hn::LoadU(df, row + token), reference));
      hn::StoreU(weight, df, row + token);
      sum = hn::Add(sum, weight);
    }
    hn::StoreU(sum, df, state + heads.head_dim);
  }
}

/// Dimensions [dim, dim + kVecs * kLanes) of sum = sum * rescale + weights * values. The chunk's own sum is made first:
/// rounding then grows with the number of chunks, not of tokens.
template <DType kType, int kHeads, int kVecs>
HWY_INLINE void weigh_tile(const Chunk& chunk, int dim, const float* HWY_RESTRICT weights, const float* HWY_RESTRICT rescale,
                           float* HWY_RESTRICT states, std::int64_t state_stride) {
  const FloatTag df;
  FloatVec sum[kHeads][kVecs];
  for (auto& head : sum) {
    for (auto& vec : head) vec = hn::Zero(df);
  }
  for (int token = 0; token < chunk.tokens; ++token) {
    const std::byte* const row = chunk.values[token];
    FloatVec value[kVecs];
    load_values<kType>(row, dim, value);
    for (int head = 0; head < kHeads; ++head) {
      const FloatVec weight = hn::Set(df, weights[head * kChunkTokens + token]);
      for (int i = 0; i < kVecs; ++i) sum[head][i] = hn::MulAdd(value[i], weight, sum[head][i]);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    float* const out = states + head * state_stride + dim;
    const FloatVec factor = hn::Set(df, rescale[head]);
    for (int i = 0; i < kVecs; ++i) {
      hn::StoreU(hn::MulAdd(hn::LoadU(df, out + i * kLanes), factor, sum[head][i]), df, out + i * kLanes);
    }
  }
}

template <DType kType, int kHeads>
HWY_INLINE void weigh_heads(const Chunk& chunk, const Chunk& next, bool prefetch, const Heads& heads, int first_head,
                            const float* weights, const float* rescale) {
  constexpr int kVecs = HWY_TARGET == HWY_AVX3 || kHeads < 3 ? 4 : 2;  // kHeads * kVecs sums in 32 or 16 registers
  const std::int64_t bytes = row_bytes(kType, heads.head_dim);
  const int stride = attend_work::state_floats(heads.head_dim);
  float* const states = heads.states + std::int64_t{first_head} * stride;
  weights += first_head * kChunkTokens;
  rescale += first_head;
  int dim = 0;
  int fetched = 0;
  const auto fetch_until = [&](int done) HWY_ATTR {
    const int end = next.tokens * done / heads.head_dim;
    if (prefetch) prefetch_rows(next.values, fetched, end, bytes);
    fetched = end;
  };
  for (; dim + kVecs * kLanes <= heads.head_dim; dim += kVecs * kLanes) {
    fetch_until(dim + kVecs * kLanes);
    weigh_tile<kType, kHeads, kVecs>(chunk, dim, weights, rescale, states, stride);
  }
  for (; dim < heads.head_dim; dim += kLanes) {
    fetch_until(dim + kLanes);
    weigh_tile<kType, kHeads, 1>(chunk, dim, weights, rescale, states, stride);
  }
}

/// Adds a chunk's weighted values to the states; starts to read the next chunk's values.
template <DType kType>
HWY_NOINLINE void chunk_values(const Chunk& chunk, const Chunk& next, const Heads& heads, const float* weights,
                               const float* rescale) {
  const int tiles = (heads.count + kTileHeads - 1) / kTileHeads;
  for (int tile = 0, first = 0; tile < tiles; ++tile) {
    const int end = tile_end(heads.count, tile, tiles);
    switch (end - first) {
      case 1: weigh_heads<kType, 1>(chunk, next, tile == 0, heads, first, weights, rescale); break;
      case 2: weigh_heads<kType, 2>(chunk, next, tile == 0, heads, first, weights, rescale); break;
      case 3: weigh_heads<kType, 3>(chunk, next, tile == 0, heads, first, weights, rescale); break;
      default: weigh_heads<kType, 4>(chunk, next, tile == 0, heads, first, weights, rescale); break;
    }
    first = end;
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_ATTEND_CHUNK_INL_H_
