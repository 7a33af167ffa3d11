// Rows of queries and outputs between float32 and the types of engines.
#pragma once

#include <cstdint>
#include <string>

#include "locks/cuda.h"

namespace locks::python {

/// [rows, heads, head_dim], elements of the last axis side by side; strides count elements.
struct HeadRows {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  const float* scale = nullptr;  // of e4m3, on the device, as in PagedCache
};
/// At least one row and head, head_dim a supported one, at most 65535 rows; types f32, f16, bf16 and e4m3, which takes 448
/// for what is larger.
void copy_rows(const HeadRows& from, const HeadRows& to, std::int64_t rows, std::int64_t heads, int head_dim,
               cuda::Stream stream);

/// Why the current device cannot run this module's kernels, which may have been compiled for others. Empty if it can.
std::string why_kernels_cannot_run();

}  // namespace locks::python
