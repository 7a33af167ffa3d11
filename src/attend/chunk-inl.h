// Exact attention works on a chunk of tokens at a time, for all query heads that share their rows: what a chunk is.
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

#include "attend/attend_work.h"
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

inline constexpr int kIntoL2 = 2;  // as __builtin_prefetch takes it
inline constexpr int kIntoL1 = 3;

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
      if (ahead_.bytes > kShortRow) {
        for (std::int64_t byte = 0; byte < ahead_.bytes; byte += 64) __builtin_prefetch(row + byte, 0, kIntoL2);
      } else {
        for (std::int64_t byte = 0; byte < ahead_.bytes; byte += 64) __builtin_prefetch(row + byte, 0, kIntoL1);
      }
    }
  }

 private:
  static constexpr std::int64_t kShortRow = 128;  // longer rows come faster by way of L2, up to 10 %; shorter ones slower

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
  const FloatVec abcd =
      hn::Add(hn::BitCast(df, hn::InterleaveLower(pairs, ab2, cd2)), hn::BitCast(df, hn::InterleaveUpper(pairs, ab2, cd2)));
  const hn::Half<FloatTag> half;
  const auto folded = hn::Add(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<hn::Half<FloatTag> > quarter;
  hn::StoreU(hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded)), quarter, sums);
#else
  hn::StoreU(folded, half, sums);
#endif
#endif
}

/// Calls work.operator()<kHeads>(first_head) for tiles of at most kTileHeads heads, their sizes equal or one apart.
template <class Work>
HWY_INLINE void for_each_tile(int heads, const Work& work) {
  const int tiles = (heads + kTileHeads - 1) / kTileHeads;
  for (int tile = 0, first = 0; tile < tiles; ++tile) {
    const int end = heads * (tile + 1) / tiles;
    switch (end - first) {
      case 1:
        work.template operator()<1>(first);
        break;
      case 2:
        work.template operator()<2>(first);
        break;
      case 3:
        work.template operator()<3>(first);
        break;
      default:
        work.template operator()<4>(first);
        break;
    }
    first = end;
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_ATTEND_CHUNK_INL_H_
