// What every kernel that reads records is told: where records, queries and tables lie. Plain data, for the doors (C++) and
// the kernels (CUDA) alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "locks/page_summary.h"
#include "locks/types.h"

namespace locks::cuda {

struct RecordShape {
  RecordLayout at;
  int head_dim = 0;
  float step4 = 0.0F;  // basis_step of 4 and of 2 bits
  float step2 = 0.0F;
};

constexpr int kPagesAtOnce = 8;  // that a warp copies and scores together

/// Up to here an index below 2^27 divides by a multiplication: its error stays below index * kMaxInverted / 2^32.
constexpr int kMaxInverted = 32;

/// A page table on the device.
struct DeviceTable {
  const std::int32_t* blocks = nullptr;
  std::int64_t request_stride = 0;
  std::int64_t block_stride = 0;
  int pages_per_block = 1;
  std::uint32_t inverse = 0;  // 2^32 / pages_per_block, rounded up; not for 1
};

/// One array of records: keys, or the value part. Strides in bytes.
struct RecordArray {
  const std::byte* data = nullptr;
  std::int64_t head_stride = 0;
  int page_stride = 0;
  int copied_bytes = 0;  // a record, rounded up to 16
};

/// The rotation of locks/rotation.h for one head_dim.
struct Rotation {
  std::uint32_t negative[kMaxHeadDim / 32] = {};  // bit i is set if dimension i changes its sign
  int first_block = 0;                            // dimensions; they and the rest are transformed apart
  int rest_block = 0;
  float first_scale = 0.0F;  // 1 / sqrt(block)
  float rest_scale = 0.0F;
};

struct QueryArgs {
  const float* data = nullptr;
  std::int64_t request_stride = 0;
  std::int64_t head_stride = 0;
  int query_heads = 0;
  int kv_heads = 0;
  float softmax_scale = 0.0F;
  Rotation rotation;
};

}  // namespace locks::cuda
