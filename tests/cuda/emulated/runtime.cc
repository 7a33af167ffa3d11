// As much of CUDA's runtime as the backend and its tests call, for one device that is this CPU and passes for an H200.
#include "emulated/runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

struct CUgraph_st {
  std::vector<locks::cuda::emulator::KernelLaunch> launches;
};
struct CUgraphExec_st {
  std::vector<locks::cuda::emulator::KernelLaunch> launches;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
};

namespace {

constexpr int kMultiprocessors = 132;
constexpr int kMostThreads = 1024;
constexpr int kMostShared = 227 * 1024;    // of a block that asks for it
constexpr int kSharedUnasked = 48 * 1024;  // of others
constexpr int kSharedOfAll = 228 * 1024;   // of a multiprocessor
constexpr int kMostCluster = 8;
constexpr unsigned kMostGrid = 65535;  // of the second and third axis
constexpr std::size_t kMemory = std::size_t{141} << 30;
constexpr std::size_t kAlignment = 256;

locks::cuda::emulator::Pipeline& pipeline() {
  static locks::cuda::emulator::Pipeline one;
  return one;
}
std::unordered_map<const void*, int>& asked_shared() {
  static std::unordered_map<const void*, int> bytes;
  return bytes;
}
cudaError_t last_error = cudaSuccess;
cudaError_t result(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

}  // namespace

namespace locks::cuda::emulator {

void queue(cudaStream_t stream, KernelLaunch launch) {
  if (stream != nullptr && stream->captured != nullptr) {
    stream->captured->launches.push_back(std::move(launch));
  } else {
    pipeline().launch(std::move(launch));
  }
}

cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel, int cluster) {
  const auto asked = asked_shared().find(kernel);
  const int most_shared = asked == asked_shared().end() ? kSharedUnasked : std::max(asked->second, kSharedUnasked);
  const dim3& grid = config.gridDim;
  const bool fits = config.blockDim.x >= 1 && config.blockDim.x <= kMostThreads && config.blockDim.y == 1 &&
                    config.blockDim.z == 1 && grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.y <= kMostGrid &&
                    grid.z <= kMostGrid && cluster >= 1 && cluster <= kMostCluster &&
                    grid.x % static_cast<unsigned>(cluster) == 0 &&
                    config.dynamicSmemBytes <= static_cast<std::size_t>(most_shared);
  return result(fits ? cudaSuccess : cudaErrorInvalidConfiguration);
}

}  // namespace locks::cuda::emulator

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "a CPU");
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostShared;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedOfAll;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    default:
      std::fprintf(stderr, "emulated runtime: device attribute %d is not known\n", static_cast<int>(attribute));
      return result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxThreadsPerBlock = kMostThreads;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > kMostShared) return result(cudaErrorInvalidValue);
  asked_shared()[kernel] = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  const int size = static_cast<int>(config->attrs[0].val.clusterDim.x);
  *clusters = size <= kMostCluster ? kMultiprocessors / size : 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = bytes > kMemory ? nullptr : std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  return result(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  pipeline().finish();
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  pipeline().finish();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  pipeline().finish();
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  pipeline().finish();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorMemoryAllocation       ? "out of memory"
         : status == cudaErrorInvalidConfiguration ? "invalid configuration argument"
         : status == cudaErrorInvalidValue         ? "invalid argument"
                                                   : "an error of the emulated runtime";
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new CUgraph_st();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->launches};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  pipeline().finish();
  for (const locks::cuda::emulator::KernelLaunch& launch : exec->launches) pipeline().launch(launch);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
