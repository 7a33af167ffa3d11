// Device memory for the tests, and the test fixture that skips where there is no GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "locks/cuda.h"

namespace locks::test {

inline void expect_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// An array on the device. What nobody wrote is 0xFF in every byte: as a float, not a number.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    expect_cuda(cudaMalloc(&data_, bytes() + 256));
    expect_cuda(cudaMemset(data_, 0xFF, bytes() + 256));
  }
  explicit DeviceArray(std::span<const T> host) : DeviceArray(host.size()) { write(host); }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(std::span<const T>(host)) {}
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }
  [[nodiscard]] std::span<T> span() const { return {data(), count_}; }
  void write(std::span<const T> host) {
    expect_cuda(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
  }
  /// Waits for everything that was queued.
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> host(count_);
    expect_cuda(cudaDeviceSynchronize());
    expect_cuda(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = cuda::why_unavailable();
    if (!reason.empty()) GTEST_SKIP() << "no GPU that can run this: " << reason;
  }
};

}  // namespace locks::test
