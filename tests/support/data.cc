#include "support/data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/element.h"
#include "cpu/half.h"

namespace locks::test {
namespace {

void store_row(DType dtype, float scale, std::byte* row, std::span<const float> values) {
  if (dtype == DType::kQ8_0) {
    for (std::size_t first = 0; first < values.size(); first += kQ8BlockElements) {
      const auto block = values.subspan(first, kQ8BlockElements);
      float largest = 0.0F;
      for (const float value : block) largest = std::max(largest, std::abs(value));
      std::byte* out = row + first / kQ8BlockElements * kQ8BlockBytes;
      store_u16(out, float_to_f16(largest / 127.0F));
      for (int i = 0; i < kQ8BlockElements; ++i) {
        out[2 + i] =
            static_cast<std::byte>(static_cast<std::int8_t>(largest > 0 ? std::lround(block[i] * 127.0F / largest) : 0));
      }
    }
    return;
  }
  for (std::size_t dim = 0; dim < values.size(); ++dim) {
    if (dtype == DType::kF32) std::memcpy(row + 4 * dim, &values[dim], 4);
    if (dtype == DType::kF16) store_u16(row + 2 * dim, float_to_f16(values[dim]));
    if (dtype == DType::kBF16) store_u16(row + 2 * dim, float_to_bf16(values[dim]));
    if (dtype == DType::kE4M3) row[dim] = static_cast<std::byte>(float_to_e4m3(values[dim] / scale));
  }
}

void fill_page(Content content, bool narrow, int head_dim, std::mt19937_64& random, std::vector<std::vector<float>>& keys) {
  std::normal_distribution<float> normal;
  keys.assign(kPageTokens, std::vector<float>(head_dim));
  for (auto& key : keys) {
    for (float& value : key) value = normal(random);
  }
  if (content == Content::kLowRank) {
    std::vector<float> mean(head_dim);
    for (float& value : mean) value = 2.0F * normal(random);
    std::vector<std::vector<float>> directions(4, std::vector<float>(head_dim));
    for (auto& direction : directions) {
      for (float& value : direction) value = normal(random);
    }
    for (auto& key : keys) {
      for (float& value : key) value *= 0.2F;
      for (int rank = 0; rank < 4; ++rank) {
        const float weight = normal(random) * 1.5F / static_cast<float>(rank + 1);
        for (int dim = 0; dim < head_dim; ++dim) key[dim] += weight * directions[rank][dim];
      }
      for (int dim = 0; dim < head_dim; ++dim) key[dim] += mean[dim];
    }
  }
  if (content == Content::kConstant) std::fill(keys.begin() + 1, keys.end(), keys[0]);
  for (auto& key : keys) {
    for (float& value : key) {
      if (content == Content::kZero) value = 0.0F;
      if (content == Content::kHuge) value *= narrow ? 1e4F : 1e18F;
      if (content == Content::kDenormal) value *= narrow ? 1e-7F : 1e-40F;
    }
  }
  if (content == Content::kOneOutlier) {
    for (float& value : keys[random() % kPageTokens]) value *= narrow ? 16.0F : 1000.0F;
  }
}

}  // namespace

std::vector<Target> simd_targets() {
  const auto targets = supported_targets();
  return {targets.begin() + 1, targets.end()};
}

CacheData::CacheData(DType dtype, Layout layout, int num_pages, int kv_heads, int head_dim, int block_tokens,
                     Content content, std::uint64_t seed)
    : head_dim_(head_dim) {
  const std::int64_t row = row_bytes(dtype, head_dim);
  const std::int64_t gap = layout == Layout::kGaps ? 6 : 0;
  view_.dtype = dtype;
  view_.num_pages = num_pages;
  view_.block_tokens = block_tokens;
  const std::int64_t tokens = std::int64_t{num_pages} * kPageTokens;
  if (layout == Layout::kHeadMajor) {
    view_.token_stride = row;
    view_.head_stride = row * block_tokens;
    view_.block_stride = view_.head_stride * kv_heads;
  } else {
    view_.head_stride = row + gap;
    view_.token_stride = view_.head_stride * kv_heads + gap;
    view_.block_stride = view_.token_stride * block_tokens + 5 * gap;
  }
  const std::int64_t blocks = num_pages / (block_tokens / kPageTokens);
  bytes_.assign(static_cast<std::size_t>(std::max(view_.block_stride * blocks, view_.token_stride * tokens)), std::byte{0});
  view_.data = bytes_.data();
  std::mt19937_64 random(seed);
  if (layout == Layout::kScattered) {
    slots_.resize(static_cast<std::size_t>(tokens));
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), random);
    view_.page_slots = slots_.data();
    view_.num_slots = tokens;
  }
  if (dtype == DType::kE4M3) {
    scale_.push_back(0.05F + 0.03F * static_cast<float>(seed % 3));
    view_.scale = scale_.data();
  }
  const bool narrow = dtype == DType::kF16 || dtype == DType::kQ8_0 || dtype == DType::kE4M3;
  std::vector<std::vector<float>> keys;
  for (int page = 0; page < num_pages; ++page) {
    for (int head = 0; head < kv_heads; ++head) {
      fill_page(content, narrow, head_dim, random, keys);
      for (int token = 0; token < kPageTokens; ++token) {
        store_row(dtype, static_cast<float>(scale_of(view_)), const_cast<std::byte*>(view_.token(page, token, head)),
                  keys[token]);
      }
    }
  }
}

float CacheData::value(std::int64_t page, int token, int head, int dim) const {
  return static_cast<float>(row_element(view_.dtype, view_.token(page, token, head), dim) * scale_of(view_));
}

void CacheData::set_value(std::int64_t page, int token, int head, int dim, float new_value) {
  std::vector<float> row(head_dim_);
  for (int i = 0; i < head_dim_; ++i) row[i] = i == dim ? new_value : value(page, token, head, i);
  store_row(view_.dtype, static_cast<float>(scale_of(view_)), const_cast<std::byte*>(view_.token(page, token, head)), row);
}

TableData::TableData(std::vector<std::int32_t> lengths, std::int64_t num_pages, int block_tokens, std::uint64_t seed)
    : context_tokens(std::move(lengths)) {
  const auto num_blocks = num_pages / (block_tokens / kPageTokens);
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::int64_t longest = 0;
  for (const std::int32_t tokens : context_tokens)
    longest = std::max<std::int64_t>(longest, (tokens + block_tokens - 1) / block_tokens);
  blocks.assign(context_tokens.size() * static_cast<std::size_t>(longest), -1);
  std::size_t next = 0;
  for (std::size_t request = 0; request < context_tokens.size(); ++request) {
    const int needed = (context_tokens[request] + block_tokens - 1) / block_tokens;
    for (int i = 0; i < needed; ++i)
      blocks[request * static_cast<std::size_t>(longest) + static_cast<std::size_t>(i)] = order.at(next++);
  }
  table.blocks = contiguous<const std::int32_t>(blocks.data(), context_tokens.size(), longest);
  table.block_tokens = block_tokens;
  table.context_tokens = context_tokens;
}

std::span<std::byte> Workspace::span() {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  const std::size_t skip = (64 - address % 64) % 64;
  return {storage_.data() + skip, storage_.size() - 64};
}

std::vector<float> normal_floats(std::size_t count, std::uint64_t seed, float deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace locks::test
