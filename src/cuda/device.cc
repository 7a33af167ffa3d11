#include <cuda_runtime_api.h>

#include "cuda/check.h"
#include "locks/cuda.h"

namespace locks::cuda {
namespace {

constexpr int kLeastCapability = 80;
constexpr std::int64_t kRecordAlignment = 16;

std::int64_t aligned(int bytes) noexcept { return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment; }

}  // namespace

Device current_device() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  const int capability = found.major * 10 + found.minor;
  if (capability < kLeastCapability) {
    throw CudaError(std::string(found.name) + " has compute capability " + std::to_string(found.major) + "." +
                        std::to_string(found.minor) + "; 8.0 or later is needed",
                    static_cast<int>(cudaErrorInvalidDevice));
  }
  return {found.name, capability, found.multiProcessorCount, static_cast<std::size_t>(found.l2CacheSize),
          found.totalGlobalMem};
}

std::string why_unavailable() {
  try {
    (void)current_device();
    return {};
  } catch (const CudaError& error) {
    return error.what();
  }
}

std::int64_t summary_bytes(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                           bool with_values) noexcept {
  const std::int64_t record = aligned(record_layout(format, head_dim).record_bytes);
  const std::int64_t value = with_values ? aligned(value_layout(format, head_dim).record_bytes) : 0;
  return num_pages * kv_heads * (record + value);
}

SummaryStore make_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages, bool with_values,
                        std::byte* memory) noexcept {
  SummaryStore store{&format, head_dim, num_pages, memory};
  store.head_stride = aligned(record_layout(format, head_dim).record_bytes);
  store.page_stride = store.head_stride * kv_heads;
  if (with_values) {
    store.value_data = memory + store.page_stride * num_pages;
    store.value_head_stride = aligned(value_layout(format, head_dim).record_bytes);
    store.value_page_stride = store.value_head_stride * kv_heads;
  }
  return store;
}

}  // namespace locks::cuda
