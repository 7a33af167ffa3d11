// Caches and stores on the device for the tests that summarise there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "device.h"
#include "support/data.h"

namespace locks::test {

inline constexpr std::byte kUntouched{0xCD};

/// A copy of a cache on the device.
class DeviceCache {
 public:
  DeviceCache(const PagedCache& host, int kv_heads, int head_dim) : view_(host) {
    const std::byte* end = host.data;
    for (std::int64_t page = 0; page < host.num_pages; ++page) {
      for (int token = 0; token < kPageTokens; ++token) {
        end = std::max(end, host.token(page, token, kv_heads - 1) + row_bytes(host.dtype, head_dim));
      }
    }
    bytes_ = std::make_unique<DeviceArray<std::byte>>(std::span(host.data, end));
    view_.data = bytes_->data();
    if (host.scale != nullptr) {
      scale_ = std::make_unique<DeviceArray<float>>(std::span(host.scale, 1));
      view_.scale = scale_->data();
    }
    if (host.page_slots == nullptr) return;
    slots_ = std::make_unique<DeviceArray<std::int32_t>>(
        std::span(host.page_slots, static_cast<std::size_t>(host.num_pages * kPageTokens)));
    view_.page_slots = slots_->data();
  }
  [[nodiscard]] const PagedCache& view() const { return view_; }

 private:
  PagedCache view_;
  std::unique_ptr<DeviceArray<std::byte>> bytes_;
  std::unique_ptr<DeviceArray<std::int32_t>> slots_;
  std::unique_ptr<DeviceArray<float>> scale_;
};

struct Gaps {
  int record = 0;
  int page = 0;
};

/// A store on the device, and its copy on the host after read().
class DeviceStore {
 public:
  DeviceStore(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages, bool with_values,
              std::optional<Gaps> gaps = {})
      : num_pages_(num_pages) {
    store_ = cuda::make_store(format, head_dim, kv_heads, num_pages, with_values, nullptr);
    if (gaps) {
      store_.head_stride = record_layout(format, head_dim).record_bytes + gaps->record;
      store_.page_stride = store_.head_stride * kv_heads + gaps->page;
      store_.value_head_stride = value_layout(format, head_dim).record_bytes + gaps->record;
      store_.value_page_stride = store_.value_head_stride * kv_heads + gaps->page;
    }
    const auto bytes = [num_pages](std::int64_t stride) { return static_cast<std::size_t>(stride * num_pages); };
    host_.assign(bytes(store_.page_stride), kUntouched);
    device_ = std::make_unique<DeviceArray<std::byte>>(host_);
    if (!with_values) return;
    value_host_.assign(bytes(store_.value_page_stride), kUntouched);
    value_device_ = std::make_unique<DeviceArray<std::byte>>(value_host_);
  }
  [[nodiscard]] SummaryStore on_device() const {
    SummaryStore store = store_;
    store.data = device_->data();
    store.value_data = value_device_ ? value_device_->data() : nullptr;
    return store;
  }
  SummaryStore read() {
    host_ = device_->read();
    if (value_device_) value_host_ = value_device_->read();
    SummaryStore store = store_;
    store.data = host_.data();
    store.value_data = value_device_ ? value_host_.data() : nullptr;
    return store;
  }
  void wipe() {
    std::fill(host_.begin(), host_.end(), kUntouched);
    std::fill(value_host_.begin(), value_host_.end(), kUntouched);
    device_->write(host_);
    if (value_device_) value_device_->write(value_host_);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return host_; }
  [[nodiscard]] const std::vector<std::byte>& value_bytes() const { return value_host_; }

 private:
  std::int64_t num_pages_;
  SummaryStore store_;
  std::vector<std::byte> host_, value_host_;
  std::unique_ptr<DeviceArray<std::byte>> device_, value_device_;
};

/// Caches and a store on the device, and the call that fills it.
class DeviceSummaries {
 public:
  DeviceSummaries(const SummaryFormat& format, int head_dim, int kv_heads, const CacheData& keys, const CacheData* values,
                  std::optional<Gaps> gaps = {})
      : keys_(keys.view(), kv_heads, head_dim),
        store_(format, head_dim, kv_heads, keys.view().num_pages, values != nullptr, gaps),
        report_(std::vector<SummarizeReport>(1)) {
    if (values != nullptr) values_.emplace(values->view(), kv_heads, head_dim);
    args_ = {.head_dim = head_dim,
             .kv_heads = kv_heads,
             .keys = keys_.view(),
             .values = values_ ? &values_->view() : nullptr,
             .pages = {},
             .out = store_.on_device()};
  }
  void summarize(const std::vector<std::int32_t>& pages) {
    const DeviceArray<std::int32_t> on_device(pages);
    args_.pages = on_device.span();
    cuda::summarize(args_, report_.data(), nullptr);
    expect_cuda(cudaDeviceSynchronize());
  }
  void summarize_all() {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(args_.keys.num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    summarize(pages);
  }
  [[nodiscard]] SummarizeReport report() const { return report_.read()[0]; }
  [[nodiscard]] SummarizeReport* device_report() const { return report_.data(); }
  [[nodiscard]] const SummarizeArgs& args() const { return args_; }
  [[nodiscard]] DeviceStore& store() { return store_; }

 private:
  DeviceCache keys_;
  std::optional<DeviceCache> values_;
  DeviceStore store_;
  DeviceArray<SummarizeReport> report_;
  SummarizeArgs args_;
};

}  // namespace locks::test
