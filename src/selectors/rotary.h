// The rotary position embedding of a model, to take it off keys and to put it on again.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "locks/selector.h"

namespace locks::selectors {

class Rotary {
 public:
  Rotary(const RopeConfig& rope, int head_dim) : interleaved_(rope.interleaved) {
    const int dims = rope.dims > 0 ? rope.dims : head_dim;
    for (int i = 0; i < dims / 2; ++i) frequencies_.push_back(std::pow(rope.base, -2.0 * i / dims));
  }

  /// Turns one head's row as the embedding does at this position; a negative one turns back.
  void turn(int position, float* row) const {
    const std::size_t pairs = frequencies_.size();
    for (std::size_t i = 0; i < pairs; ++i) {
      float& x = row[interleaved_ ? 2 * i : i];
      float& y = row[interleaved_ ? 2 * i + 1 : i + pairs];
      const double angle = position * frequencies_[i];
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(std::sin(angle));
      const float turned = x * cosine - y * sine;
      y = x * sine + y * cosine;
      x = turned;
    }
  }

 private:
  bool interleaved_;
  std::vector<double> frequencies_;  // radians a position
};

}  // namespace locks::selectors
