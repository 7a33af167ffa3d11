// Random records for the tests of the GPU's stages, on the host and on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cpu/half.h"
#include "device.h"
#include "support/data.h"

namespace locks::test {

/// Records of random codes with moderate scales, value parts included. Strides are multiples of 16 bytes with `gap` bytes
/// more than needed; the bytes between records are 0xFF.
class RandomRecords {
 public:
  RandomRecords(const SummaryFormat& format, int head_dim, int kv_heads, int num_pages, int gap, std::uint64_t seed,
                float coefficient_scale = 0.3F)
      : at_(record_layout(format, head_dim)), values_at_(value_layout(format, head_dim)), random_(seed) {
    host_.format = &format;
    host_.head_dim = head_dim;
    host_.num_pages = num_pages;
    host_.head_stride = aligned(at_.record_bytes) + gap;
    host_.page_stride = host_.head_stride * kv_heads + 3 * gap;
    host_.value_head_stride = aligned(values_at_.record_bytes) + gap;
    host_.value_page_stride = host_.value_head_stride * kv_heads + 5 * gap;
    bytes_.assign(static_cast<std::size_t>(num_pages * (host_.page_stride + host_.value_page_stride)), std::byte{0xFF});
    host_.data = bytes_.data();
    host_.value_data = bytes_.data() + num_pages * host_.page_stride;
    for (int page = 0; page < num_pages; ++page) {
      for (int head = 0; head < kv_heads; ++head) {
        fill_record(host_.record(page, head), coefficient_scale);
        fill_values(host_.value_record(page, head));
      }
    }
  }
  [[nodiscard]] const SummaryStore& host() const { return host_; }
  /// The same on the device; what was changed on the host since is copied.
  [[nodiscard]] SummaryStore device() {
    if (device_ == nullptr) device_ = std::make_unique<DeviceArray<std::byte>>(bytes_.size());
    device_->write(bytes_);
    SummaryStore store = host_;
    store.data = device_->data();
    store.value_data = device_->data() + host_.num_pages * host_.page_stride;
    return store;
  }
  [[nodiscard]] const RecordLayout& layout() const { return at_; }
  [[nodiscard]] const ValueLayout& value_layout_of() const { return values_at_; }
  void flag(int page, int head) { host_.record(page, head)[at_.flags_at] = std::byte{kFlagAlwaysAttend}; }

 private:
  static std::int64_t aligned(int bytes) { return (bytes + 15) / 16 * 16; }
  void fill(std::byte* record, int bytes) {
    for (int i = 0; i < bytes; ++i) record[i] = static_cast<std::byte>(random_());
  }
  void scales(std::byte* record, int at, int count, float scale) {
    std::uniform_real_distribution<float> factor(0.5F, 1.5F);
    for (int i = 0; i < count; ++i) store_u16(record + at + 2 * i, float_to_bf16(scale * factor(random_)));
  }
  void fill_record(std::byte* record, float coefficient_scale) {
    const SummaryFormat& format = *host_.format;
    fill(record, at_.record_bytes);
    clear_padding(record);
    if (format.basis_has_scales) scales(record, at_.basis_scales_at, format.rank, 0.05F);
    const bool token_scales = format.coefficient_bits == 8;
    scales(record, at_.coefficient_scales_at, token_scales ? kPageTokens : format.rank,
           token_scales ? coefficient_scale / 16.0F : coefficient_scale);
    scales(record, at_.mean_scale_at, 1, 0.02F);
    scales(record, at_.residual_at, 1, 0.1F);
    record[at_.format_at] = static_cast<std::byte>(format.id);
    record[at_.flags_at] = std::byte{0};
  }
  void fill_values(std::byte* record) {
    fill(record, values_at_.record_bytes);
    scales(record, values_at_.slope_scales_at, host_.format->rank, 0.2F);
    scales(record, values_at_.mean_scale_at, 1, 0.01F);
  }
  void clear_padding(std::byte* record) const {
    for (int quad = 0; quad < host_.format->num_quads(); ++quad) {
      const int bits = host_.format->quad_bits[quad];
      const int parts = 8 / bits;
      for (int dim = host_.head_dim; dim < quad_bytes(bits, host_.head_dim) / 32 * 8 * parts; ++dim) {
        for (int rank = 0; rank < 4; ++rank) {
          std::byte& byte = record[at_.quad_at[quad] + dim / (8 * parts) * 32 + rank * 8 + dim % 8];
          byte &= ~static_cast<std::byte>(((1 << bits) - 1) << (dim / 8 % parts * bits));
        }
      }
    }
  }

  RecordLayout at_;
  ValueLayout values_at_;
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
  SummaryStore host_;
  std::unique_ptr<DeviceArray<std::byte>> device_;
};

/// A page table on the device.
class TableOnDevice {
 public:
  explicit TableOnDevice(const PageTable& host, const std::vector<std::int32_t>& blocks)
      : blocks_(blocks), lengths_(std::span(host.context_tokens.data(), host.context_tokens.size())), table_(host) {
    table_.blocks.data = blocks_.data() + (host.blocks.data - blocks.data());
    table_.context_tokens = lengths_.span();
  }
  explicit TableOnDevice(const TableData& host) : TableOnDevice(host.table, host.blocks) {}
  [[nodiscard]] const PageTable& table() const { return table_; }
  void set_lengths(const std::vector<std::int32_t>& lengths) { lengths_.write(lengths); }

 private:
  DeviceArray<std::int32_t> blocks_;
  DeviceArray<std::int32_t> lengths_;
  PageTable table_;
};

}  // namespace locks::test
