#include "arrays.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace locks::python {
namespace {

struct ElementType {
  const char* name;
  nb::dlpack::dtype dtype;
};
constexpr std::array<ElementType, 7> kElements{{{"float32", {2, 32, 1}},
                                                {"float16", {2, 16, 1}},
                                                {"bfloat16", {4, 16, 1}},
                                                {"int32", {0, 32, 1}},
                                                {"uint8", {1, 8, 1}},
                                                {"int64", {0, 64, 1}},
                                                {"float8_e4m3fn", {10, 8, 1}}}};

const ElementType& type_of(Element element) { return kElements[static_cast<std::size_t>(element)]; }
std::int64_t bytes_of(Element element) { return type_of(element).dtype.bits / 8; }

std::string list_text(const std::int64_t* numbers, std::size_t count, const char* minus_one = "-1") {
  std::string out = "[";
  for (std::size_t i = 0; i < count; ++i)
    out += (i == 0 ? "" : ", ") + (numbers[i] == -1 ? minus_one : std::to_string(numbers[i]));
  return out + "]";
}

std::string got_text(const nb::ndarray<nb::ro>& array) {
  constexpr std::array kKinds{"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const nb::dlpack::dtype dtype = array.dtype();
  std::string out = (dtype.code < kKinds.size() ? kKinds[dtype.code] : "unknown") + std::to_string(dtype.bits * dtype.lanes);
  out += " " + list_text(array.shape_ptr(), array.ndim());
  out += " of strides " + list_text(array.stride_ptr(), array.ndim());
  const int device = array.device_type();
  return device == nb::device::cpu::value ? out : out + " on a device of DLPack type " + std::to_string(device);
}

/// Why an object gives no array, in the words of its own __dlpack__ if it has one.
std::string refusal(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return describe(object) + " without __dlpack__";
  try {
    object.attr("__dlpack__")();
  } catch (const nb::python_error& error) {
    return describe(object) + ", whose __dlpack__ says: " + nb::str(error.value()).c_str();
  }
  return describe(object) + ", whose __dlpack__ gives nothing usable";
}

std::pair<const std::byte*, const std::byte*> extent(const Array& array) {
  std::int64_t first = 0;
  std::int64_t last = 1;
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (array.shape[axis] == 0) return {nullptr, nullptr};
    (array.stride[axis] < 0 ? first : last) += (array.shape[axis] - 1) * array.stride[axis];
  }
  return {array.data + first * bytes_of(array.element), array.data + last * bytes_of(array.element)};
}

/// In ascending order, each stride passes what the smaller ones reach.
bool entries_are_apart(const Array& array) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (array.shape[axis] > 1) axes.emplace_back(std::abs(array.stride[axis]), array.shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (const auto& [stride, entries] : axes) {
    if (stride <= reach) return false;
    reach += (entries - 1) * stride;
  }
  return true;
}

}  // namespace

void fail(const std::string& argument, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(argument + ": expected " + expected + ", got " + got);
}

std::string describe(nb::handle value) {
  if (value.is_none() || PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr())) return nb::repr(value).c_str();
  return std::string("an object of type ") + nb::type_name(value.type()).c_str();
}

int integer(nb::handle value, const char* argument, int least, int most) {
  int out = 0;
  if (nb::try_cast(value, out) && out >= least && out <= most) return out;
  fail(argument, "an integer from " + std::to_string(least) + " to " + std::to_string(most), describe(value));
}

Array array(nb::handle object, const char* argument, std::vector<Element> elements, const std::string& axes,
            const std::vector<std::int64_t>& shape, Access access, Memory memory) {
  const auto expected = [&] {
    std::string text;
    for (const Element element : elements) text += (text.empty() ? "" : " or ") + std::string(type_of(element).name);
    text += " " + axes + " = " + list_text(shape.data(), shape.size(), "any");
    text += std::string(", the last axis contiguous, in ") + (memory == Memory::kCpu ? "the CPU's" : "a CUDA device's");
    text += " memory";
    return access == Access::kWrite ? text + ", writable" : text;
  };
  Array out;
  out.argument = argument;
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    out.owner = nb::ndarray<nb::ro>(writable);
  } else if (!nb::try_cast(object, out.owner, false)) {
    fail(argument, expected(), refusal(object));
  }
  const auto require = [&](bool fits, const char* why = "") {
    if (!fits) fail(argument, expected(), got_text(out.owner) + why);
  };
  const int device = memory == Memory::kCpu ? nb::device::cpu::value : nb::device::cuda::value;
  require(out.owner.is_valid() && out.owner.ndim() == shape.size() && out.owner.device_type() == device);
  const auto element = std::find_if(elements.begin(), elements.end(),
                                    [&](Element wanted) { return type_of(wanted).dtype == out.owner.dtype(); });
  require(element != elements.end());
  out.element = *element;
  out.shape.assign(out.owner.shape_ptr(), out.owner.shape_ptr() + shape.size());
  out.stride.assign(out.owner.stride_ptr(), out.owner.stride_ptr() + shape.size());
  const bool empty = std::find(out.shape.begin(), out.shape.end(), 0) != out.shape.end();
  std::int64_t contiguous = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; contiguous *= std::max<std::int64_t>(out.shape[axis], 1)) {
    require(out.shape[axis] >= 0 && (shape[axis] == -1 || out.shape[axis] == shape[axis]));
    if (empty || out.shape[axis] == 1) out.stride[axis] = contiguous;
  }
  require(out.stride.back() == 1);
  out.data = const_cast<std::byte*>(static_cast<const std::byte*>(out.owner.data()));
  alignas(64) static std::byte nothing[64];
  if (empty) out.data = nothing;
  require(out.data != nullptr, " at a null pointer");
  require(reinterpret_cast<std::uintptr_t>(out.data) % bytes_of(out.element) == 0, " at an unaligned address");
  require(access == Access::kRead || writable.is_valid(), ", read-only");
  require(access == Access::kRead || entries_are_apart(out), ", entries on top of each other");
  return out;
}

Array cache_array(nb::handle object, const char* argument, const std::vector<std::int64_t>& shape, Memory memory) {
  std::vector<Element> elements{Element::kFloat32, Element::kFloat16, Element::kBFloat16};
  if (memory == Memory::kCuda) elements.insert(elements.end(), {Element::kFloat8E4M3, Element::kUInt8});
  return array(object, argument, std::move(elements), "[blocks, block_tokens, kv_heads, head_dim]", shape, Access::kRead,
               memory);
}

DType dtype_of(Element element) {
  static_assert(static_cast<int>(DType::kBF16) == static_cast<int>(Element::kBFloat16));
  return element <= Element::kBFloat16 ? static_cast<DType>(element) : DType::kE4M3;
}

PagedCache Array::cache() const {
  if (shape[1] < kPageTokens || shape[1] % kPageTokens != 0 || shape[1] > (1 << 30)) {
    fail(argument, "blocks of a multiple of 16 tokens", std::to_string(shape[1]));
  }
  const std::int64_t bytes = bytes_of(element);
  const auto tokens = static_cast<int>(shape[1]);
  return {data,
          dtype_of(element),
          shape[0] * (tokens / kPageTokens),
          tokens,
          stride[0] * bytes,
          stride[1] * bytes,
          stride[2] * bytes};
}

void require_apart(const Array& out, std::initializer_list<const Array*> inputs) {
  const auto [out_first, out_last] = extent(out);
  for (const Array* input : inputs) {
    const auto [first, last] = extent(*input);
    if (first < out_last && out_first < last)
      fail(out.argument, std::string("memory apart from ") + input->argument, "some of it");
  }
}

}  // namespace locks::python
