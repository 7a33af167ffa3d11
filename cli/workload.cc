#include "workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cpu/half.h"

namespace locks::cli {
namespace {

void store_values(DType dtype, std::span<const float> values, std::byte* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return;
    case DType::kF16:
    case DType::kBF16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        store_u16(out + 2 * i, dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]));
      }
      return;
    case DType::kQ8_0:
      for (std::size_t first = 0; first < values.size(); first += kQ8BlockElements, out += kQ8BlockBytes) {
        store_u16(out, float_to_f16(4.0F / 127.0F));
        for (int i = 0; i < kQ8BlockElements; ++i) {
          const float code = std::clamp(values[first + i] * 127.0F / 4.0F, -127.0F, 127.0F);
          out[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::lround(code)));
        }
      }
      return;
    case DType::kE4M3:
      return;  // the CPU has none
  }
}

}  // namespace

Geometry make_geometry(int head_dim, int kv_heads, int group_size) {
  return {head_dim, kv_heads, kv_heads * group_size, 1.0F / std::sqrt(static_cast<float>(head_dim))};
}

std::vector<float> normal_floats(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::int64_t whole_periods(std::int64_t pages) noexcept {
  return (pages + MadeCache::kPeriodPages - 1) / MadeCache::kPeriodPages * MadeCache::kPeriodPages;
}

MadeCache::MadeCache(const Shape& shape, std::int64_t pages) : shape_(shape), pages_(whole_periods(pages)) {
  const Geometry& geometry = shape.geometry;
  const std::int64_t page_bytes = kPageTokens * geometry.kv_heads * row_bytes(shape.dtype, geometry.head_dim);
  const auto period_values = static_cast<std::size_t>(kPeriodPages) * kPageTokens * geometry.kv_heads * geometry.head_dim;
  std::uint64_t seed = 1;
  for (Memory* memory : {&keys_, &values_}) {
    *memory = Memory(static_cast<std::size_t>(page_bytes * pages_));
    store_values(shape.dtype, normal_floats(period_values, seed++), memory->data());
    repeat(memory->span(), static_cast<std::size_t>(page_bytes) * kPeriodPages);
  }
}

PagedCache MadeCache::view(const Memory& memory, std::int64_t first_page, std::int64_t pages) const noexcept {
  PagedCache cache;
  cache.dtype = shape_.dtype;
  cache.num_pages = pages;
  cache.head_stride = row_bytes(shape_.dtype, shape_.geometry.head_dim);
  cache.token_stride = cache.head_stride * shape_.geometry.kv_heads;
  cache.block_stride = cache.token_stride * kPageTokens;
  cache.data = memory.data() + first_page * cache.block_stride;
  return cache;
}

MadeSummaries::MadeSummaries(const Shape& shape, const SummaryFormat& format, std::int64_t pages, bool with_values) {
  const Geometry& geometry = shape.geometry;
  pages = whole_periods(pages);
  const std::int64_t record_bytes = summary_bytes(format, geometry.head_dim, geometry.kv_heads, pages, false);
  records_ = Memory(static_cast<std::size_t>(record_bytes));
  store_ = make_store(format, geometry.head_dim, geometry.kv_heads, pages, false, records_.data());
  if (with_values) {
    store_.value_head_stride = value_layout(format, geometry.head_dim).record_bytes;
    store_.value_page_stride = store_.value_head_stride * geometry.kv_heads;
    values_ = Memory(static_cast<std::size_t>(store_.value_page_stride * pages));
    store_.value_data = values_.data();
  }
  const MadeCache cache(shape, MadeCache::kPeriodPages);
  const PagedCache values = cache.values(0, cache.pages());
  std::vector<std::int32_t> period(MadeCache::kPeriodPages);
  std::iota(period.begin(), period.end(), 0);
  summarize(
      {geometry.head_dim, geometry.kv_heads, cache.keys(0, cache.pages()), with_values ? &values : nullptr, period, store_},
      Team{}, active_target());
  repeat(records_.span(), static_cast<std::size_t>(store_.page_stride) * MadeCache::kPeriodPages);
  if (with_values) repeat(values_.span(), static_cast<std::size_t>(store_.value_page_stride) * MadeCache::kPeriodPages);
}

SummaryStore MadeSummaries::store(std::int64_t first_page, std::int64_t pages) const noexcept {
  SummaryStore part = store_;
  part.num_pages = pages;
  part.data += first_page * part.page_stride;
  if (part.value_data != nullptr) part.value_data += first_page * part.value_page_stride;
  return part;
}

MadeTable::MadeTable(int context_tokens)
    : blocks_(static_cast<std::size_t>((context_tokens + kPageTokens - 1) / kPageTokens)), context_tokens_{context_tokens} {
  std::iota(blocks_.begin(), blocks_.end(), 0);
  table_.blocks = contiguous<const std::int32_t>(blocks_.data(), 1, blocks_.size());
  table_.context_tokens = context_tokens_;
}

}  // namespace locks::cli
