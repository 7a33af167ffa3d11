// One random case of `locks verify`: a shape, made data, and every stage on every target against the reference.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "locks/target.h"

namespace locks::cli {

struct CaseResult {
  std::string shape;                 // what was tried, for people
  std::optional<std::string> fault;  // the first: target, stage, place, got, want and bound
  bool on_cuda = false;              // it was tried on the GPU
};

/// The same seed and number give the same case on every machine. `cuda`: on the current GPU too, if it takes such caches.
[[nodiscard]] CaseResult verify_case(std::uint64_t seed, std::uint64_t number, std::span<const Target> targets, bool cuda);

}  // namespace locks::cli
