// The table of `locks bench --device cuda`.
#include "bench_device.h"

#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common.h"
#ifdef LOCKS_HAS_CUDA
#include "bench_cuda.h"
#include "locks/cuda.h"
#endif

namespace locks::cli {

#ifdef LOCKS_HAS_CUDA

namespace {

using nlohmann::ordered_json;

ordered_json to_json(const CudaCase& item, const CudaResult& result) {
  const auto if_known = [](double value) { return value > 0.0 ? ordered_json(value) : ordered_json(nullptr); };
  return {{"name", item.name},
          {"value", result.us},
          {"unit", "us"},
          {"bytes", result.bytes > 0.0 ? ordered_json(std::llround(result.bytes)) : ordered_json(nullptr)},
          {"bandwidth_share", if_known(result.read_us / result.us)},
          {"speedup", if_known(result.baseline_us / result.us)},
          {"read_us", if_known(result.read_us)},
          {"dense_us", if_known(result.baseline_us)},
          {"detail", item.detail}};
}

void print_row(const CudaCase& item, const CudaResult& result) {
  const bool reads = result.read_us > 0.0;
  fmt::print("{:<38} {:>9.1f} us {:>8} {:>12} {:>9} {:>13}  {}\n", item.name, result.us,
             reads ? bytes_text(result.bytes) : "", reads ? fmt::format("{:.1f} us", result.read_us) : "",
             reads ? fmt::format("{:.2f} x", result.us / result.read_us) : "",
             result.baseline_us > 0.0 ? fmt::format("{:.2f} x", result.baseline_us / result.us) : "", item.detail);
  std::fflush(stdout);
}

void write(const std::string& path, const ordered_json& entries) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << entries.dump(1) << '\n';
  file.close();
  if (!file) throw std::runtime_error(fmt::format("cannot write {}", path));
}

}  // namespace

int run_cuda_bench(const DeviceBench& settings) {
  if (settings.list) {
    for (const CudaCase& item : cuda_cases()) fmt::print("{}\n", item.name);
    return kSuccess;
  }
  if (const std::string reason = cuda::why_unavailable(); !reason.empty()) {
    fmt::print(stderr, "locks bench: no GPU to measure: {}\n", reason);
    return kFailure;
  }
  ordered_json entries = ordered_json::array();
  write(settings.json_path, entries);  // an unwritable file should be known first
  fmt::print("{}\nMedians of CUDA graphs; what a launch reads is in no cache. `read`: a plain read of as many bytes.\n\n",
             cuda_device_text());
  fmt::print("{:<38} {:>12} {:>8} {:>12} {:>9} {:>13}\n", "", "time", "bytes", "read", "time/read", "dense/time");
  for (const CudaCase& item : cuda_cases()) {
    if (item.name.find(settings.filter) == std::string::npos) continue;
    const CudaResult result = item.run();
    print_row(item, result);
    entries.push_back(to_json(item, result));
  }
  write(settings.json_path, entries);
  if (!entries.empty()) return kSuccess;
  fmt::print(stderr, "locks bench: no measurement has '{}' in its name; see locks bench --device cuda --list\n",
             settings.filter);
  return kUsage;
}

#else

int run_cuda_bench(const DeviceBench& /*settings*/) {
  fmt::print(stderr, "locks bench: this locks was built without CUDA; build it where nvcc is, with -DLOCKS_CUDA=ON\n");
  return kUsage;
}

#endif

}  // namespace locks::cli
