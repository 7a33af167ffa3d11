// Records on their way from the cache's order to shared memory: a warp copies eight pages at a time, some stages ahead of
// what it computes. Every warp has stages of its own, so warps never wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/args.h"
#include "cuda/ptx.cuh"
#include "cuda/rotation.cuh"

namespace locks::cuda {

/// Where a page of a request is: its block, as the table says, and its place in the block. Two numbers, so that a warp that
/// looks ahead does not wait for the table before it needs the page.
struct PagePlace {
  int block = 0;
  int in_block = 0;
};
__device__ __forceinline__ PagePlace place_of(const DeviceTable& table, int request, int index) {
  const int block = table.pages_per_block == 1 ? index
                    : table.pages_per_block <= kMaxInverted
                        ? static_cast<int>(__umulhi(static_cast<unsigned>(index), table.inverse))
                        : index / table.pages_per_block;
  return {table.blocks[request * table.request_stride + block * table.block_stride], index - block * table.pages_per_block};
}
/// Number in the cache.
__device__ __forceinline__ int page_number(const DeviceTable& table, const PagePlace& place) {
  return place.block * table.pages_per_block + place.in_block;
}

/// Copies the records of eight pages, that begin at `head` (of page 0 and a KV head), those of page i to
/// `slots + i * kSlotBytes`. Lane i (0..7) holds the number of page i.
template <int kSlotBytes>
__device__ __forceinline__ void copy_records(const RecordArray& records, const std::byte* head, int page, std::byte* slots,
                                             int lane) {
  const std::byte* const from = head + 16 * lane;
  std::byte* const to = slots + 16 * lane;
#pragma unroll
  for (int i = 0; i < kPagesAtOnce; ++i) {
    const std::int64_t offset = static_cast<std::int64_t>(__shfl_sync(kAllLanes, page, i)) * records.page_stride;
#pragma unroll
    for (int at = 0; at < kSlotBytes; at += 512) {
      ptx::copy_async(to + i * kSlotBytes + at, from + offset + at, at + 16 * lane < records.copied_bytes);
    }
  }
}

}  // namespace locks::cuda
