// Checks that the doors of the GPU stages share, and the arguments of the kernels made of the callers'. Lengths and tables
// lie on the device: what they hold is not checked.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpu/check.h"
#include "cuda/args.h"
#include "locks/paged_cache.h"
#include "locks/rotation.h"
#include "locks/view.h"

namespace locks::cuda::door {

inline constexpr int kRecordAlignment = 16;

inline void require(bool fits, std::string_view argument, const std::string& expected, const std::string& got) {
  if (!fits) check::fail(argument, expected, got);
}

template <class T>
void data(std::string_view argument, const T* pointer) {
  require(pointer != nullptr, argument, "device memory", "a null pointer");
}

/// Records must start at multiples of 16 bytes, page strides fit 31 bits.
inline RecordArray record_array(const std::string& argument, const std::byte* data, std::int64_t page_stride,
                                std::int64_t head_stride, int kv_heads, int record_bytes) {
  const auto aligned = [&](const std::string& what, std::int64_t value) {
    require(value % kRecordAlignment == 0, what, "a multiple of 16 bytes (see cuda::make_store)", std::to_string(value));
  };
  door::data(argument, data);
  require(reinterpret_cast<std::uintptr_t>(data) % kRecordAlignment == 0, argument, "memory aligned to 16 bytes",
          "an address that is not");
  aligned(argument + ".page_stride", page_stride);
  if (kv_heads > 1) aligned(argument + ".head_stride", head_stride);
  require(page_stride >= 0 && page_stride < std::int64_t{1} << 31, argument + ".page_stride", "0 to 2^31 - 16 bytes",
          std::to_string(page_stride));
  const int copied = (record_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  require(kv_heads == 1 || head_stride >= copied, argument + ".head_stride",
          "at least " + std::to_string(copied) + " bytes (a record, rounded up to 16)", std::to_string(head_stride));
  return {data, head_stride, static_cast<int>(page_stride), copied};
}

inline RecordArray key_records(const SummaryStore& store, const Geometry& geometry) {
  check::store("summaries", store, geometry.head_dim, geometry.kv_heads);
  return record_array("summaries", store.data, store.page_stride, store.head_stride, geometry.kv_heads,
                      record_layout(*store.format, geometry.head_dim).record_bytes);
}
inline RecordArray value_records(const SummaryStore& store, const Geometry& geometry) {
  return record_array("summaries.value_data", store.value_data, store.value_page_stride, store.value_head_stride,
                      geometry.kv_heads, value_layout(*store.format, geometry.head_dim).record_bytes);
}

inline RecordShape record_shape(const SummaryFormat& format, int head_dim) noexcept {
  return {record_layout(format, head_dim), head_dim, basis_step(4, head_dim), basis_step(2, head_dim)};
}

inline DeviceTable table(const PageTable& table) {
  const std::int64_t requests = table.num_requests();
  require(table.block_tokens >= kPageTokens && table.block_tokens % kPageTokens == 0, "table.block_tokens",
          "a multiple of 16", std::to_string(table.block_tokens));
  require(table.blocks.shape[0] >= requests, "table.blocks", std::to_string(requests) + " rows (one per context length)",
          std::to_string(table.blocks.shape[0]));
  if (requests > 0) {
    data("table.blocks", table.blocks.data);
    data("table.context_tokens", table.context_tokens.data());
  }
  const int pages = table.block_tokens / kPageTokens;
  const auto inverse = static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + static_cast<unsigned>(pages) - 1) /
                                                  static_cast<unsigned>(pages));
  return {table.blocks.data, table.blocks.stride[0], table.blocks.stride[1], pages, inverse};
}

inline Rotation rotation(int head_dim) noexcept {
  Rotation out;
  for (int dim = 0; dim < kMaxHeadDim; ++dim) {
    if (rotation_sign(dim) < 0.0F) out.negative[dim / 32] |= 1U << dim % 32;
  }
  out.first_block = static_cast<int>(std::bit_floor(static_cast<unsigned>(head_dim)));
  out.rest_block = head_dim - out.first_block;
  out.first_scale = 1.0F / std::sqrt(static_cast<float>(out.first_block));
  out.rest_scale = out.rest_block > 0 ? 1.0F / std::sqrt(static_cast<float>(out.rest_block)) : 0.0F;
  return out;
}

inline QueryArgs queries(const View<const float, 3>& queries, const Geometry& geometry, std::int64_t requests) {
  check::view("queries", queries, {-1, geometry.query_heads, geometry.head_dim}, "[requests, query_heads, head_dim]");
  require(queries.shape[0] >= requests, "queries", std::to_string(requests) + " requests", std::to_string(queries.shape[0]));
  return {queries.data,      queries.stride[0],      queries.stride[1],          geometry.query_heads,
          geometry.kv_heads, geometry.softmax_scale, rotation(geometry.head_dim)};
}

/// Lists are shared by the query heads of a KV head, or each head has its own.
inline void lists(int num_lists, const Geometry& geometry) {
  require(num_lists == geometry.kv_heads || num_lists == geometry.query_heads, "num_lists",
          std::to_string(geometry.kv_heads) + " (kv_heads) or " + std::to_string(geometry.query_heads) + " (query_heads)",
          std::to_string(num_lists));
}

/// A view of what lies on the device: at least these extents, the last axis contiguous.
template <class T, int N>
void at_least(const std::string& argument, const View<T, N>& view, const std::array<std::int64_t, N>& extents) {
  data(argument, view.data);
  for (int axis = 0; axis < N; ++axis) {
    require(view.shape[axis] >= extents[axis], argument + ".shape[" + std::to_string(axis) + "]",
            "at least " + std::to_string(extents[axis]), std::to_string(view.shape[axis]));
  }
  require(view.stride[N - 1] == 1, argument, "a contiguous last axis", "stride " + std::to_string(view.stride[N - 1]));
}

}  // namespace locks::cuda::door
