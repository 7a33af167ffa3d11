// Step 1 of a chunk: the logits of its tokens, and the weights of the softmax.
// Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_ATTEND_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_ATTEND_LOGITS_INL_H_
#undef LOCKS_ATTEND_LOGITS_INL_H_
#else
#define LOCKS_ATTEND_LOGITS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attend/attend_work.h"
#include "attend/chunk-inl.h"
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Dot products of 4 tokens (or 2: with 16 registers, 4 heads leave room for no more) with kHeads queries.
template <DType kType, int kHeads, int kTokens>
HWY_INLINE void dot_tile(const Chunk& chunk, std::int64_t offset, int first_token, const float* HWY_RESTRICT queries,
                         std::int64_t query_stride, int head_dim, float* HWY_RESTRICT logits /* [kHeads, kChunkTokens] */) {
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
inline HWY_NOINLINE void grow_max(const Heads& heads, int padded, const float* HWY_RESTRICT logits,
                                  float* HWY_RESTRICT rescale) {
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
inline HWY_NOINLINE void chunk_softmax(const Heads& heads, int tokens, float* HWY_RESTRICT logits,
                                       float* HWY_RESTRICT rescale) {
  const FloatTag df;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int state_floats = attend_work::state_floats(heads.head_dim);
  const int padded = (tokens + kLanes - 1) / kLanes * kLanes;
  const FloatVec scale = hn::Set(df, heads.softmax_scale);
  bool grows = false;
  for (int head = 0; head < heads.count; ++head) {
    float* const row = logits + head * kChunkTokens;
    const FloatVec max =
        hn::Set(df, attend_work::state_max(heads.states + std::int64_t{head} * state_floats, heads.head_dim));
    auto covered = hn::Eq(scale, scale);
    for (int token = tokens; token < padded; ++token) row[token] = kNone;
    for (int token = 0; token < padded; token += kLanes) {
      const FloatVec logit = hn::Mul(hn::LoadU(df, row + token), scale);
      hn::StoreU(logit, df, row + token);
      covered = hn::And(covered, hn::Le(logit, max));
    }
    grows |= !hn::AllTrue(df, covered);
    rescale[head] = 1.0F;
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

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_ATTEND_LOGITS_INL_H_
