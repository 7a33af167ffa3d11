// What the kernels of the stage are told. Plain data, for the door (C++) and the kernels (CUDA) alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "locks/page_summary.h"
#include "locks/summarize.h"
#include "locks/types.h"

struct CUstream_st;

namespace locks::cuda::summarize_stage {

inline constexpr int kRecordsPerBlock = 2;  // one a warp

/// Bit i is set if dimension i changes its sign in the rotation.
struct Signs {
  std::uint32_t negative[kMaxHeadDim / 32] = {};
};

/// A cache on the device.
struct CacheRows {
  const std::byte* data = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  const std::int32_t* page_slots = nullptr;
  unsigned pages_per_block = 1;
  DType dtype = DType::kF16;
  const float* scale = nullptr;  // of e4m3; null is 1
  bool aligned = false;          // every row begins at a multiple of 16 bytes
};

/// Where records of one kind are written.
struct RecordTarget {
  std::byte* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;
  int bytes = 0;
};

struct Args {
  CacheRows caches[2];                  // keys, values; data of the latter null: no value part
  const std::int32_t* pages = nullptr;  // [items / kv_heads] or null
  const std::int64_t* slots = nullptr;  // the same, if pages is null
  unsigned items = 0;
  std::int64_t num_pages = 0;  // in the caches and the store
  int kv_heads = 1;

  int format_id = 0;
  int rank = 0;
  bool rotated = false;
  bool basis_has_scales = false;
  bool refit = false;
  int coefficient_bits = 4;
  unsigned four_bit_quads = 0;  // bit q is set if quad q has 4 bits, not 2
  float step4 = 0.0F;           // basis_step of 4 and of 2 bits
  float step2 = 0.0F;
  RecordLayout at;
  ValueLayout value_at;
  int mean_at[2] = {};  // in the record and in the value record
  int mean_scale_at[2] = {};
  RecordTarget targets[2];
  Signs signs;
  SummarizeReport* report = nullptr;  // on the device, or null
};

/// Queues the kernel. Throws CudaError.
template <int kHeadDim>
void launch(const Args& args, CUstream_st* stream);

}  // namespace locks::cuda::summarize_stage
