#include "cpu/check.h"

#include <stdexcept>

namespace locks::check {

void fail(std::string_view argument, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(std::string(argument) + ": expected " + expected + ", got " + got);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += extent < 0 ? "any" : std::to_string(extent);
  }
  return text + "]";
}

void head_dim(int head_dim) {
  if (!is_supported_head_dim(head_dim)) fail("head_dim", "64, 80, 96, 128, 192 or 256", std::to_string(head_dim));
}

void geometry(const Geometry& geometry) {
  head_dim(geometry.head_dim);
  if (geometry.kv_heads < 1) fail("kv_heads", "at least 1", std::to_string(geometry.kv_heads));
  if (geometry.query_heads < 1 || geometry.query_heads % geometry.kv_heads != 0) {
    fail("query_heads", "a multiple of kv_heads (" + std::to_string(geometry.kv_heads) + ")",
         std::to_string(geometry.query_heads));
  }
  if (!(geometry.softmax_scale > 0.0F)) fail("softmax_scale", "more than 0", std::to_string(geometry.softmax_scale));
}

void workspace(std::span<const std::byte> workspace, std::size_t needed) {
  if (workspace.size() < needed) {
    fail("workspace", "at least " + std::to_string(needed) + " bytes", std::to_string(workspace.size()));
  }
  if (needed > 0 && reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0) {
    fail("workspace", "memory aligned to 64 bytes", "an address that is not");
  }
}

void cache(std::string_view argument, const PagedCache& cache, int head_dim, int kv_heads) {
  const std::string name(argument);
  if (cache.data == nullptr) fail(name, "data", "a null pointer");
  if (cache.dtype > DType::kE4M3)
    fail(name + ".dtype", "f32, f16, bf16, q8_0 or e4m3", std::to_string(static_cast<int>(cache.dtype)));
  if (cache.scale != nullptr && cache.dtype != DType::kE4M3) {
    fail(name + ".scale", "none, as only e4m3 has a scale", "one for " + std::string(dtype_name(cache.dtype)));
  }
  if (cache.dtype == DType::kQ8_0 && head_dim % kQ8BlockElements != 0) {
    fail(name, "a head_dim that is a multiple of 32 for q8_0", std::to_string(head_dim));
  }
  if (cache.num_pages < 0) fail(name + ".num_pages", "0 or more", std::to_string(cache.num_pages));
  if (cache.block_tokens < kPageTokens || cache.block_tokens % kPageTokens != 0) {
    fail(name + ".block_tokens", "a multiple of 16", std::to_string(cache.block_tokens));
  }
  if (cache.page_slots != nullptr && cache.block_tokens != kPageTokens) {
    fail(name + ".block_tokens", "16 with page_slots", std::to_string(cache.block_tokens));
  }
  const std::int64_t row = row_bytes(cache.dtype, head_dim);
  const auto apart = [&](std::string_view what, std::int64_t stride, bool used) {
    if (used && stride > -row && stride < row) {
      fail(name + "." + std::string(what), "at least " + std::to_string(row) + " bytes (a row), either way",
           std::to_string(stride));
    }
  };
  apart("token_stride", cache.token_stride, true);
  apart("head_stride", cache.head_stride, kv_heads > 1);
  apart("block_stride", cache.block_stride,
        cache.page_slots == nullptr && cache.num_pages > cache.block_tokens / kPageTokens);
}

void cpu_cache(std::string_view argument, const PagedCache& cache, int head_dim, int kv_heads) {
  if (cache.dtype == DType::kE4M3) fail(std::string(argument) + ".dtype", "f32, f16, bf16 or q8_0 on the CPU", "e4m3");
  check::cache(argument, cache, head_dim, kv_heads);
}

void store(std::string_view argument, const SummaryStore& store, int head_dim, int kv_heads) {
  const std::string name(argument);
  if (store.format == nullptr) fail(name + ".format", "a format", "a null pointer");
  if (store.head_dim != head_dim) fail(name + ".head_dim", std::to_string(head_dim), std::to_string(store.head_dim));
  if (store.data == nullptr && store.num_pages > 0) fail(name + ".data", "memory", "a null pointer");
  const int record = record_layout(*store.format, head_dim).record_bytes;
  if (store.num_pages > 1 && store.page_stride < record) {
    fail(name + ".page_stride", "at least " + std::to_string(record) + " bytes (a record)",
         std::to_string(store.page_stride));
  }
  if (kv_heads > 1 && store.head_stride < record) {
    fail(name + ".head_stride", "at least " + std::to_string(record) + " bytes (a record)",
         std::to_string(store.head_stride));
  }
}

void table(const PageTable& table, std::int64_t num_pages, bool every_block) {
  const auto requests = static_cast<std::int64_t>(table.context_tokens.size());
  if (table.blocks.shape[0] != requests) {
    fail("table.blocks", std::to_string(requests) + " rows (one per context length)", std::to_string(table.blocks.shape[0]));
  }
  const std::int64_t pages_per_block = table.block_tokens / kPageTokens;
  for (std::int64_t request = 0; request < requests; ++request) {
    const std::int64_t tokens = table.context_tokens[request];
    const std::string where = "[" + std::to_string(request) + "]";
    if (tokens < 0) fail("table.context_tokens" + where, "0 or more", std::to_string(tokens));
    const std::int64_t blocks = (tokens + table.block_tokens - 1) / table.block_tokens;
    if (blocks > table.blocks.shape[1]) {
      fail("table.blocks",
           std::to_string(blocks) + " blocks for the " + std::to_string(tokens) + " tokens of request " +
               std::to_string(request),
           std::to_string(table.blocks.shape[1]));
    }
    for (std::int64_t i = 0; every_block && i < blocks; ++i) {
      const std::int64_t block = table.blocks(request, i);
      if (block < 0 || (block + 1) * pages_per_block > num_pages) {
        fail("table.blocks[" + std::to_string(request) + ", " + std::to_string(i) + "]",
             "a block number below " + std::to_string(num_pages / pages_per_block), std::to_string(block));
      }
    }
  }
}

}  // namespace locks::check
