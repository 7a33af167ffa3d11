// For the benchmarks of single stages: CUDA graphs of many launches over copies of the data that the L2 cache cannot hold,
// beside a plain streaming read of the same bytes in the same run.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "locks/cuda.h"

namespace locks::bench {

inline void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* allocate(std::size_t count) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}
template <class T>
T* upload(const std::vector<T>& host) {
  T* const memory = allocate<T>(host.size());
  require(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

__global__ inline void fill_random(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U + seed;
    x = (x ^ x >> 16) * 0x7FEB352DU;
    x = (x ^ x >> 15) * 0x846CA68BU;
    words[i] = x ^ x >> 16;
  }
}

/// bf16 `value` at `count` scales behind `offset` of every record.
__global__ inline void fill_scales(std::byte* records, std::int64_t stride, std::int64_t num_records, int offset, int count,
                                   float value) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < num_records;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    auto* const scales = reinterpret_cast<std::uint16_t*>(records + i * stride + offset);
    for (int k = 0; k < count; ++k) scales[k] = static_cast<std::uint16_t>(__float_as_uint(value * (1 + k % 3)) >> 16);
  }
}
__global__ inline void clear_flags(std::byte* records, std::int64_t stride, std::int64_t num_records, int offset) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < num_records;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    records[i * stride + offset] = std::byte{0};
  }
}

/// A store of random records with moderate scales.
inline SummaryStore random_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t pages, bool values) {
  const auto bytes = static_cast<std::size_t>(cuda::summary_bytes(format, head_dim, kv_heads, pages, values));
  const SummaryStore store = cuda::make_store(format, head_dim, kv_heads, pages, values, allocate<std::byte>(bytes));
  fill_random<<<2048, 256>>>(reinterpret_cast<std::uint32_t*>(store.data), bytes / 4, 1);
  const RecordLayout at = record_layout(format, head_dim);
  const auto fill = [&](std::byte* data, std::int64_t stride, int offset, int count, float value) {
    fill_scales<<<2048, 256>>>(data, stride, pages * kv_heads, offset, count, value);
  };
  if (format.basis_has_scales) fill(store.data, store.head_stride, at.basis_scales_at, format.rank, 0.02F);
  const bool token_scales = format.coefficient_bits == 8;
  fill(store.data, store.head_stride, at.coefficient_scales_at, token_scales ? kPageTokens : format.rank,
       token_scales ? 0.01F : 0.1F);
  fill(store.data, store.head_stride, at.mean_scale_at, 1, 0.01F);
  clear_flags<<<2048, 256>>>(store.data, store.head_stride, pages * kv_heads, at.flags_at);
  if (values) {
    const ValueLayout value_at = value_layout(format, head_dim);
    fill(store.value_data, store.value_head_stride, value_at.slope_scales_at, format.rank, 0.1F);
    fill(store.value_data, store.value_head_stride, value_at.mean_scale_at, 1, 0.01F);
  }
  require(cudaDeviceSynchronize());
  return store;
}

__global__ void __launch_bounds__(512) inline read_bytes(const uint4* data, std::size_t count, unsigned* out) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  unsigned sum = 0;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + step), c = __ldcs(data + i + 2 * step),
                d = __ldcs(data + i + 3 * step);
    sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += step) {
    const uint4 a = __ldcs(data + i);
    sum ^= a.x ^ a.y ^ a.z ^ a.w;
  }
  if (sum == 0x12345678U) *out = sum;
}

/// Microseconds of a launch: median of 20 replays of a graph of `launches`; launch(i, stream) queues the i-th.
template <class Launch>
double microseconds(int launches, Launch&& launch) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t begin, end;
  require(cudaStreamCreate(&stream));
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(i, stream);
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&replay, graph, 0));
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < 23; ++round) {
    require(cudaEventRecord(begin, stream));
    require(cudaGraphLaunch(replay, stream));
    require(cudaEventRecord(end, stream));
    require(cudaEventSynchronize(end));
    float milliseconds = 0.0F;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= 3) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  require(cudaGraphExecDestroy(replay));
  require(cudaGraphDestroy(graph));
  require(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1e3 / launches;
}

/// A plain read of `bytes`, one of `copies` that lie one behind the other.
inline double read_microseconds(const std::byte* data, std::int64_t bytes, int copies) {
  static unsigned* const out = allocate<unsigned>(1);
  return microseconds(20, [&](int i, cudaStream_t stream) {
    read_bytes<<<132 * 4, 512, 0, stream>>>(reinterpret_cast<const uint4*>(data + i % copies * bytes),
                                            static_cast<std::size_t>(bytes / 16), out);
  });
}

inline std::vector<std::int32_t> shuffled(std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}
inline std::vector<float> normal_floats(std::size_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

}  // namespace locks::bench
