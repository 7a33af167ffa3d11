// A borrowed, strided N-dimensional array. Strides count elements and may be anything.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace locks {

template <class T, int N>
struct View {
  T* data = nullptr;
  std::array<std::int64_t, N> shape{};
  std::array<std::int64_t, N> stride{};

  template <class... Index>
    requires(sizeof...(Index) <= N)
  [[nodiscard]] constexpr T* at(Index... index) const noexcept {
    std::int64_t offset = 0;
    int axis = 0;
    ((offset += static_cast<std::int64_t>(index) * stride[axis++]), ...);
    return data + offset;
  }
  template <class... Index>
    requires(sizeof...(Index) == N)
  [[nodiscard]] constexpr T& operator()(Index... index) const noexcept {
    return *at(index...);
  }
  template <class Const>
    requires std::is_same_v<Const, const T>
  constexpr operator View<Const, N>() const noexcept {
    return {data, shape, stride};
  }
};

/// A row-major view without gaps.
template <class T, class... Extent>
[[nodiscard]] constexpr View<T, sizeof...(Extent)> contiguous(T* data, Extent... extent) noexcept {
  constexpr int kAxes = sizeof...(Extent);
  View<T, kAxes> view{data, {static_cast<std::int64_t>(extent)...}, {}};
  std::int64_t step = 1;
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    view.stride[axis] = step;
    step *= view.shape[axis];
  }
  return view;
}

}  // namespace locks
