// `locks bench` on other devices than the CPU.
#pragma once

#include <string>

namespace locks::cli {

struct DeviceBench {
  std::string filter;
  std::string json_path;
  bool list = false;  // print the names and measure nothing
};

/// Returns the exit code.
int run_cuda_bench(const DeviceBench& settings);

}  // namespace locks::cli
