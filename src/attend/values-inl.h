// Step 2 of a chunk: its values, weighted, join the partial states.
// Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_ATTEND_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_ATTEND_VALUES_INL_H_
#undef LOCKS_ATTEND_VALUES_INL_H_
#else
#define LOCKS_ATTEND_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attend/attend_work.h"
#include "attend/chunk-inl.h"
#include "cpu/half.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

#endif  // LOCKS_ATTEND_VALUES_INL_H_
