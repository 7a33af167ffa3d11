// `locks bench --device cuda`: what the stages and whole steps cost on the GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace locks::cli {

struct CudaResult {
  double us = 0.0;           // a step, median over the replays of a CUDA graph of many
  double bytes = 0.0;        // that a step must read
  double read_us = 0.0;      // a plain read of as many bytes, in the same run
  double baseline_us = 0.0;  // dense attention over the same contexts, in the same run; 0: not compared
};

struct CudaCase {
  std::string name;
  std::string detail;
  std::function<CudaResult()> run;
};

/// Throws cuda::CudaError if there is no GPU.
[[nodiscard]] std::vector<CudaCase> cuda_cases();
/// Name and capability of the device.
[[nodiscard]] std::string cuda_device_text();

}  // namespace locks::cli
