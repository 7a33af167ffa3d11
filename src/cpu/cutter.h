// Cuts one workspace into aligned pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/view.h"

namespace locks {

/// Hands out pieces one behind the other. With null memory it only counts.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::int64_t count) noexcept {
    constexpr std::size_t kAlignment = 64;
    T* const piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  template <class T>
  std::span<T> take_span(std::int64_t count) noexcept {
    T* const piece = take<T>(count);
    return {piece, piece == nullptr ? 0 : static_cast<std::size_t>(count)};
  }
  /// A contiguous view of new memory.
  template <class T, class... Extent>
  View<T, sizeof...(Extent)> take_view(Extent... extent) noexcept {
    return contiguous(take<T>((std::int64_t{1} * ... * static_cast<std::int64_t>(extent))), extent...);
  }
  void skip(std::size_t bytes) noexcept { used_ += bytes; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace locks
