// Which code runs: every variant has a name, can be forced, and can be asked for.
#pragma once

#include <span>
#include <string_view>

namespace locks {

enum class Target {
  kReference,  // scalar, double precision: the definition
  kScalar,     // the SIMD source on one lane
  kAvx2,
  kAvx512,
};

[[nodiscard]] std::string_view target_name(Target target) noexcept;
/// Throws std::invalid_argument with the list of names.
[[nodiscard]] Target parse_target(std::string_view name);
/// Targets that this machine can run, slowest first.
[[nodiscard]] std::span<const Target> supported_targets() noexcept;
/// The fastest supported target, or the one that LOCKS_CPU_TARGET names. Read once; an unknown or unsupported name
/// throws std::invalid_argument at every call.
[[nodiscard]] Target active_target();

}  // namespace locks
