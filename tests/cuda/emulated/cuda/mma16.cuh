// What the kernels' instructions do (src/cuda/mma16.cuh), on the CPU.
#pragma once

#include <cuda_fp16.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/ptx.cuh"

namespace locks::cuda::mma16 {

inline void multiply_f16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  ptx::mma_f16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
}
inline void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  ptx::mma_bf16(c, a[0], a[1], a[2], a[3], b[0], b[1], c);
}

/// Halves of rows of 16 bytes, whose addresses the lanes give: all of a matrix are there when one is read.
template <int kMatrices>
void load_matrices_from(std::uint32_t (&a)[kMatrices], std::uint32_t address, bool transposed) {
  emulator::Block::current->exchange(address, [&](const std::uint32_t* rows, int lane) {
    const auto element = [&](int matrix, int row, int column) {
      std::uint16_t half;
      std::memcpy(&half, emulator::Block::current->at_address(rows[8 * matrix + row], 16) + 2 * column, sizeof(half));
      return std::uint32_t{half};
    };
    const int g = lane / 4;
    const int two = lane % 4 * 2;
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      a[matrix] = transposed ? element(matrix, two, g) | element(matrix, two + 1, g) << 16
                             : element(matrix, g, two) | element(matrix, g, two + 1) << 16;
    }
    return 0;
  });
  __syncwarp();  // nobody writes before all have read
}
inline void load_matrices(std::uint32_t (&a)[4], std::uint32_t address) { load_matrices_from(a, address, false); }
inline void load_transposed(std::uint32_t (&a)[4], std::uint32_t address) { load_matrices_from(a, address, true); }
inline void load_matrices(std::uint32_t (&a)[2], std::uint32_t address) { load_matrices_from(a, address, false); }
inline void load_transposed(std::uint32_t (&a)[2], std::uint32_t address) { load_matrices_from(a, address, true); }
inline std::uint32_t transpose(std::uint32_t pair) { return ptx::transpose(pair); }

inline void split(std::uint32_t (&parts)[3], float x, float y) {
  for (std::uint32_t& part : parts) {
    const std::uint32_t x_bits = __float_as_uint(x);
    const std::uint32_t y_bits = __float_as_uint(y);
    part = x_bits >> 16 | (y_bits & 0xFFFF0000U);
    x -= __uint_as_float(x_bits & 0xFFFF0000U);
    y -= __uint_as_float(y_bits & 0xFFFF0000U);
  }
}
inline void split(std::uint32_t (&parts)[2], float x, float y) {
  for (std::uint32_t& part : parts) {
    part = ptx::pack_f16(x, y);
    x -= ptx::f16_to_float(static_cast<unsigned short>(part));
    y -= ptx::f16_to_float(static_cast<unsigned short>(part >> 16));
  }
}

inline std::uint32_t shared_address(const void* pointer) { return __cvta_generic_to_shared(pointer); }
inline void copy_async(std::uint32_t shared, const std::byte* global, bool wanted) {
  emulator::Block::current->begin_copy({emulator::Block::current->at_address(shared, 16), wanted ? global : nullptr});
}
inline void commit_copies() { ptx::commit_copies(); }
template <int kGroups>
void wait_copies() {
  ptx::wait_copies<kGroups>();
}

}  // namespace locks::cuda::mma16
