// Device memory that the host fills and reads.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "locks/cuda.h"

namespace locks::cli {

inline void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw cuda::CudaError(cudaGetErrorString(status), static_cast<int>(status));
}

template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<std::size_t>(1, count) * sizeof(T)));
  }
  explicit Array(std::span<const T> host) : Array(host.size()) {
    check(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
  }
  ~Array() { (void)cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(data_); }
  [[nodiscard]] std::span<T> span() const noexcept { return {data(), count_}; }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> host(count_);
    check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

}  // namespace locks::cli
