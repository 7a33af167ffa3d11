// Rows of a cache in the lanes of a warp: 16 or 32 lanes read a row, 8 dimensions each, and sum their products in halves.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/e4m3.cuh"
#include "locks/paged_cache.h"

namespace locks::cuda {

constexpr int kLaneDims = 8;
constexpr int kRowSums = 4;  // that sum_row() sums at once
constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

__device__ __forceinline__ float2 to_floats(__half2 pair) { return __half22float2(pair); }
__device__ __forceinline__ float2 to_floats(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }

/// Eight numbers of a row of the cache.
template <class Pair>
struct Numbers {
  uint4 packed;
  __device__ __forceinline__ void read(const std::byte* row, int lane) {
    packed = reinterpret_cast<const uint4*>(row)[lane];
  }
  __device__ __forceinline__ void unpack(float (&to)[kLaneDims]) const {
    const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = to_floats(*reinterpret_cast<const Pair*>(&words[i]));
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
};
template <>
struct Numbers<float> {
  float4 first, second;
  __device__ __forceinline__ void read(const std::byte* row, int lane) {
    first = reinterpret_cast<const float4*>(row)[2 * lane];
    second = reinterpret_cast<const float4*>(row)[2 * lane + 1];
  }
  __device__ __forceinline__ void unpack(float (&to)[kLaneDims]) const {
    const float all[kLaneDims] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) to[i] = all[i];
  }
};

struct E4M3;
template <>
struct Numbers<E4M3> {
  uint2 packed;
  __device__ __forceinline__ void read(const std::byte* row, int lane) {
    packed = reinterpret_cast<const uint2*>(row)[lane];
  }
  __device__ __forceinline__ void unpack(float (&to)[kLaneDims]) const {
    const std::uint32_t words[2] = {packed.x, packed.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t halves = e4m3_pair_to_f16(words[i / 2] >> 16 * (i % 2));
      const float2 pair = to_floats(*reinterpret_cast<const __half2*>(&halves));
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
};

/// A token of a request.
__device__ inline const std::byte* token_row(const PagedCache& cache, const PageTable& table, int request, int kv_head,
                                             int position) {
  const int in_table = position / table.block_tokens;
  const int in_block = position - in_table * table.block_tokens;
  const std::int64_t block = table.blocks(request, in_table);
  const std::byte* const head = cache.data + kv_head * cache.head_stride;
  if (cache.page_slots != nullptr) return head + cache.page_slots[block * kPageTokens + in_block] * cache.token_stride;
  return head + block * cache.block_stride + in_block * cache.token_stride;
}

/// Sums over the lanes of a row: of `kRowSums` sums each lane is left with sum `lane / (kRowLanes / kRowSums)`.
template <int kRowLanes>
__device__ __forceinline__ float sum_row(float (&sums)[kRowSums], int lane) {
#pragma unroll
  for (int left = kRowSums / 2, step = kRowLanes / 2; step > 0; left /= 2, step /= 2) {
    if (left == 0) {
      sums[0] += __shfl_xor_sync(kWholeWarp, sums[0], step);
      continue;
    }
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < kRowSums / 2; ++i) {
      if (i >= left) continue;
      const float mine = upper ? sums[left + i] : sums[i];
      const float other = upper ? sums[i] : sums[left + i];
      sums[i] = mine + __shfl_xor_sync(kWholeWarp, other, step);
    }
  }
  return sums[0];
}

}  // namespace locks::cuda
