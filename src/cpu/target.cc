#include "locks/target.h"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace locks {
namespace {

constexpr std::array kNames{"reference", "scalar", "avx2", "avx512"};

bool machine_runs(Target target) noexcept {
  const auto has_avx2 = [] {  // what Highway's AVX2 target may use
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("aes") &&
           __builtin_cpu_supports("pclmul");
  };
  switch (target) {
    case Target::kReference:
    case Target::kScalar:
      return true;
    case Target::kAvx2:
      return has_avx2();
    case Target::kAvx512:
      return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  }
  return false;
}

const std::vector<Target>& supported() {
  static const std::vector<Target> targets = [] {
    __builtin_cpu_init();
    std::vector<Target> found;
    for (const Target target : {Target::kReference, Target::kScalar, Target::kAvx2, Target::kAvx512}) {
      if (machine_runs(target)) found.push_back(target);
    }
    return found;
  }();
  return targets;
}

}  // namespace

std::string_view target_name(Target target) noexcept { return kNames[static_cast<std::size_t>(target)]; }

Target parse_target(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Target>(i);
  }
  throw std::invalid_argument("CPU target '" + std::string(name) +
                              "' is unknown; it may be reference, scalar, avx2 or avx512");
}

std::span<const Target> supported_targets() noexcept { return supported(); }

Target active_target() {
  static const char* const forced = std::getenv("LOCKS_CPU_TARGET");
  if (forced == nullptr || *forced == '\0') return supported().back();
  const Target target = parse_target(forced);
  for (const Target candidate : supported()) {
    if (candidate == target) return target;
  }
  throw std::invalid_argument("LOCKS_CPU_TARGET=" + std::string(forced) + ": this machine cannot run that target");
}

}  // namespace locks
