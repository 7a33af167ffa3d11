// What summarising costs beside a plain read of the keys: in bulk, and in a step. Arguments: tokens (1048576), KV heads (4).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench.cuh"
#include "locks/summarize.h"

namespace locks::bench {
namespace {

__device__ float uniform(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t x = a * 2654435761U ^ b * 2246822519U ^ c * 3266489917U;
  x = (x ^ x >> 16) * 0x7FEB352DU;
  x = (x ^ x >> 15) * 0x846CA68BU;
  return static_cast<float>(x ^ x >> 16) * 0x1p-32F;
}
__device__ float normal(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  float sum = -2.0F;
  for (std::uint32_t i = 0; i < 4; ++i) sum += uniform(a, b, 4 * c + i);
  return sum * 1.7320508F;
}

/// Keys like those of the tests: `low_rank` pages have four strong directions and a common mean, others are noise.
__global__ void fill_keys(std::uint16_t* keys, std::int64_t count, int head_dim, int kv_heads, bool low_rank) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const auto dim = static_cast<std::uint32_t>(i % head_dim);
    const auto head = static_cast<std::uint32_t>(i / head_dim % kv_heads);
    const auto token = static_cast<std::uint32_t>(i / head_dim / kv_heads);
    const std::uint32_t page = (token / 16) * 64 + head;
    float x = normal(token * 64 + head, dim, 1);
    if (low_rank) {
      x = 0.2F * x + 2.0F * normal(page, dim, 2);
      for (std::uint32_t r = 0; r < 4; ++r) {
        x += normal(token * 64 + head, r, 3) * 1.5F / static_cast<float>(r + 1) * normal(page, dim, 4 + r);
      }
    }
    keys[i] = static_cast<std::uint16_t>(__float_as_uint(x) + 0x8000U >> 16);
  }
}

/// Keys and values of one layer, token after token.
struct Caches {
  PagedCache keys;
  PagedCache values;
};

Caches make_caches(std::int64_t tokens, int kv_heads, int head_dim, bool low_rank) {
  const std::int64_t count = tokens * kv_heads * head_dim;
  const auto make = [&] {
    auto* const data = allocate<std::uint16_t>(static_cast<std::size_t>(count));
    fill_keys<<<132 * 16, 256>>>(data, count, head_dim, kv_heads, low_rank);
    PagedCache cache;
    cache.data = reinterpret_cast<const std::byte*>(data);
    cache.dtype = DType::kBF16;
    cache.num_pages = tokens / kPageTokens;
    cache.head_stride = 2 * head_dim;
    cache.token_stride = cache.head_stride * kv_heads;
    cache.block_stride = cache.token_stride * kPageTokens;
    return cache;
  };
  return {make(), make()};
}

void release(const Caches& caches, const SummaryStore& store) {
  require(cudaDeviceSynchronize());
  require(cudaFree(const_cast<std::byte*>(caches.keys.data)));
  require(cudaFree(const_cast<std::byte*>(caches.values.data)));
  require(cudaFree(store.data));
}

SummaryStore make_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t pages, bool with_values) {
  const auto bytes = static_cast<std::size_t>(cuda::summary_bytes(format, head_dim, kv_heads, pages, with_values));
  return cuda::make_store(format, head_dim, kv_heads, pages, with_values, allocate<std::byte>(bytes));
}

void bulk(std::int64_t tokens, int kv_heads, int head_dim, const SummaryFormat& format, bool with_values, bool low_rank) {
  const std::int64_t num_pages = tokens / kPageTokens;
  const Caches caches = make_caches(tokens, kv_heads, head_dim, low_rank);
  const SummaryStore store = make_store(format, head_dim, kv_heads, num_pages, with_values);
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages));
  std::iota(order.begin(), order.end(), 0);
  std::int32_t* const pages = upload(order);
  auto* const report = upload(std::vector<SummarizeReport>(1));
  const SummarizeArgs args{.head_dim = head_dim,
                           .kv_heads = kv_heads,
                           .keys = caches.keys,
                           .values = &caches.values,
                           .pages = {pages, order.size()},
                           .out = store};
  const double us = microseconds(1, [&](int, cudaStream_t stream) { cuda::summarize(args, report, stream); });
  const std::int64_t bytes = tokens * kv_heads * head_dim * 2;
  const double read = read_microseconds(caches.keys.data, bytes, 1) * (with_values ? 2 : 1);
  std::printf("bulk  %-8s d %3d  %s  %-8s  %8lld tokens x %d heads  %9.1f us  read %7.1f us  %5.2f x  %6.2f ns a record\n",
              std::string(format.name).c_str(), head_dim, with_values ? "keys, values" : "keys        ",
              low_rank ? "low rank" : "noise", static_cast<long long>(tokens), kv_heads, us, read, us / read,
              us * 1e3 / static_cast<double>(num_pages * kv_heads));
  require(cudaFree(pages));
  require(cudaFree(report));
  release(caches, store);
}

void step(int kv_heads, int head_dim, const SummaryFormat& format, bool with_values, int requests, int filled) {
  constexpr std::int64_t kPages = 65536;
  const Caches caches = make_caches(kPages * kPageTokens, kv_heads, head_dim, true);
  const SummaryStore store = make_store(format, head_dim, kv_heads, kPages, with_values);
  constexpr int kLaunches = 40;  // of different pages, so that caches are of no help
  std::vector<std::int64_t> slots;
  for (int i = 0; i < kLaunches; ++i) {
    for (int request = 0; request < requests; ++request) {
      slots.push_back(16 * ((i * 1607 + request * 131) % kPages) + (request < filled ? 15 : 7));
    }
  }
  std::int64_t* const on_device = upload(slots);
  const SummarizeArgs args{
      .head_dim = head_dim, .kv_heads = kv_heads, .keys = caches.keys, .values = &caches.values, .pages = {}, .out = store};
  const double us = microseconds(kLaunches, [&](int i, cudaStream_t stream) {
    const std::span<const std::int64_t> some(on_device + i * requests, static_cast<std::size_t>(requests));
    cuda::summarize_filled(args, some, nullptr, stream);
  });
  std::printf("step  %-8s d %3d  %s  %d heads  %2d requests, %2d pages filled  %6.2f us\n", std::string(format.name).c_str(),
              head_dim, with_values ? "keys, values" : "keys        ", kv_heads, requests, filled, us);
  require(cudaFree(on_device));
  release(caches, store);
}

}  // namespace
}  // namespace locks::bench

int main(int argc, char** argv) {
  using namespace locks;
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 1048576;
  const int kv_heads = argc > 2 ? std::atoi(argv[2]) : 4;
  std::printf("%s\n", cuda::current_device().name.c_str());
  for (const bool low_rank : {false, true}) bench::bulk(tokens, kv_heads, 128, kGraded8, false, low_rank);
  bench::bulk(tokens, kv_heads, 128, kGraded8, true, true);
  bench::bulk(tokens, kv_heads, 128, kPaper, false, true);
  bench::bulk(tokens, kv_heads, 128, kGraded12, false, true);
  bench::bulk(tokens, kv_heads, 128, kGraded4, false, true);
  bench::bulk(tokens, kv_heads, 64, kGraded8, false, true);
  bench::bulk(tokens / 2, kv_heads, 256, kGraded8, false, true);
  for (const auto& [requests, filled] : {std::pair{1, 0}, {1, 1}, {16, 0}, {16, 1}, {16, 16}}) {
    bench::step(kv_heads, 128, kGraded8, false, requests, filled);
  }
  bench::step(kv_heads, 128, kGraded8, true, 1, 1);
  return 0;
}
