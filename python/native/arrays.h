// What Python hands over, checked and seen as the library sees it. Every mistake is std::invalid_argument, which becomes a
// ValueError: the argument, what was expected and what came.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "locks/paged_cache.h"
#include "locks/view.h"

namespace locks::python {

namespace nb = nanobind;

[[noreturn]] void fail(const std::string& argument, const std::string& expected, const std::string& got);
std::string describe(nb::handle value);

template <class T>
T cast(nb::handle value, const char* argument, const char* expected) {
  T out{};
  if (!nb::try_cast(value, out)) fail(argument, expected, describe(value));
  return out;
}
int integer(nb::handle value, const char* argument, int least, int most);

enum class Element : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt32, kUInt8, kInt64, kFloat8E4M3 };
/// Of caches, and of rows that are copied; uint8 is e4m3 by its bits, as engines hand it over.
[[nodiscard]] DType dtype_of(Element element);

/// An array, kept alive. Strides count elements. The last axis is contiguous; an axis that has at most
/// one entry has the stride of a contiguous array, whatever it came with.
struct Array {
  const char* argument = "";
  nb::ndarray<nb::ro> owner;
  Element element{};
  std::byte* data = nullptr;  // not null, but without entries it may point anywhere
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;

  template <class T, int N>
  [[nodiscard]] View<T, N> view() const {
    View<T, N> out{reinterpret_cast<T*>(data), {}, {}};
    std::copy_n(shape.begin(), N, out.shape.begin());
    std::copy_n(stride.begin(), N, out.stride.begin());
    return out;
  }
  template <class T = std::int32_t>
  [[nodiscard]] std::span<const T> numbers() const {  // of an array of one axis
    return {reinterpret_cast<const T*>(data), static_cast<std::size_t>(shape[0])};
  }
  [[nodiscard]] PagedCache cache() const;  // of cache_array()
};

enum class Access : bool { kRead, kWrite };
enum class Memory : std::uint8_t { kCpu, kCuda };

/// In `shape`, -1 takes anything. What is written must have no two entries at one address.
[[nodiscard]] Array array(nb::handle object, const char* argument, std::vector<Element> elements, const std::string& axes,
                          const std::vector<std::int64_t>& shape, Access access = Access::kRead,
                          Memory memory = Memory::kCpu);
/// Keys or values: [blocks, block_tokens, kv_heads, head_dim]. e4m3 is for CUDA.
[[nodiscard]] Array cache_array(nb::handle object, const char* argument, const std::vector<std::int64_t>& shape,
                                Memory memory = Memory::kCpu);
/// Compares first and last addresses: interleaved arrays overlap.
void require_apart(const Array& out, std::initializer_list<const Array*> inputs);

}  // namespace locks::python
