// The instructions that CUDA C++ has no name for. All of them exist since compute capability 8.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace locks::cuda::ptx {

// Fragments of a tile of 16 rows and 8 columns, for lane 4 g + j (g 0..7, j 0..3):
//   sums      {row g column 2j, row g column 2j + 1, row g + 8 column 2j, row g + 8 column 2j + 1}
//   8 bits    a: 4 j ... 4 j + 3 of rows g and g + 8, then 16 + 4 j ... of both; b: 4 j ... and 16 + 4 j ... of column g
//   16 bits   a: 2 j, 2 j + 1 of rows g and g + 8, then 8 + 2 j, 9 + 2 j of both; b: 2 j, 2 j + 1 and 8 + 2 j, 9 + 2 j of
//   column g

/// sums = start + products; the same registers will do. Unsigned codes meet signed ones; integer sums are exact.
__device__ __forceinline__ void mma_u8_s8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                          std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, const int* start) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]), "r"(start[2]), "r"(start[3]));
}
__device__ __forceinline__ void mma_s8_s8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                          std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, const int* start) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]), "r"(start[2]), "r"(start[3]));
}
__device__ __forceinline__ void mma_s8_u8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                          std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, const int* start) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start[0]), "r"(start[1]), "r"(start[2]), "r"(start[3]));
}
__device__ __forceinline__ void mma_bf16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, const float* start) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(start[0]), "f"(start[1]), "f"(start[2]), "f"(start[3]));
}

/// sums += a b
__device__ __forceinline__ void mma_f16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// sums += a b, of 16 rows and a depth of 8: halves of the fragments of 16.
__device__ __forceinline__ void mma_bf16_k8(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a0), "r"(a1), "r"(b));
}
/// sums [16 x 8] += a [16 x 8] b [8 x 8]; 11 significant bits of a and b count. Lane 4 g + t: a has rows g, g + 8 of column
/// t, then of column t + 4; b has rows t, t + 4 of column g; sums as everywhere.
__device__ __forceinline__ void mma_tf32(float (&sums)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/// Of a matrix of 8 x 8 halves, two of row g in lane 4 g + j, the transpose.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t rows) {
  std::uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

/// Two bf16, the first in the low half, rounded to nearest even.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// Two f16, as above.
__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float f16_to_float(unsigned short half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}
__device__ __forceinline__ std::uint32_t multiply_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
/// a * b + c in each half, rounded once.
__device__ __forceinline__ std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

/// 2^x within 2^-22 of it; results below 2^-126 are 0.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// log2 x within 2^-22, of 1 or of the result, whichever is more.
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Not a number if one of them is not.
__device__ __forceinline__ float max_nan(float x, float y) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}

/// Bytes of the two words as the selector's four bits say: with 8 added, the byte's sign eight times.
__device__ __forceinline__ std::uint32_t permute(std::uint32_t first, std::uint32_t second, std::uint32_t selector) {
  std::uint32_t word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(second), "r"(selector));
  return word;
}

__device__ __forceinline__ float load_shared(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
/// Two warps of the block meet. Barrier 0 is that of __syncthreads().
__device__ __forceinline__ void meet_of_two_warps(int barrier) {
  asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
}

/// 16 bytes from global to shared memory, past the L1 cache, without waiting, if `wanted`. Predicated here, so that no
/// branch divides the warp.
__device__ __forceinline__ void copy_async(std::byte* shared, const std::byte* global, bool wanted) {
  asm volatile(
      "{\n"
      "  .reg .pred wanted;\n"
      "  setp.ne.b32 wanted, %2, 0;\n"
      "  @wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}"
      :
      : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "l"(global), "r"(static_cast<int>(wanted))
      : "memory");
}
/// The same, if `at` is below `end`.
__device__ __forceinline__ void copy_below(std::uint32_t shared, const std::byte* global, int at, int end) {
  asm volatile(
      "{\n"
      "  .reg .pred wanted;\n"
      "  setp.lt.s32 wanted, %2, %3;\n"
      "  @wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}"
      :
      : "r"(shared), "l"(global), "r"(at), "r"(end)
      : "memory");
}
/// Closes a group of this thread's copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/// Waits until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

}  // namespace locks::cuda::ptx
