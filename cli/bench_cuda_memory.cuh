// Device memory with random contents, and times of CUDA graphs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_array.cuh"
#include "locks/cuda.h"

namespace locks::cli::cuda_bench {

__device__ inline std::uint32_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>(x ^ (x >> 31));
}

/// A number of variance 1.
__device__ inline float uniform(std::uint32_t bits) { return 3.4641016F * (static_cast<float>(bits) * 0x1p-32F - 0.5F); }

/// bf16 rows in pages of 16 tokens, `token_pairs` pairs of numbers each: what the tokens of a page share, 1.5 times, and
/// what they do not. Pages then differ in their logits as those of a text do.
__global__ void fill_rows(__nv_bfloat162* pairs, std::size_t count, std::size_t token_pairs, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::size_t shared = i / (16 * token_pairs) * token_pairs + i % token_pairs;
    const auto number = [&](std::uint64_t half) {
      return 1.5F * uniform(mix((2 * shared + half) ^ (seed << 48))) + uniform(mix((2 * i + half) ^ (seed + 1) << 48));
    };
    pairs[i] = __floats2bfloat162_rn(number(0), number(1));
  }
}

/// What the other times are compared with: every byte once, 16 at a time.
__global__ void __launch_bounds__(512) read_all(const uint4* data, std::size_t count, unsigned* sink) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  unsigned all = 0;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = __ldcs(data + i);
    const uint4 b = __ldcs(data + i + step);
    const uint4 c = __ldcs(data + i + 2 * step);
    const uint4 d = __ldcs(data + i + 3 * step);
    all ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += step) {
    const uint4 a = __ldcs(data + i);
    all ^= a.x ^ a.y ^ a.z ^ a.w;
  }
  if (all == 0x12345678U) *sink = all;
}

/// Reads all as the layers of a model read their weights: what was in the L2 cache, instructions among it, is there no more.
__global__ void __launch_bounds__(512) sweep(const uint4* data, std::size_t count, unsigned* sink) {
  unsigned all = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 own = data[i];
    all ^= own.x ^ own.y ^ own.z ^ own.w;
  }
  if (all == 0x12345678U) *sink = all;
}

/// Median time of one of `count` launches, captured in one graph and replayed.
template <class Launch>
double graph_us(int count, const Launch& launch) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launch(0, stream);  // loads the kernels
  check(cudaStreamSynchronize(stream));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) launch(i, stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&replay, graph, 0));
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  std::vector<float> times;
  for (int round = 0; round < 14; ++round) {
    check(cudaEventRecord(start, stream));
    check(cudaGraphLaunch(replay, stream));
    check(cudaEventRecord(stop, stream));
    check(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, start, stop));
    if (round >= 3) times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  (void)cudaEventDestroy(start);
  (void)cudaEventDestroy(stop);
  check(cudaGraphExecDestroy(replay));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
  return static_cast<double>(times[times.size() / 2]) * 1e3 / count;
}

/// Time of a plain read of `bytes`, from memory that no cache holds.
inline double read_us(double bytes) {
  const cuda::Device device = cuda::current_device();
  const auto count = static_cast<std::size_t>(bytes) / 16;
  const std::size_t sets = std::max<std::size_t>(2, 8 * device.l2_bytes / std::max<std::size_t>(1, count * 16) + 1);
  const Array<uint4> data(sets * count);
  const Array<unsigned> sink(1);
  check(cudaMemset(data.data(), 1, sets * count * sizeof(uint4)));
  const auto blocks = static_cast<unsigned>(4 * device.multiprocessors);
  return graph_us(20, [&](int i, cudaStream_t stream) {
    read_all<<<blocks, 512, 0, stream>>>(data.data() + static_cast<std::size_t>(i) % sets * count, count, sink.data());
  });
}

/// Of `count` launches, each behind a sweep of the L2 cache, whose own time is taken away.
template <class Launch>
double swept_us(int count, const Launch& launch) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // five times an H200's L2
  const Array<std::byte> weights(kBytes);
  const Array<unsigned> sink(1);
  const auto sweep_all = [&](cudaStream_t stream) {
    sweep<<<1056, 512, 0, stream>>>(reinterpret_cast<const uint4*>(weights.data()), kBytes / sizeof(uint4), sink.data());
  };
  const double both = graph_us(count, [&](int i, cudaStream_t stream) {
    sweep_all(stream);
    launch(i, stream);
  });
  return both - graph_us(count, [&](int, cudaStream_t stream) { sweep_all(stream); });
}

}  // namespace locks::cli::cuda_bench
