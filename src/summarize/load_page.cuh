// From the cache to a rotated page in the registers of a warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/e4m3.cuh"
#include "summarize/fragments.cuh"
#include "summarize/steps.cuh"
#include "summarize/summarize_launch.h"

namespace locks::cuda::summarize_stage {

/// Larger components (after rotation) count like those that are not finite (records.h).
constexpr float kLargestComponent = 0x1p100F;

__device__ __forceinline__ const std::byte* row_of(const CacheRows& cache, int page, int token, int kv_head) {
  const std::byte* const head = cache.data + kv_head * cache.head_stride;
  if (cache.page_slots != nullptr)
    return head + cache.page_slots[std::int64_t{page} * kPageTokens + token] * cache.token_stride;
  const auto number = static_cast<unsigned>(page);
  const unsigned block = number / cache.pages_per_block;
  const std::int64_t in_block = std::int64_t{number - block * cache.pages_per_block} * kPageTokens + token;
  return head + block * cache.block_stride + in_block * cache.token_stride;
}

/// 16 bytes of a row, which begins anywhere unless `aligned`.
__device__ __forceinline__ uint4 load_16_bytes(const std::byte* from, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint4*>(from));
  std::uint32_t words[4];
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pack_bytes(bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint2 load_8_bytes(const std::byte* from, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint2*>(from));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  return make_uint2(pack_bytes(bytes[0], bytes[1], bytes[2], bytes[3]), pack_bytes(bytes[4], bytes[5], bytes[6], bytes[7]));
}

/// Components 32 j + 8 t ... of this lane's two rows, as they lie: kWords 32-bit words a chunk, to `store(row, j, w, word)`.
template <int kHeadDim, int kWords, class Store>
__device__ __forceinline__ void load_words(const std::byte* const (&rows)[2], bool aligned, int t, const Store& store) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
      const std::byte* const from = rows[r] + 4 * kWords * (4 * j + t);
#pragma unroll
      for (int w = 0; w < kWords; w += 4) {
        uint4 four = make_uint4(0, 0, 0, 0);
        if (inside<kHeadDim>(j, t)) four = load_16_bytes(from + 4 * w, aligned);
        store(r, j, w, four.x);
        store(r, j, w + 1, four.y);
        store(r, j, w + 2, four.z);
        store(r, j, w + 3, four.w);
      }
    }
  }
}

/// The same of e4m3, as pairs of f16.
template <int kHeadDim>
__device__ __forceinline__ void load_e4m3_words(const std::byte* const (&rows)[2], bool aligned, int t,
                                                std::uint32_t (&words)[2][kChunks<kHeadDim>][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
      const std::byte* const from = rows[r] + 8 * (4 * j + t);
      uint2 eight = make_uint2(0, 0);
      if (inside<kHeadDim>(j, t)) eight = load_8_bytes(from, aligned);
      e4m3_to_f16(eight.x, words[r][j][0], words[r][j][1]);
      e4m3_to_f16(eight.y, words[r][j][2], words[r][j][3]);
    }
  }
}

/// Two 16-bit numbers are multiplied by +-1 each: bit 0 of `negative` for the low one, bit 1 for the high one.
__device__ __forceinline__ std::uint32_t flip_signs(std::uint32_t pair, std::uint32_t negative) {
  return pair ^ (negative * 0x40008000U & 0x80008000U);
}

template <bool kBf16>
__device__ __forceinline__ void mma_16_bits(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                            std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kBf16) {
    ptx::mma_bf16(sums, a0, a1, a2, a3, b0, b1, sums);
  } else {
    ptx::mma_f16(sums, a0, a1, a2, a3, b0, b1);
  }
}

/// Signs of a Hadamard matrix of 16 as the right operand of mma_16_bits: its rows are inputs (bits 0, 1: i; bits 2, 3: lane
/// t), its columns outputs in the same order, for output i = 2 n + (g & 1) of lane t = g / 2. `lanes` is 4, or 2 for a block
/// of eight.
template <bool kBf16>
__device__ __forceinline__ void hadamard_operand(int lane, int lanes, std::uint32_t (&b)[2][2]) {
  constexpr std::uint32_t kOnes = kBf16 ? 0x3F803F80U : 0x3C003C00U;
  const int from = lane % 4;
  const int to = lane / 8;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int i = 2 * n + (lane / 4 & 1);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const std::uint32_t low = __popc(2 * pair & i) + __popc(from & to) & 1;
      const std::uint32_t high = __popc((2 * pair + 1) & i) + __popc(from & to) & 1;
      b[n][pair] = from < lanes && to < lanes ? flip_signs(kOnes, low | high << 1) : 0U;
    }
  }
}

/// The rotation but for its last butterflies, on 16-bit words. Products with +-1 are exact, their sums are float; but tensor
/// cores may take denormal bf16 numbers, and sums as small, for zeros.
template <bool kBf16, int kHeadDim>
__device__ __forceinline__ void rotate_words(const std::uint32_t (&words)[2][kChunks<kHeadDim>][4], const Signs& signs,
                                             int lane, PageFragment<kHeadDim>& page) {
  const int t = lane % 4;
  std::uint32_t whole[2][2];
  std::uint32_t halved[2][2];
  hadamard_operand<kBf16>(lane, 4, whole);
  if constexpr (kHeadDim % 32 != 0) hadamard_operand<kBf16>(lane, 2, halved);
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
    const std::uint32_t negative = signs.negative[j] >> 8 * t & 0xFFU;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = flip_signs(words[i & 1][j][2 * half + i / 2], negative >> (4 * half + 2 * (i / 2)));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
        if (kHeadDim % 32 != 0 && j + 1 == kChunks<kHeadDim>) {
          mma_16_bits<kBf16>(sums, a[0], a[1], a[2], a[3], halved[n][0], halved[n][1]);
        } else {
          mma_16_bits<kBf16>(sums, a[0], a[1], a[2], a[3], whole[n][0], whole[n][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) page.x[i / 2][j][4 * half + 2 * n + i % 2] = sums[i];
      }
    }
  }
}

/// The same on floats.
template <int kHeadDim>
__device__ __forceinline__ void rotate_floats(const Signs& signs, int lane, PageFragment<kHeadDim>& page) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
      float(&x)[8] = page.x[r][j];
      const std::uint32_t negative = signs.negative[j] >> 8 * t;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(__float_as_uint(x[i]) ^ negative >> i << 31);
#pragma unroll
      for (int half = 1; half < 4; half *= 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((i & half) != 0) continue;
          const float a = x[i];
          x[i] = a + x[i + half];
          x[i + half] = a - x[i + half];
        }
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        if (step == 2 && kHeadDim % 32 != 0 && j + 1 == kChunks<kHeadDim>) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float other = __shfl_xor_sync(kAll, x[i], step);
          x[i] = (t & step) != 0 ? other - x[i] : x[i] + other;
        }
      }
    }
  }
}

/// Chunks that are transformed together first: the largest power of two.
template <int kHeadDim>
inline constexpr int kFirstChunks = kHeadDim >= 256   ? 8
                                    : kHeadDim >= 128 ? 4
                                                      : 2;

/// The butterflies of dimensions 4 and of 32 or more apart, and the factor of the second block next to the first one's.
template <int kHeadDim>
__device__ __forceinline__ void finish_rotation(PageFragment<kHeadDim>& page) {
  constexpr int kFirst = kFirstChunks<kHeadDim>;
  constexpr int kRest = kHeadDim - 32 * kFirst;
  constexpr float kRestFactor = kRest == 16 ? 2.0F : 1.41421356237F;  // 64 + 16, and 64 + 32 or 128 + 64
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = page.x[r][j][i];
        page.x[r][j][i] = a + page.x[r][j][i + 4];
        page.x[r][j][i + 4] = a - page.x[r][j][i + 4];
      }
    }
#pragma unroll
    for (int apart = 1; apart < kFirst; apart *= 2) {
#pragma unroll
      for (int j = 0; j < kChunks<kHeadDim>; ++j) {
        const int partner = j + apart;
        if ((j & apart) != 0 || partner >= kChunks<kHeadDim> || (j >= kFirst && 32 * apart >= kRest)) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float a = page.x[r][j][i];
          page.x[r][j][i] = a + page.x[r][partner][i];
          page.x[r][partner][i] = a - page.x[r][partner][i];
        }
      }
    }
#pragma unroll
    for (int j = kFirst; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) page.x[r][j][i] *= kRestFactor;
    }
  }
}

template <bool kBf16, int kHeadDim>
__device__ __forceinline__ void load_16_bit_page(const std::byte* const (&rows)[2], bool is_e4m3, bool aligned, bool rotate,
                                                 const Signs& signs, int lane, PageFragment<kHeadDim>& page) {
  std::uint32_t words[2][kChunks<kHeadDim>][4];
  if (!kBf16 && is_e4m3) {
    load_e4m3_words<kHeadDim>(rows, aligned, lane % 4, words);
  } else {
    load_words<kHeadDim, 4>(rows, aligned, lane % 4,
                            [&words](int r, int j, int w, std::uint32_t word) { words[r][j][w] = word; });
  }
  if (rotate) {
    rotate_words<kBf16, kHeadDim>(words, signs, lane, page);
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t pair = words[r][j][i / 2];
        if constexpr (kBf16) {
          page.x[r][j][i] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
        } else {
          const auto half = static_cast<unsigned short>(i % 2 == 0 ? pair : pair >> 16);
          page.x[r][j][i] = ptx::f16_to_float(half);
        }
      }
    }
  }
}

/// What the rotation's unfinished factor 1 / sqrt(block) of the first block is.
template <int kHeadDim>
inline constexpr float kUnit = kFirstChunks<kHeadDim> == 2   ? 0.125F
                               : kFirstChunks<kHeadDim> == 4 ? 0.0883883476F
                                                             : 0.0625F;
template <int kHeadDim>
inline constexpr float kInverseUnit = kFirstChunks<kHeadDim> == 2   ? 8.0F
                                      : kFirstChunks<kHeadDim> == 4 ? 11.3137085F
                                                                    : 16.0F;

/// Loads one page of one head, rotated. What components must be multiplied by to be what they stand for is kUnit, if
/// `rotated`; 2^-exponent brings them near 32. False for all lanes if a component is not finite or too large.
template <int kHeadDim>
__device__ __forceinline__ bool load_page(const CacheRows& cache, int page_number, int kv_head, bool rotated,
                                          const Signs& signs, int lane, PageFragment<kHeadDim>& page, int& exponent) {
  const std::byte* const rows[2] = {row_of(cache, page_number, lane / 4, kv_head),
                                    row_of(cache, page_number, lane / 4 + 8, kv_head)};
  const float unit = rotated ? kUnit<kHeadDim> : 1.0F;
  if (cache.dtype == DType::kF32) {
    load_words<kHeadDim, 8>(rows, cache.aligned, lane % 4,
                            [&page](int r, int j, int w, std::uint32_t word) { page.x[r][j][w] = __uint_as_float(word); });
    if (rotated) rotate_floats<kHeadDim>(signs, lane, page);
  } else if (cache.dtype == DType::kBF16) {
    load_16_bit_page<true, kHeadDim>(rows, false, cache.aligned, rotated, signs, lane, page);
  } else {
    load_16_bit_page<false, kHeadDim>(rows, cache.dtype == DType::kE4M3, cache.aligned, rotated, signs, lane, page);
  }
  if (rotated) finish_rotation<kHeadDim>(page);
  if (cache.scale != nullptr) {
    const float scale = __ldg(cache.scale);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) page.x[r][j][i] *= scale;
      }
    }
  }
  float most = 0.0F;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) most = ptx::max_nan(most, fabsf(page.x[r][j][i]));
    }
  }
  most = largest_of_warp(most) * unit;
  if (!(most <= kLargestComponent)) return false;
  exponent = most == 0.0F ? 0 : max(static_cast<int>(__float_as_uint(most) >> 23) - 132, -126);
  return true;
}

}  // namespace locks::cuda::summarize_stage
