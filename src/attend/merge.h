// The one way in which softmax states become one.
#pragma once

#include <cmath>
#include <limits>

namespace locks::attend_work {

/// A state seen as its parts, wherever they lie.
struct StateParts {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;  // [head_dim]
};

/// Order does not matter, down to the bits. A state that saw nothing (-infinity, 0) changes nothing; one whose sum is NaN
/// makes the result NaN whatever its max.
inline void merge(const StateParts& into, const StateParts& from, int head_dim) noexcept {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (*from.max == kNone && *from.sum == 0.0F) return;
  const float max = *into.max < *from.max ? *from.max : *into.max;
  const float into_scale = *into.max == max ? 1.0F : std::exp(*into.max - max);
  const float from_scale = *from.max == max ? 1.0F : std::exp(*from.max - max);
  *into.max = max;
  *into.sum = *into.sum * into_scale + *from.sum * from_scale;
  for (int dim = 0; dim < head_dim; ++dim) into.out[dim] = into.out[dim] * into_scale + from.out[dim] * from_scale;
}

}  // namespace locks::attend_work
