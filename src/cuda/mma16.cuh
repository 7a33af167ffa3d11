// Tensor-core products of 16-bit numbers, and copies to shared memory that nobody waits for. All of it exists since compute
// capability 8.0.
//
// Fragments of lane 4 g + t (g 0..7, t 0..3), two 16-bit numbers a register:
//   a [16 x 16]   {row g, columns 2t 2t+1}, {row g+8, same}, {row g, columns 2t+8 2t+9}, {row g+8, same}
//   b [16 x 8]    {rows 2t 2t+1, column g}, {rows 2t+8 2t+9, column g}
//   c [16 x 8]    {row g, columns 2t 2t+1}, {row g+8, same}; floats
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace locks::cuda::mma16 {

/// c += a b
__device__ __forceinline__ void multiply_f16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four 8 x 8 matrices, whose rows of 16 bytes lie where lanes 0-7, 8-15, 16-23 and 24-31 say.
__device__ __forceinline__ void load_matrices(std::uint32_t (&a)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&a)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}
/// Two of them, where lanes 0-7 and 8-15 say.
__device__ __forceinline__ void load_matrices(std::uint32_t (&a)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(a[0]), "=r"(a[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&a)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(a[0]), "=r"(a[1])
               : "r"(address)
               : "memory");
}
/// An 8 x 8 matrix held as half a c fragment becomes half a b fragment.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t pair) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// A float is the sum of its parts: bf16 takes three, cut off and so exact (but for what is below the smallest bf16); f16
// takes two, rounded, which leaves 2^-23 of it and 2^-25. Parts of {x, y} are packed, x in the low half.
__device__ __forceinline__ void split(std::uint32_t (&parts)[3], float x, float y) {
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const std::uint32_t x_bits = __float_as_uint(x);
    const std::uint32_t y_bits = __float_as_uint(y);
    parts[part] = __byte_perm(x_bits, y_bits, 0x7632);
    if (part < 2) {
      x = __fsub_rn(x, __uint_as_float(x_bits & 0xFFFF0000U));
      y = __fsub_rn(y, __uint_as_float(y_bits & 0xFFFF0000U));
    }
  }
}
__device__ __forceinline__ void split(std::uint32_t (&parts)[2], float x, float y) {
  const __half2 high = __floats2half2_rn(x, y);
  const float2 taken = __half22float2(high);
  const __half2 low = __floats2half2_rn(__fsub_rn(x, taken.x), __fsub_rn(y, taken.y));
  parts[0] = *reinterpret_cast<const std::uint32_t*>(&high);
  parts[1] = *reinterpret_cast<const std::uint32_t*>(&low);
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
/// 16 bytes, or as many zeros if `wanted` is false; the source is not read then.
__device__ __forceinline__ void copy_async(std::uint32_t shared, const std::byte* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(global), "r"(wanted ? 16 : 0)
               : "memory");
}
/// Closes a group of copies, perhaps an empty one.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `kGroups` of this thread's last groups are under way.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace locks::cuda::mma16
