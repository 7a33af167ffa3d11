#include "locks/types.h"

namespace locks {

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kE4M3:
      return "e4m3";
  }
  return "unknown";
}

}  // namespace locks
