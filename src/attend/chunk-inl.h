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
inline constexpr int kTileTokens = 4;  // whose logits are computed together

/// Rows of some tokens, from any pages. The rows of a KV head lie `offset` behind those of the first one.
struct Chunk {
  int tokens = 0;
  const std::byte* keys[kChunkTokens];
  const std::byte* values[kChunkTokens];

  /// Tiles take kTileTokens at a time: past the last token, it is there again, and what comes of it is not used.
  void pad() {
    for (int token = tokens; token % kTileTokens != 0; ++token) keys[token] = keys[token - 1];
  }
};

/// The rows that are fetched while others are computed.
struct Ahead {
  const std::byte* const* rows = nullptr;
  int count = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;  // of a row
};

/// Fetches them in `parts` equal parts, so that the memory is never asked for more than it can take at once.
class Fetcher {
 public:
  HWY_INLINE Fetcher(const Ahead& ahead, int parts) : ahead_(ahead), per_part_((ahead.count + parts - 1) / parts) {}
  HWY_INLINE void fetch() {
    for (const int end = std::min(next_ + per_part_, ahead_.count); next_ < end; ++next_) {
      const std::byte* const row = ahead_.rows[next_] + ahead_.offset;
      for (std::int64_t byte = 0; byte < ahead_.bytes; byte += 64) __builtin_prefetch(row + byte);
    }
  }

 private:
  const Ahead ahead_;
  const int per_part_;
  int next_ = 0;
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
HWY_INLINE void dot_tile(const Chunk& chunk, std::int64_t offset, int first_token,
                         const float* HWY_RESTRICT queries, std::int64_t query_stride, int head_dim,
                         float* HWY_RESTRICT logits /* [kHeads, kChunkTokens] */) {
  const FloatTag df;
  constexpr bool kScaled = kType == DType::kQ8_0;
  constexpr int kStep = kScaled ? kQ8BlockElements : 16;  // dimensions; both divide head_dim
  const std::byte* rows[kTokens];
  for (int i = 0; i < kTokens; ++i) rows[i] = chunk.keys[first_token + i] + offset;
  FloatVec sum[kHeads][kTokens];
  for (auto& head : sum) {
    for (auto& vec : head) vec = hn::Zero(df);
  }
  for (int dim = 0; dim < head_dim; dim += kStep) {
    [[maybe_unused]] FloatVec scale[kTokens];
    if constexpr (kScaled) {
      for (int i = 0; i < kTokens; ++i) scale[i] = broadcast_f16(rows[i]);
    }
    for (int in_step = 0; in_step < kStep; in_step += kLanes) {
      FloatVec query[kHeads];
      for (int head = 0; head < kHeads; ++head) query[head] = hn::LoadU(df, queries + head * query_stride + dim + in_step);
      for (int i = 0; i < kTokens; ++i) {
        FloatVec key;
        if constexpr (kScaled) {
          key = hn::Mul(scale[i], load_signed_bytes(rows[i] + 2 + in_step));
        } else {
          key = load_values<kType>(rows[i], dim + in_step);
        }
        for (int head = 0; head < kHeads; ++head) sum[head][i] = hn::MulAdd(key, query[head], sum[head][i]);
      }
    }
    if constexpr (kScaled) {
      for (auto& row : rows) row += kQ8BlockBytes;
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

/// Calls work.operator()<kHeads>(first_head) for tiles of at most kTileHeads heads, their sizes equal or one apart.
template <class Work>
HWY_INLINE void for_each_tile(int heads, const Work& work) {
  const int tiles = (heads + kTileHeads - 1) / kTileHeads;
  for (int tile = 0, first = 0; tile < tiles; ++tile) {
    const int end = heads * (tile + 1) / tiles;
    switch (end - first) {
      case 1: work.template operator()<1>(first); break;
      case 2: work.template operator()<2>(first); break;
      case 3: work.template operator()<3>(first); break;
      default: work.template operator()<4>(first); break;
    }
    first = end;
  }
}

/// Unscaled logits [heads, kChunkTokens] of a chunk; fetches what comes next.
template <DType kType>
HWY_NOINLINE void chunk_logits(const Chunk& chunk, std::int64_t offset, const Ahead& ahead, const Heads& heads,
                               float* HWY_RESTRICT logits) {
  for_each_tile(heads.count, [&]<int kHeads>(int first) HWY_ATTR {
    constexpr int kTokens = kHeads == 4 && HWY_TARGET == HWY_AVX2 ? 2 : kTileTokens;
    const int tiles = (chunk.tokens + kTokens - 1) / kTokens;
    Fetcher fetcher(first == 0 ? ahead : Ahead{}, tiles);
    for (int tile = 0; tile < tiles; ++tile) {
      fetcher.fetch();
      dot_tile<kType, kHeads, kTokens>(chunk, offset, tile * kTokens, heads.queries + first * heads.query_stride,
                                       heads.query_stride, heads.head_dim, logits + first * kChunkTokens + tile * kTokens);
    }
  });
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
/// rounding then grows with the number of chunks, not of tokens. `weights` [blocks, kTileHeads, kChunkTokens]: one block
/// for all dimensions or, for q8_0 and its scales included, one for each of a row's.
template <DType kType, int kHeads, int kVecs>
HWY_INLINE void weigh_tile(const Chunk& chunk, std::int64_t offset, int dim, const float* HWY_RESTRICT weights,
                           const float* HWY_RESTRICT rescale, float* HWY_RESTRICT states, std::int64_t state_stride) {
  const FloatTag df;
  constexpr int kBlockVecs = kType == DType::kQ8_0 ? std::min(kVecs, kQ8BlockElements / kLanes) : kVecs;
  if constexpr (kType == DType::kQ8_0) {
    offset += dim / kQ8BlockElements * kQ8BlockBytes + 2 + dim % kQ8BlockElements;
    weights += dim / kQ8BlockElements * kTileHeads * kChunkTokens;
  }
  FloatVec sum[kHeads][kVecs];
  for (auto& head : sum) {
    for (auto& vec : head) vec = hn::Zero(df);
  }
  for (int token = 0; token < chunk.tokens; ++token) {
    const std::byte* const row = chunk.values[token] + offset;
    for (int first = 0; first < kVecs; first += kBlockVecs) {
      FloatVec value[kBlockVecs];
      for (int i = 0; i < kBlockVecs; ++i) {
        if constexpr (kType == DType::kQ8_0) {
          value[i] = load_signed_bytes(row + first / kBlockVecs * kQ8BlockBytes + i * kLanes);
        } else {
          value[i] = load_values<kType>(row, dim + i * kLanes);
        }
      }
      for (int head = 0; head < kHeads; ++head) {
        const FloatVec weight = hn::Set(df, weights[(first / kBlockVecs * kTileHeads + head) * kChunkTokens + token]);
        for (int i = 0; i < kBlockVecs; ++i) sum[head][first + i] = hn::MulAdd(value[i], weight, sum[head][first + i]);
      }
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

/// The f16 scales [blocks, kChunkTokens] of a chunk's q8_0 values. They are stored one by one and loaded as vectors: what
/// lies in between should give the stores time to reach the cache.
struct ValueScales {
  alignas(64) std::byte halves[2 * kChunkTokens * kMaxHeadDim / kQ8BlockElements];

  void gather(const Chunk& chunk, std::int64_t offset, int head_dim) {
    for (int token = 0; token < chunk.tokens; ++token) {
      const std::byte* at = chunk.values[token] + offset;
      std::byte* to = halves + 2 * token;
      for (int dim = 0; dim < head_dim; dim += kQ8BlockElements, at += kQ8BlockBytes, to += 2 * kChunkTokens) {
        store_u16(to, load_u16(at));
      }
    }
  }
};

/// Weights times scales [blocks, kTileHeads, kChunkTokens]. What is made past the last token is not used.
template <int kHeads>
HWY_INLINE void scale_weights(const ValueScales& scales, int blocks, int tokens, const float* HWY_RESTRICT weights,
                              float* HWY_RESTRICT scaled) {
  const FloatTag df;
  for (int block = 0; block < blocks; ++block) {
    for (int token = 0; token < tokens; token += kLanes) {
      const FloatVec scale = load_f16(scales.halves + 2 * (block * kChunkTokens + token));
      for (int head = 0; head < kHeads; ++head) {
        hn::StoreU(hn::Mul(scale, hn::LoadU(df, weights + head * kChunkTokens + token)), df,
                   scaled + (block * kTileHeads + head) * kChunkTokens + token);
      }
    }
  }
}

/// Adds a chunk's weighted values to the states; fetches what comes next.
template <DType kType>
HWY_NOINLINE void chunk_values(const Chunk& chunk, std::int64_t offset, const ValueScales& scales, const Ahead& ahead,
                               const Heads& heads, const float* weights, const float* rescale) {
  constexpr bool kScaled = kType == DType::kQ8_0;
  alignas(64) float scaled[kScaled ? kMaxHeadDim / kQ8BlockElements * kTileHeads * kChunkTokens : 1];
  const int stride = attend_work::state_floats(heads.head_dim);
  for_each_tile(heads.count, [&]<int kHeads>(int first) HWY_ATTR {
    constexpr int kVecs = HWY_TARGET == HWY_AVX3 || kHeads < 3 ? 4 : 2;  // kHeads * kVecs sums in 32 or 16 registers
    const int vecs = heads.head_dim / kLanes;
    const float* tile_weights = weights + first * kChunkTokens;
    if constexpr (kScaled) {
      scale_weights<kHeads>(scales, heads.head_dim / kQ8BlockElements, chunk.tokens, tile_weights, scaled);
      tile_weights = scaled;
    }
    Fetcher fetcher(first == 0 ? ahead : Ahead{}, (vecs + kVecs - 1) / kVecs);
    const auto weigh = [&]<int kCount>(int vec) HWY_ATTR {
      weigh_tile<kType, kHeads, kCount>(chunk, offset, vec * kLanes, tile_weights, rescale + first,
                                        heads.states + std::int64_t{first} * stride, stride);
    };
    int vec = 0;
    for (; vec + kVecs <= vecs; vec += kVecs) {
      fetcher.fetch();
      weigh.template operator()<kVecs>(vec);
    }
    for (; vec < vecs; ++vec) {
      fetcher.fetch();
      weigh.template operator()<1>(vec);
    }
  });
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_ATTEND_CHUNK_INL_H_
