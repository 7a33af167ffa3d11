// What a warp does with a tile of 16 tokens. Tokens are the rows of the tensor cores' tile and query heads its 8 columns, in
// both products, so that what belongs to a head (max, scale) stays in the lanes of its column.
#pragma once

#include <cfloat>

#include "attend/attend_cuda.h"
#include "attend/attend_numbers.cuh"
#include "attend/attend_tokens.cuh"
#include "cuda/softmax_state.cuh"

namespace locks::cuda::attend_stage {

inline constexpr int kTileTokens = 16;
inline constexpr int kMaxWarps = 4;

/// With `kOnce` a warp takes one tile: queries are then converted by the block together, a share a warp, and read once.
template <DType kType_, int kHeadDim_, int kColumns_, bool kOnce_ = false>
struct Shape {
  static constexpr DType kType = kType_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kColumns = kColumns_;  // tiles of 8 query heads
  static constexpr bool kOnce = kOnce_;
  static constexpr int kHeads = 8 * kColumns;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * Numbers<kType>::kBytes;
  static constexpr int kRowStride = kRowBytes + (kRowBytes % 32 == 0 ? 16 : 0);  // odd in 16 bytes: 8 rows meet all banks
  static constexpr int kSideBytes = kTileTokens * kRowStride;
  static constexpr int kStateStride = kHeadDim + 4;  // floats; stores of a column's lanes meet all banks
  static constexpr int kStateBytes = kHeads * kStateStride * 4;
  // Keys and values; and a warp's state, which passes through a tile of the ring.
  static constexpr int kTileBytes = 2 * kSideBytes > kStateBytes ? 2 * kSideBytes : kStateBytes;
  // Two blocks should fit a multiprocessor of 228 KB; a third tile gains nothing that a second block would not.
  static constexpr int kStages = kTileBytes <= 7 * 1024 ? 3 : 2;
  static constexpr int kBlocks =
      kColumns == 1 && kHeadDim <= 64 && kType != DType::kF32 ? 3 : 2;  // that registers leave room for

  // Queries stay in registers unless those would spill.
  static constexpr int kQueryRegisters = kColumns * kSteps * Numbers<kType>::kParts * 2;
  static constexpr bool kSharedQueries = kOnce || kType == DType::kF32 || kQueryRegisters + kColumns * kSteps * 4 >= 120;
  static constexpr int kUnrolledSteps = kSharedQueries && !kOnce ? 4 : kSteps;

  static constexpr int query_bytes() { return kSharedQueries ? kQueryRegisters * 32 * 4 : 0; }
  static constexpr int ring_bytes(int warps) { return warps * kStages * kTileBytes; }
  static constexpr int running_bytes() { return kHeads * kStateStride * 4; }
  // Ring, queries, running state, then for each warp where its tokens lie, the states' maxima and sums, sums of a scan.
  static constexpr int shared_bytes(int warps) {
    return ring_bytes(warps) + query_bytes() + running_bytes() +
           warps * (kWindows * 32 * kThreadTokens * static_cast<int>(sizeof(TokenRows)) + kHeads * 8 + kOwnEntries * 4);
  }
};

/// What makes a product of a query and a key's elements a logit, and a sum of weighted elements one of values.
template <DType kType>
__device__ __forceinline__ float logit_scale_of(const AttendParams& params) {
  if constexpr (kType == DType::kE4M3) {
    if (params.key_scale != nullptr) return params.softmax_scale * *params.key_scale;
  }
  return params.softmax_scale;
}
template <DType kType>
__device__ __forceinline__ float value_scale_of(const AttendParams& params) {
  constexpr float kInverse = 1.0F / Numbers<kType>::kWeightScale;
  if constexpr (kType == DType::kE4M3) {
    if (params.value_scale != nullptr) return kInverse * *params.value_scale;
  }
  return kInverse;
}

/// Parts of the queries, as b fragments, and what turns their products into logits.
template <class S>
class Queries {
  using N = Numbers<S::kType>;

 public:
  using Parts = std::uint32_t[N::kParts][2];
  /// Where the i-th of a lane's elements lies behind its first.
  static constexpr __device__ int element(int i) { return i / 4 * 16 + i % 4 / 2 * N::kHalfStep + i % 2; }

  Parts own[S::kSharedQueries ? 1 : S::kColumns * S::kSteps];
  const uint2* shared;                // [columns, steps, parts, lanes]
  float logit_scale[S::kColumns][2];  // of the columns that this lane's sums belong to

  __device__ __forceinline__ void get(Parts& parts, int column, int step, int lane) const {
    const int index = column * S::kSteps + step;
#pragma unroll
    for (int part = 0; part < N::kParts; ++part) {
      if constexpr (S::kSharedQueries) {
        const uint2 pair = shared[(index * N::kParts + part) * 32 + lane];
        parts[part][0] = pair.x;
        parts[part][1] = pair.y;
      } else {
        parts[part][0] = own[index][part][0];
        parts[part][1] = own[index][part][1];
      }
    }
  }

  /// Asks for what this lane will convert().
  __device__ __forceinline__ void ask(const AttendParams& params, int request, int first_head, int end_head, int lane) {
    softmax_scale = logit_scale_of<S::kType>(params);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      const int head = first_head + 8 * column + lane / 4;
      exists[column] = head < end_head;
      query[column] = params.queries + request * params.query_request_stride +
                      (exists[column] ? head : first_head) * params.query_head_stride + N::kLaneStep * (lane % 4);
      if constexpr (!S::kSharedQueries) {
#pragma unroll
        for (int i = 0; i < 4 * S::kSteps; ++i) asked[column][i] = query[column][element(i)];
      }
    }
  }
  /// With shared queries the block has to wait for all of its warps afterwards.
  __device__ __forceinline__ void convert(const AttendParams& params, uint2* memory, int warp, int warps, int lane) {
    shared = memory;
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      const auto load = [&](int i) {
        float value = 0.0F;
        if constexpr (S::kSharedQueries) {
          value = query[column][element(i)];
        } else {
          value = asked[column][i];
        }
        return exists[column] ? value : 0.0F;
      };
      float scale = 1.0F;
      float inverse = 1.0F;
      if constexpr (N::kScalesQueries) {
        // The largest element comes to 2^14 ... 2^15, so that no part leaves the range of f16.
        float largest = 0.0F;
#pragma unroll
        for (int i = 0; i < 4 * S::kSteps; ++i) largest = fmaxf(largest, fabsf(load(i)));
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
        const int exponent = min(max(268 - static_cast<int>(__float_as_uint(largest) >> 23), 27), 227);
        scale = __uint_as_float(static_cast<unsigned>(exponent) << 23);
        inverse = __uint_as_float(static_cast<unsigned>(254 - exponent) << 23);
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const int index = column * S::kSteps + step;
        if (S::kSharedQueries && index % warps != warp) continue;
        std::uint32_t parts[2][N::kParts];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma16::split(parts[half], load(4 * step + 2 * half) * scale, load(4 * step + 2 * half + 1) * scale);
        }
#pragma unroll
        for (int part = 0; part < N::kParts; ++part) {
          if constexpr (S::kSharedQueries) {
            memory[(index * N::kParts + part) * 32 + lane] = {parts[0][part], parts[1][part]};
          } else {
            own[index][part][0] = parts[0][part];
            own[index][part][1] = parts[1][part];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        logit_scale[column][i] = softmax_scale * __shfl_sync(~0U, inverse, 4 * (2 * (lane % 4) + i));
      }
    }
  }

 private:
  float softmax_scale;
  const float* query[S::kColumns];
  bool exists[S::kColumns];
  float asked[S::kColumns][S::kSharedQueries ? 1 : 4 * S::kSteps];
};

/// A warp's state: of column c and its heads 2t, 2t + 1; sums of weights are those of the lane's own tokens.
template <class S>
struct WarpState {
  float max[S::kColumns][2];
  float sum[S::kColumns][2];
  float out[S::kColumns][S::kSteps][4];  // rows: dimensions

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max[column][i] = kNoLogit;
        sum[column][i] = 0.0F;
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[column][step][i] = 0.0F;
      }
    }
  }
};

/// Parts of a number that is not finite may cancel (infinity - infinity) where the number itself does not: such a logit is
/// computed again, plainly.
template <class S>
__device__ __forceinline__ float plain_logit(const AttendParams& params, int request, int head, const std::byte* key) {
  const float* const query = params.queries + request * params.query_request_stride + head * params.query_head_stride;
  float dot = 0.0F;
#pragma unroll 1
  for (int dim = 0; dim < S::kHeadDim; ++dim) dot = fmaf(query[dim], Numbers<S::kType>::element(key, dim), dot);
  return dot * logit_scale_of<S::kType>(params);
}

/// Products of a tile's keys and the queries, which queries.logit_scale makes logits.
template <class S>
using TileProducts = float[S::kColumns][Numbers<S::kType>::kSums][4];
template <class S>
__device__ __forceinline__ void multiply_keys(const std::byte* tile, const Queries<S>& queries, int lane,
                                              TileProducts<S>& products) {
  using N = Numbers<S::kType>;
  const std::uint32_t keys = N::template keys_of_lane<S::kRowStride>(mma16::shared_address(tile), lane);
#pragma unroll(S::kUnrolledSteps)
  for (int step = 0; step < S::kSteps; ++step) {
    const auto fragment = N::template keys<S::kRowStride>(keys, step);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      typename Queries<S>::Parts parts;
      queries.get(parts, column, step, lane);
      N::multiply(products[column], fragment, parts);
    }
  }
}

/// Logits of a column of a tile of `valid` tokens, which holds zeros where there is no token.
template <class S>
__device__ __forceinline__ void column_logits(const AttendParams& params, int request, int first_head, int end_head,
                                              const std::byte* tile, int valid, const Queries<S>& queries, int lane,
                                              int column, const TileProducts<S>& products, float (&logits)[4]) {
  using N = Numbers<S::kType>;
  bool odd = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    logits[i] = N::total(products[column], i) * queries.logit_scale[column][i % 2];
    odd = odd || (lane / 4 + i / 2 * 8 < valid && !(fabsf(logits[i]) <= FLT_MAX));
  }
  if (__any_sync(~0U, odd)) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int token = lane / 4 + i / 2 * 8;
      const int head = first_head + 8 * column + 2 * (lane % 4) + i % 2;
      if (token >= valid || head >= end_head) continue;
      const float logit = plain_logit<S>(params, request, head, tile + token * S::kRowStride);
#pragma unroll
      for (int j = 0; j < 4; ++j) logits[j] = i == j ? logit : logits[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] = lane / 4 + i / 2 * 8 < valid ? logits[i] : kNoLogit;
}

/// The largest logit of a head, in all lanes of its column.
__device__ __forceinline__ float largest_of_head(float logit, float other) {
  float largest = fmaxf(logit, other);
#pragma unroll
  for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
  return largest;
}

/// Weights of a tile, as parts, and what the state has to be multiplied by. Moves the state's max and sums.
template <class S>
__device__ __forceinline__ void weigh(float (&logits)[4], const float (&largest)[2], int column, WarpState<S>& state,
                                      float (&rescale)[2], std::uint32_t (&weights)[Numbers<S::kType>::kParts][2]) {
  using N = Numbers<S::kType>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const FoldScales scales = fold_scales(state.max[column][i], largest[i]);
    rescale[i] = scales.into;
    state.max[column][i] = scales.max;
    const float reference = scales.max == kNoLogit ? 0.0F : scales.max;
    logits[i] = exp_difference(logits[i], reference);
    logits[i + 2] = exp_difference(logits[i + 2], reference);
    state.sum[column][i] = fmaf(state.sum[column][i], scales.into, logits[i] + logits[i + 2]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t parts[N::kParts];
    mma16::split(parts, logits[2 * half] * N::kWeightScale, logits[2 * half + 1] * N::kWeightScale);
#pragma unroll
    for (int part = 0; part < N::kParts; ++part) weights[part][half] = mma16::transpose(parts[part]);
  }
}

/// Adds the weighted values of a tile.
template <class S>
__device__ __forceinline__ void add_values(const std::byte* tile, int lane, const float (&rescale)[S::kColumns][2],
                                           const std::uint32_t (&weights)[S::kColumns][Numbers<S::kType>::kParts][2],
                                           WarpState<S>& state) {
  using N = Numbers<S::kType>;
  const std::uint32_t values = N::template values_of_lane<S::kRowStride>(mma16::shared_address(tile) + S::kSideBytes, lane);
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    const auto fragment = N::template values<S::kRowStride>(values, step);
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      // A tile's sum joins the state rounded to nearest; tensor cores would cut it off.
      float sum[4] = {};
      N::multiply(sum, fragment, weights[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        state.out[column][step][i] = fmaf(state.out[column][step][i], rescale[column][i % 2], sum[i]);
      }
    }
  }
}

/// Adds a tile to the state.
template <class S>
__device__ __forceinline__ void add_tile(const AttendParams& params, int request, int first_head, int end_head,
                                         const std::byte* tile, int valid, const Queries<S>& queries, WarpState<S>& state,
                                         int lane) {
  TileProducts<S> products = {};
  multiply_keys<S>(tile, queries, lane, products);
  std::uint32_t weights[S::kColumns][Numbers<S::kType>::kParts][2];
  float rescale[S::kColumns][2];
#pragma unroll
  for (int column = 0; column < S::kColumns; ++column) {
    float logits[4];
    column_logits<S>(params, request, first_head, end_head, tile, valid, queries, lane, column, products, logits);
    const float largest[2] = {largest_of_head(logits[0], logits[2]), largest_of_head(logits[1], logits[3])};
    weigh<S>(logits, largest, column, state, rescale[column], weights[column]);
  }
  add_values<S>(tile, lane, rescale, weights, state);
}

/// Copies the rows of a tile; rows behind the `valid` first become zeros.
template <class S>
__device__ __forceinline__ void copy_rows(const TokenRows* rows, std::uint32_t tile, int valid, int lane) {
  constexpr int kChunks = S::kRowBytes / 16;
  constexpr int kCopies = (kTileTokens * kChunks + 31) / 32;  // of a lane
  constexpr bool kEven = kTileTokens * kChunks % 32 == 0;     // or else some lanes have one less
  // Written so that as much as can be is known to the compiler.
  const auto row_of = [lane](int i) {
    if constexpr (32 % kChunks == 0) return i * (32 / kChunks) + lane / kChunks;
    if constexpr (kChunks % 32 == 0) return i / (kChunks / 32);
    return kEven ? (32 * i + lane) / kChunks : min((32 * i + lane) / kChunks, kTileTokens - 1);
  };
  const auto chunk_of = [lane](int i) {
    if constexpr (32 % kChunks == 0) return lane % kChunks;
    if constexpr (kChunks % 32 == 0) return i % (kChunks / 32) * 32 + lane;
    return (32 * i + lane) % kChunks;
  };
  const auto load = [&](int row) { return *reinterpret_cast<const ulonglong2*>(rows + row); };
  const auto copy = [&](int i, const ulonglong2& pair, bool wanted) {
    if (!kEven && 32 * i + lane >= kTileTokens * kChunks) return;
    const std::uint32_t target = tile + row_of(i) * S::kRowStride + chunk_of(i) * 16;
    mma16::copy_async(target, reinterpret_cast<const std::byte*>(pair.x) + chunk_of(i) * 16, wanted);
    mma16::copy_async(target + S::kSideBytes, reinterpret_cast<const std::byte*>(pair.y) + chunk_of(i) * 16, wanted);
  };
  if (valid < kTileTokens) {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const bool wanted = row_of(i) < valid;
      copy(i, load(wanted ? row_of(i) : 0), wanted);
    }
    return;
  }
  // Addresses in batches: each switch from loads of shared memory to copies costs.
  constexpr int kBatch = S::kColumns == 1 ? 8 : 4;
#pragma unroll(kCopies <= 16 ? kCopies : 1)  // or else the many offsets, kept for the next tile, take too many registers
  for (int first = 0; first < kCopies; first += kBatch) {
    ulonglong2 pairs[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < kCopies) pairs[i] = load(row_of(first + i));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < kCopies) copy(first + i, pairs[i], true);
    }
  }
}

/// Copies a tile that is a page, whose tokens lie at equal distances.
static_assert(kTileTokens == kPageTokens);
template <class S>
__device__ __forceinline__ void copy_page(const AttendParams& params, const TokenRows& rows, std::uint32_t tile, int lane) {
  constexpr int kChunks = S::kRowBytes / 16;
  constexpr int kCopies = (kTileTokens * kChunks + 31) / 32;  // of a lane
  const std::byte* const key = rows.key;                      // here: what follows must be taken for writing to memory
  const std::byte* const value = rows.value;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int row = (32 * i + lane) / kChunks;
    if (kTileTokens * kChunks % 32 != 0 && row >= kTileTokens) continue;
    const int at = (32 * i + lane) % kChunks * 16;
    const std::uint32_t target = tile + row * S::kRowStride + at;
    mma16::copy_async(target, key + row * params.keys.token_stride + at, true);
    mma16::copy_async(target + S::kSideBytes, value + row * params.values.token_stride + at, true);
  }
}

}  // namespace locks::cuda::attend_stage
