// Query heads in shared memory, quantised by the rule of locks/score.h to the CPU's integers.
#pragma once

#include <cstdint>

#include "cuda/rotation.cuh"

namespace locks::cuda {

/// `kUnits` units of 64 dimensions; what is past head_dim is zero, and so are heads that do not exist. q16 is high * 256 +
/// low. Rows end with 16 bytes of padding, so that the lanes of a load spread over the banks.
template <int kUnits, int kHeads>
struct alignas(16) SharedQueries {
  static constexpr int kRowBytes = 64 * kUnits + 16;
  std::int8_t q8[kHeads][kRowBytes];
  std::int8_t high[kHeads][kRowBytes];
  std::uint8_t low[kHeads][kRowBytes];
  float scale8[kHeads];
  float scale16[kHeads];
  std::int32_t sum8[kHeads];
};

/// One head as a warp holds it: dimension 32 k + lane is x[k].
template <int kUnits>
struct QueryWords {
  float x[2 * kUnits];
  __device__ __forceinline__ QueryWords(const float* query, bool exists, int head_dim, int lane) {
#pragma unroll
    for (int k = 0; k < 2 * kUnits; ++k) x[k] = exists && 32 * k + lane < head_dim ? query[32 * k + lane] : 0.0F;
  }
};

/// Quantises one head. A whole warp calls.
template <int kUnits, int kHeads>
__device__ __forceinline__ void quantise_head(QueryWords<kUnits> words, int head_dim, bool rotated, const Rotation& rotation,
                                              int head, int lane, SharedQueries<kUnits, kHeads>& out) {
  constexpr int kWords = 2 * kUnits;
  auto& x = words.x;
  if (rotated) {
    change_signs(x, rotation, lane);
    hadamard(x, rotation, lane);
  }
  float largest = 0.0F;
  bool finite = true;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    if (32 * k + lane >= head_dim) x[k] = 0.0F;
    largest = fmaxf(largest, fabsf(x[k]));
    finite = finite && fabsf(x[k]) <= 3.402823466e38F;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  if (__all_sync(kAllLanes, finite) == 0) largest = __int_as_float(0x7F800000);
  const float to8 = __fdiv_rn(127.0F, largest);
  const float to16 = __fdiv_rn(32767.0F, largest);
  const bool usable = to16 > 0.0F && to16 <= 3.402823466e38F;
  int sum = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int code8 = usable ? __float2int_rn(__fmul_rn(x[k], to8)) : 0;
    const int code16 = usable ? __float2int_rn(__fmul_rn(x[k], to16)) : 0;
    sum += code8;
    out.q8[head][32 * k + lane] = static_cast<std::int8_t>(code8);
    out.high[head][32 * k + lane] = static_cast<std::int8_t>(code16 >> 8);
    out.low[head][32 * k + lane] = static_cast<std::uint8_t>(code16);
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  if (lane == 0) {
    out.scale8[head] = usable ? __fdiv_rn(largest, 127.0F) : 0.0F;
    out.scale16[head] = usable ? __fdiv_rn(largest, 32767.0F) : 0.0F;
    out.sum8[head] = sum;
  }
}

/// The heads of a CTA, one a warp at a time. Made before other work, which then overlaps the reading of the first ones.
template <int kUnits, int kHeads>
class HeadsOfCta {
 public:
  __device__ __forceinline__ HeadsOfCta(const QueryArgs& args, int request, int first_head, int head_count, int head_dim)
      : args_(args),
        data_(args.data + request * args.request_stride + first_head * args.head_stride),
        head_count_(head_count),
        head_dim_(head_dim),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        first_(words_of(warp_)) {}

  __device__ __forceinline__ void quantise(bool rotated, SharedQueries<kUnits, kHeads>& out) const {
    if (warp_ < kHeads) quantise_head(first_, head_dim_, rotated, args_.rotation, warp_, lane_, out);
    for (int head = warp_ + static_cast<int>(blockDim.x) / 32; head < kHeads; head += static_cast<int>(blockDim.x) / 32) {
      quantise_head(words_of(head), head_dim_, rotated, args_.rotation, head, lane_, out);
    }
  }

 private:
  [[nodiscard]] __device__ __forceinline__ QueryWords<kUnits> words_of(int head) const {
    return {data_ + head * args_.head_stride, head < head_count_, head_dim_, lane_};
  }
  const QueryArgs& args_;
  const float* data_;
  int head_count_, head_dim_, lane_, warp_;
  QueryWords<kUnits> first_;
};

}  // namespace locks::cuda
