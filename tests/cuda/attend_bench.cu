// Times of attention beside a plain read of the same bytes, in CUDA graphs, over copies that no cache holds.
//   cuda_attend_bench [PART OF A NAME [GB OF CACHE]]
#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "bench.cuh"

namespace {

using namespace locks;

/// Device memory that is given back: some shapes need gigabytes.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : data_(bench::allocate<T>(std::max<std::size_t>(1, count))), count_(count) {}
  explicit Array(const std::vector<T>& host) : Array(host.size()) {
    bench::require(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { (void)cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::span<T> span() const { return {data_, count_}; }

 private:
  T* data_;
  std::size_t count_;
};

/// Moderate numbers, as f16, as bf16, as e4m3 and in pairs as f32.
__global__ void fill(std::uint32_t* pairs, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U;
    x = (x ^ (x >> 15)) * 2246822519U;
    pairs[i] = ((x ^ (x >> 13)) & 0x81BF81BFU) | 0x3C003C00U;
  }
}

struct Shape {
  const char* name;
  DType dtype;
  int head_dim;
  int kv_heads;
  int group;
  int requests;
  std::int64_t context;  // tokens of each request
  int part;              // tokens of an entry; 0: every token
  int tokens;            // listed, of a list
};

Array<std::byte>* pool = nullptr;

/// Caches of their own for every copy, or one table after the other over a large pool.
void measure(const Shape& shape) {
  const std::int64_t pages = shape.context / kPageTokens;
  const std::int64_t row = row_bytes(shape.dtype, shape.head_dim);
  const std::int64_t page_bytes = row * shape.kv_heads * kPageTokens;
  const std::int64_t half = static_cast<std::int64_t>(pool->span().size()) / 2;
  const std::int64_t pool_pages = half / page_bytes;
  const std::int64_t table_pages = pages * shape.requests;
  const bool dense = shape.part == 0;
  // Lists are short: each copy lists other pages. Every token: each copy has other pages.
  const int copies = static_cast<int>(std::clamp<std::int64_t>(dense ? pool_pages / table_pages : 40, 1, 40));
  const std::int64_t tables = dense ? copies : 1;
  if (table_pages * tables > pool_pages) throw std::runtime_error(std::string(shape.name) + ": the pool is too small");
  std::mt19937_64 random(1);
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(pool_pages));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.resize(static_cast<std::size_t>(table_pages * tables));
  const Array<std::int32_t> device_blocks(blocks);
  const Array<std::int32_t> lengths(
      std::vector<std::int32_t>(static_cast<std::size_t>(shape.requests), static_cast<std::int32_t>(shape.context)));
  const int heads = shape.kv_heads * shape.group;
  const Array<float> queries(bench::normal_floats(static_cast<std::size_t>(shape.requests * heads * shape.head_dim)));
  AttendArgs args;
  args.geometry = {shape.head_dim, shape.kv_heads, heads, 1.0F / std::sqrt(static_cast<float>(shape.head_dim))};
  args.queries = contiguous<const float>(queries.data(), shape.requests, heads, shape.head_dim);
  // Rows of the heads of a token side by side, as in vLLM's cache.
  args.keys = {.data = pool->data(),
               .dtype = shape.dtype,
               .num_pages = pool_pages,
               .block_tokens = kPageTokens,
               .block_stride = page_bytes,
               .token_stride = row * shape.kv_heads,
               .head_stride = row};
  args.values = args.keys;
  args.values.data = pool->data() + half;
  args.table.blocks = contiguous<const std::int32_t>(device_blocks.data(), shape.requests, pages);
  args.table.context_tokens = lengths.span();
  args.num_lists = shape.kv_heads;
  const int entries = dense ? 0 : shape.tokens / shape.part;
  std::vector<SelectedPage> selected;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t list = 0; !dense && list < std::int64_t{copies} * shape.requests * shape.kv_heads; ++list) {
    for (int i = 0; i < entries; ++i) std::swap(order[i], order[i + random() % static_cast<std::uint64_t>(pages - i)]);
    std::vector<std::int32_t> listed(order.begin(), order.begin() + entries);
    std::sort(listed.begin(), listed.end());
    for (const std::int32_t page : listed) {
      const unsigned mask = ((1U << shape.part) - 1) << random() % (16 / static_cast<unsigned>(shape.part)) * shape.part;
      selected.push_back({page, static_cast<std::uint16_t>(mask)});
    }
  }
  const Array<SelectedPage> device_selected(selected);
  const Array<std::int32_t> counts(
      std::vector<std::int32_t>(static_cast<std::size_t>(shape.requests * shape.kv_heads), entries));
  if (!dense) {
    args.selected = contiguous<const SelectedPage>(device_selected.data(), shape.requests, shape.kv_heads, entries);
    args.num_selected = contiguous<const std::int32_t>(counts.data(), shape.requests, shape.kv_heads);
  }
  const Array<std::byte> workspace(cuda::attend_workspace_bytes(args.geometry, shape.requests, shape.kv_heads));
  args.workspace = workspace.span();
  const Array<float> states(static_cast<std::size_t>(shape.requests * heads * (2 + shape.head_dim)));
  const SoftmaxStates view = contiguous(states.data(), shape.requests, heads, 2 + shape.head_dim);
  const double bytes = 2.0 * static_cast<double>(row) * shape.kv_heads * shape.requests *
                       static_cast<double>(dense ? shape.context : shape.tokens);
  const int launches = bytes > 5e8 ? 4 : bytes > 5e7 ? 10 : 40;
  const double attend_us = bench::microseconds(launches, [&](int i, cudaStream_t stream) {
    AttendArgs copy = args;
    const int at = i % copies;
    if (dense) {
      copy.table.blocks.data += at * table_pages;
    } else {
      copy.selected.data += static_cast<std::int64_t>(at) * shape.requests * shape.kv_heads * entries;
    }
    cuda::attend(copy, view, false, stream);
  });
  const int reads = static_cast<int>(static_cast<double>(pool->span().size()) / bytes);
  const double read_us = bench::read_microseconds(pool->data(), static_cast<std::int64_t>(bytes), reads);
  std::printf("%-44s %9.1f MB %9.2f us %8.2f TB/s %9.2f us read %6.2f x\n", shape.name, bytes / 1e6, attend_us,
              bytes / attend_us / 1e6, read_us, attend_us / read_us);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Array<std::byte> memory(static_cast<std::size_t>(argc > 2 ? std::stoi(argv[2]) : 24) << 30);
    pool = &memory;
    fill<<<4096, 256>>>(reinterpret_cast<std::uint32_t*>(memory.data()), memory.span().size() / 4);
    bench::require(cudaDeviceSynchronize());
    constexpr DType kB = DType::kBF16;
    constexpr DType kE = DType::kE4M3;
    const std::vector<Shape> shapes = {
        {"dense 1K, 8 KV x 4, short", kB, 128, 8, 4, 1, 1024, 0, 0},
        {"dense 2K, 8 KV x 4, short", kB, 128, 8, 4, 1, 2048, 0, 0},
        {"dense 4K, 8 KV x 4, short", kB, 128, 8, 4, 1, 4096, 0, 0},
        {"dense 8K, 8 KV x 4, short", kB, 128, 8, 4, 1, 8192, 0, 0},
        {"dense 16K, 8 KV x 4, short", kB, 128, 8, 4, 1, 16384, 0, 0},
        {"dense 16K, 4 KV x 8, short", kB, 128, 4, 8, 1, 16384, 0, 0},
        {"dense 32K, 4 KV x 8, short", kB, 128, 4, 8, 1, 32768, 0, 0},
        {"dense 4 x 2K, 8 KV x 4, short", kB, 128, 8, 4, 4, 2048, 0, 0},
        {"dense 4 x 4K, 8 KV x 4, short", kB, 128, 8, 4, 4, 4096, 0, 0},
        {"dense 16 x 1K, 8 KV x 4, short", kB, 128, 8, 4, 16, 1024, 0, 0},
        {"2048 tokens in pages, 4 KV x 8, d 128, bf16", kB, 128, 4, 8, 1, 131072, 16, 2048},
        {"2048 tokens in parts of 4", kB, 128, 4, 8, 1, 131072, 4, 2048},
        {"512 tokens in parts of 4", kB, 128, 4, 8, 1, 131072, 4, 512},
        {"2048 tokens in pages, 8 KV x 4", kB, 128, 8, 4, 1, 131072, 16, 2048},
        {"2048 tokens in pages, 4 KV x 16", kB, 128, 4, 16, 1, 131072, 16, 2048},
        {"2048 tokens in pages, f16, d 64, 8 KV x 4", DType::kF16, 64, 8, 4, 1, 131072, 16, 2048},
        {"8 x 2048 tokens in pages", kB, 128, 4, 8, 8, 131072, 16, 2048},
        {"64 x 2048 tokens in pages", kB, 128, 4, 8, 64, 32768, 16, 2048},
        {"64 x 512 tokens in parts of 4", kB, 128, 4, 8, 64, 32768, 4, 512},
        {"512 x 512 tokens in parts of 4", kB, 128, 4, 8, 512, 4096, 4, 512},
        {"dense 4K", kB, 128, 4, 8, 1, 4096, 0, 0},
        {"dense 32K", kB, 128, 4, 8, 1, 32768, 0, 0},
        {"dense 128K", kB, 128, 4, 8, 1, 131072, 0, 0},
        {"dense 512K", kB, 128, 4, 8, 1, 524288, 0, 0},
        {"dense 1M", kB, 128, 4, 8, 1, 1048576, 0, 0},
        {"dense 64 x 32K", kB, 128, 4, 8, 64, 32768, 0, 0},
        {"dense 512 x 2K", kB, 128, 4, 8, 512, 2048, 0, 0},
        {"dense 1M, f16", DType::kF16, 128, 4, 8, 1, 1048576, 0, 0},
        {"dense 1M, 8 KV x 4, d 64", kB, 64, 8, 4, 1, 1048576, 0, 0},
        {"dense 1M, 4 KV x 16", kB, 128, 4, 16, 1, 1048576, 0, 0},
        {"dense 512K, 4 KV x 8, d 256", kB, 256, 4, 8, 1, 524288, 0, 0},
        {"dense 512K, 4 KV x 8, d 192", kB, 192, 4, 8, 1, 524288, 0, 0},
        {"dense 512K, f32", DType::kF32, 128, 4, 8, 1, 524288, 0, 0},
        {"dense 128K, 2 KV x 8", kB, 128, 2, 8, 1, 131072, 0, 0},
        {"2048 tokens in pages, e4m3", kE, 128, 4, 8, 1, 131072, 16, 2048},
        {"2048 tokens in parts of 4, e4m3", kE, 128, 4, 8, 1, 131072, 4, 2048},
        {"2048 tokens in pages, 4 KV x 16, e4m3", kE, 128, 4, 16, 1, 131072, 16, 2048},
        {"64 x 2048 tokens in pages, e4m3", kE, 128, 4, 8, 64, 32768, 16, 2048},
        {"64 x 512 tokens in parts of 4, e4m3", kE, 128, 4, 8, 64, 32768, 4, 512},
        {"dense 128K, e4m3", kE, 128, 4, 8, 1, 131072, 0, 0},
        {"dense 1M, e4m3", kE, 128, 4, 8, 1, 1048576, 0, 0},
        {"dense 64 x 32K, e4m3", kE, 128, 4, 8, 64, 32768, 0, 0},
        {"dense 1M, 8 KV x 4, d 64, e4m3", kE, 64, 8, 4, 1, 1048576, 0, 0},
        {"dense 1M, 4 KV x 16, e4m3", kE, 128, 4, 16, 1, 1048576, 0, 0},
        {"dense 512K, 4 KV x 8, d 256, e4m3", kE, 256, 4, 8, 1, 524288, 0, 0},
    };
    for (const Shape& shape : shapes) {
      if (argc < 2 || std::strstr(shape.name, argv[1]) != nullptr) measure(shape);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_attend_bench: %s\n", error.what());
    return 1;
  }
}
