// What the kernels' instructions do (src/cuda/ptx.cuh), on the CPU. Fragments lie in the lanes as described there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace locks::cuda::ptx {

inline float bf16_to_float(std::uint32_t half) { return std::bit_cast<float>(half << 16); }
inline float f16_to_float(unsigned short half) { return _cvtsh_ss(half); }
inline float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x; }

/// A lane's share of a product's operands. Along the depth both have theirs in the same order: which does not matter.
template <class T, int kElements>
struct Operands {
  T a[2][kElements];  // of rows g and g + 8
  T b[kElements];
};
/// sums = start + products; each sum of them is exact, or as exact as a double.
template <class Sum, class T, int kElements, class Result>
void multiply(Result (&sums)[4], const Operands<T, kElements>& own, const Result* start) {
  const Result from[4] = {start[0], start[1], start[2], start[3]};
  emulator::Block::current->exchange(own, [&](const Operands<T, kElements>* lanes, int lane) {
    for (int i = 0; i < 4; ++i) {
      const int row_lane = lane / 4 * 4;
      const int column_lane = (lane % 4 * 2 + i % 2) * 4;
      auto sum = static_cast<Sum>(from[i]);
      for (int j = 0; j < 4; ++j) {
        for (int e = 0; e < kElements; ++e) {
          sum += static_cast<Sum>(lanes[row_lane + j].a[i / 2][e]) * static_cast<Sum>(lanes[column_lane + j].b[e]);
        }
      }
      sums[i] = static_cast<Result>(sum);
    }
    return 0;
  });
}

template <class A, class B>
void multiply_bytes(int (&sums)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const int* start) {
  Operands<std::int16_t, 8> own;
  for (int e = 0; e < 8; ++e) {
    for (int row = 0; row < 2; ++row) own.a[row][e] = static_cast<A>(a[row + e / 4 * 2] >> e % 4 * 8);
    own.b[e] = static_cast<B>(b[e / 4] >> e % 4 * 8);
  }
  multiply<int>(sums, own, start);
}
inline void mma_u8_s8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                      std::uint32_t b0, std::uint32_t b1, const int* start) {
  multiply_bytes<std::uint8_t, std::int8_t>(sums, {a0, a1, a2, a3}, {b0, b1}, start);
}
inline void mma_s8_s8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                      std::uint32_t b0, std::uint32_t b1, const int* start) {
  multiply_bytes<std::int8_t, std::int8_t>(sums, {a0, a1, a2, a3}, {b0, b1}, start);
}
inline void mma_s8_u8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                      std::uint32_t b0, std::uint32_t b1, const int* start) {
  multiply_bytes<std::int8_t, std::uint8_t>(sums, {a0, a1, a2, a3}, {b0, b1}, start);
}

template <class ToFloat>
void multiply_halves(float (&sums)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const float* start,
                     const ToFloat& to_float) {
  Operands<float, 4> own;
  for (int e = 0; e < 4; ++e) {
    const int shift = e % 2 * 16;
    for (int row = 0; row < 2; ++row) own.a[row][e] = to_float(a[row + e / 2 * 2] >> shift & 0xFFFF);
    own.b[e] = to_float(b[e / 2] >> shift & 0xFFFF);
  }
  multiply<double>(sums, own, start);
}
inline void mma_bf16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                     std::uint32_t b0, std::uint32_t b1, const float* start) {
  multiply_halves(sums, {a0, a1, a2, a3}, {b0, b1}, start, bf16_to_float);
}
inline void mma_f16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                    std::uint32_t b0, std::uint32_t b1) {
  multiply_halves(sums, {a0, a1, a2, a3}, {b0, b1}, sums,
                  [](std::uint32_t half) { return f16_to_float(static_cast<unsigned short>(half)); });
}
inline void mma_bf16_k8(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  multiply_halves(sums, {a0, a1, 0, 0}, {b, 0}, sums, bf16_to_float);
}
inline void mma_tf32(float (&sums)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  const auto seen = [](float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xFFFFE000U); };
  multiply<double>(sums, Operands<float, 2>{{{seen(a0), seen(a2)}, {seen(a1), seen(a3)}}, {seen(b0), seen(b1)}}, sums);
}

inline std::uint32_t transpose(std::uint32_t rows) {
  return emulator::Block::current->exchange(rows, [](const std::uint32_t* lanes, int lane) {
    const int g = lane / 4;
    const auto element = [&](int row) { return lanes[4 * row + g / 2] >> g % 2 * 16 & 0xFFFF; };
    return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
  });
}

inline std::uint32_t bf16_bits(float x) { return std::bit_cast<std::uint16_t>(__float2bfloat16_rn(x)); }
inline std::uint32_t f16_bits(float x) { return std::bit_cast<std::uint16_t>(__float2half_rn(x)); }
inline std::uint32_t pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
inline std::uint32_t pack_f16(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }
inline std::uint32_t multiply_f16x2(std::uint32_t a, std::uint32_t b) {
  const auto product = [=](int shift) {
    return f16_to_float(static_cast<unsigned short>(a >> shift)) * f16_to_float(static_cast<unsigned short>(b >> shift));
  };
  return pack_f16(product(0), product(16));
}
inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto sum = [=](int shift) {
    return std::fma(bf16_to_float(a >> shift & 0xFFFF), bf16_to_float(b >> shift & 0xFFFF),  // rounded twice
                    bf16_to_float(c >> shift & 0xFFFF));
  };
  return pack_bf16(sum(0), sum(16));
}

inline float exp2(float x) { return flushed(std::exp2(flushed(x))); }
inline float log2(float x) { return std::log2(std::abs(flushed(x)) == 0.0F ? 0.0F : x); }
inline float reciprocal(float x) { return flushed(1.0F / flushed(x)); }
inline float reciprocal_root(float x) { return 1.0F / std::sqrt(flushed(x)); }
inline float max_nan(float x, float y) { return std::isnan(x) || x > y ? x : y; }

inline std::uint32_t permute(std::uint32_t first, std::uint32_t second, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{second} << 32 | first;
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t by = selector >> 4 * i & 15;
    auto byte = static_cast<std::uint32_t>(bytes >> 8 * (by & 7) & 0xFF);
    if (by >= 8) byte = byte >= 128 ? 0xFF : 0;
    word |= byte << 8 * i;
  }
  return word;
}

inline float load_shared(std::uint32_t address) {
  return *reinterpret_cast<const float*>(emulator::Block::current->at_address(address, sizeof(float)));
}
inline void meet_of_two_warps(int barrier) { emulator::Block::current->meet_some(barrier, 64); }

inline void copy_async(std::byte* shared, const std::byte* global, bool wanted) {
  emulator::Block& block = *emulator::Block::current;
  if (wanted) block.begin_copy({block.at_address(block.address_of(shared), emulator::Copy::kBytes), global});
}
inline void copy_below(std::uint32_t shared, const std::byte* global, int at, int end) {
  if (at < end) copy_async(emulator::Block::current->at_address(shared, 16), global, true);
}
inline void commit_copies() { emulator::Block::current->commit_copies(); }
template <int kPending>
void wait_copies() {
  emulator::Block::current->wait_copies(kPending);
}

}  // namespace locks::cuda::ptx
