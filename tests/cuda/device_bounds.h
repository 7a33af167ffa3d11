// Quest's bounds on the device for the tests.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "device_step.h"
#include "device_summaries.h"

namespace locks::test {

/// Bounds on the device, and their copy on the host after read().
class DeviceBounds {
 public:
  DeviceBounds(DType dtype, int head_dim, int kv_heads, std::int64_t num_pages)
      : memory_(std::make_unique<DeviceArray<std::byte>>(std::vector<std::byte>(
            static_cast<std::size_t>(cuda::bounds_bytes(dtype, head_dim, kv_heads, num_pages)), kUntouched))),
        view_(cuda::make_bounds(dtype, head_dim, kv_heads, num_pages, memory_->data())) {}
  [[nodiscard]] const cuda::PageBounds& view() const { return view_; }
  void read() { host_ = memory_->read(); }
  [[nodiscard]] const std::byte* row(std::int64_t page, int kv_head, int which) const {
    return host_.data() + page * view_.page_stride + kv_head * view_.head_stride +
           which * row_bytes(view_.dtype, view_.head_dim);
  }
  [[nodiscard]] bool is_untouched(std::int64_t page, int kv_head) const {
    return std::all_of(row(page, kv_head, 0), row(page, kv_head, 2), [](std::byte b) { return b == kUntouched; });
  }

 private:
  std::unique_ptr<DeviceArray<std::byte>> memory_;
  cuda::PageBounds view_;
  std::vector<std::byte> host_;
};

/// Bounds of all pages of a step's cache.
inline DeviceBounds bounds_of(const StepData& data, const DecodeInputs& on_device) {
  const auto& keys = data.keys.view();
  DeviceBounds bounds(keys.dtype, data.geometry.head_dim, data.geometry.kv_heads, keys.num_pages);
  std::vector<std::int32_t> pages(static_cast<std::size_t>(keys.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const DeviceArray<std::int32_t> listed(pages);
  cuda::bound_pages({data.geometry.head_dim, data.geometry.kv_heads, on_device.keys, listed.span(), bounds.view()}, nullptr);
  expect_cuda(cudaDeviceSynchronize());
  return bounds;
}

}  // namespace locks::test
