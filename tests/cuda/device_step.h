// A decode step on the device, and how far its output is from another.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "device.h"
#include "locks/cuda_selectors.h"
#include "support/step.h"

namespace locks::test {

/// A step's inputs on the device.
class DeviceStep {
 public:
  explicit DeviceStep(const StepData& data)
      : requests_(data.table.table.num_requests()),
        geometry_(data.geometry),
        keys_(data.keys.bytes()),
        values_(data.values.bytes()),
        key_slots_(data.keys.slots()),
        value_slots_(data.values.slots()),
        key_scale_(data.keys.scale()),
        value_scale_(data.values.scale()),
        blocks_(data.table.blocks),
        queries_(data.queries),
        contexts_(data.table.context_tokens),
        out_(data.queries.size()),
        reports_(static_cast<std::size_t>(requests_)) {
    inputs = data.inputs();
    inputs.queries.data = queries_.data();
    inputs.keys.data = keys_.data();
    inputs.values.data = values_.data();
    if (inputs.keys.page_slots != nullptr) inputs.keys.page_slots = key_slots_.data();
    if (inputs.values.page_slots != nullptr) inputs.values.page_slots = value_slots_.data();
    if (inputs.keys.scale != nullptr) inputs.keys.scale = key_scale_.data();
    if (inputs.values.scale != nullptr) inputs.values.scale = value_scale_.data();
    inputs.table.blocks.data = blocks_.data();
    inputs.table.context_tokens = contexts_.span();
    // The CPU's records, with the GPU's strides.
    const SummaryStore& from = data.summaries;
    const std::int64_t bytes =
        cuda::summary_bytes(*from.format, from.head_dim, geometry_.kv_heads, from.num_pages, from.value_data != nullptr);
    std::vector<std::byte> host(static_cast<std::size_t>(bytes));
    SummaryStore to = cuda::make_store(*from.format, from.head_dim, geometry_.kv_heads, from.num_pages,
                                       from.value_data != nullptr, host.data());
    for (std::int64_t page = 0; page < from.num_pages; ++page) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        std::copy_n(from.record(page, head), record_layout(*from.format, from.head_dim).record_bytes, to.record(page, head));
        if (from.value_data == nullptr) continue;
        std::copy_n(from.value_record(page, head), value_layout(*from.format, from.head_dim).record_bytes,
                    to.value_record(page, head));
      }
    }
    records_ = std::make_unique<DeviceArray<std::byte>>(host);
    inputs.summaries = cuda::make_store(*from.format, from.head_dim, geometry_.kv_heads, from.num_pages,
                                        from.value_data != nullptr, records_->data());
  }

  void set_lengths(const std::vector<std::int32_t>& lengths) { contexts_.write(lengths); }

  void queue(const DecodePlan& plan, cuda::Stream stream = nullptr) {
    cuda::run(plan, inputs, out_view(), reports_.span(), workspace(cuda::decode_workspace_bytes(plan)), stream);
  }
  void queue(const cuda::SelectorPlan& plan, const cuda::PageBounds& bounds, cuda::Stream stream = nullptr) {
    cuda::run(plan, inputs, bounds, out_view(), reports_.span(), workspace(cuda::decode_workspace_bytes(plan)), stream);
  }
  [[nodiscard]] std::vector<float> out() const { return out_.read(); }
  [[nodiscard]] std::vector<DecodeReport> reports() const { return reports_.read(); }

  [[nodiscard]] View<float, 3> out_view() const {
    return contiguous(out_.data(), requests_, geometry_.query_heads, geometry_.head_dim);
  }

  DecodeInputs inputs;

 private:
  /// That of the first call.
  [[nodiscard]] std::span<std::byte> workspace(std::size_t bytes) {
    if (!workspace_) workspace_ = std::make_unique<DeviceArray<std::byte>>(bytes);
    return workspace_->span();
  }

  int requests_;
  Geometry geometry_;
  DeviceArray<std::byte> keys_, values_;
  DeviceArray<std::int32_t> key_slots_, value_slots_;
  DeviceArray<float> key_scale_, value_scale_;
  DeviceArray<std::int32_t> blocks_;
  DeviceArray<float> queries_;
  DeviceArray<std::int32_t> contexts_;
  DeviceArray<float> out_;
  DeviceArray<DecodeReport> reports_;
  std::unique_ptr<DeviceArray<std::byte>> records_, workspace_;
};

/// Relative error of each query head's output.
inline std::vector<double> errors(const StepData& data, const std::vector<float>& got, const std::vector<float>& want) {
  const auto dim = static_cast<std::size_t>(data.geometry.head_dim);
  std::vector<double> all;
  for (std::size_t row = 0; row * dim < got.size(); ++row) {
    double difference = 0.0;
    double size = 0.0;
    for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
      difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
      size += std::pow(static_cast<double>(want[i]), 2);
    }
    EXPECT_FALSE(std::isnan(difference)) << "row " << row;
    all.push_back(size > 0.0 ? std::sqrt(difference / size) : std::sqrt(difference));
  }
  return all;
}

}  // namespace locks::test
