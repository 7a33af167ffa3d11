// A page's directions: rows of a [rank, head_dim] matrix, eight ranks at a time, rank 8 h + g in lanes 4 g ... 4 g + 3.
#pragma once

#include <cstdint>

#include "summarize/eigenvectors.cuh"
#include "summarize/fragments.cuh"
#include "summarize/steps.cuh"
#include "summarize/summarize_launch.h"

namespace locks::cuda::summarize_stage {

/// A direction with less than this share of the first one's energy is dropped (records.h).
constexpr float kNullEnergy = 1e-7F;
/// Floats of a row of the normal equations [rank, 32]: a column a lane, `rank` of the matrix and 16 right-hand sides.
constexpr int kSystemStride = 32;

/// This lane's components of one rank.
template <int kHeadDim>
struct RankRow {
  float x[kChunks<kHeadDim>][8];
};

/// row = weights . rows: `weights` [rank, 20] has a row a rank, `rows` are the page's deviations [16, head_dim]. The weights
/// go in as two rows of the product's left operand, what the tensor core sees of them and the rest; the deviations in turn.
template <int kHeadDim>
__device__ __forceinline__ void project(const float* weights, int rank, float* rows, int lane, RankRow<kHeadDim>& row) {
  const int g = lane / 4;
  const int t = lane % 4;
  float a[2][4];  // tokens t and t + 4, or t + 8 and t + 12
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float weight = g < rank ? weights[g * kVectorStride + 8 * half + 4 * k + t] : 0.0F;
      a[half][2 * k] = high_part(weight);
      a[half][2 * k + 1] = weight - a[half][2 * k];
    }
  }
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
    float tokens[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 four = *quarter_of<kHeadDim>(rows, 4 * k + t, 8 * j + g);
      tokens[k][0] = four.x;
      tokens[k][1] = four.y;
      tokens[k][2] = four.z;
      tokens[k][3] = four.w;
    }
    // Column g of a product is dimension 32 j + 4 g + i, so that lane t gets 32 j + 8 t + i and 4 more.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float first = high_part(tokens[2 * half][i]);
        const float second = high_part(tokens[2 * half + 1][i]);
        mma_tf32(sums, a[half][0], a[half][1], a[half][2], a[half][3], first, second);
        mma_tf32(sums, a[half][0], a[half][1], a[half][2], a[half][3], tokens[2 * half][i] - first,
                 tokens[2 * half + 1][i] - second);
      }
      row.x[j][i] = sums[0] + sums[2];
      row.x[j][i + 4] = sums[1] + sums[3];
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ float energy_of(const RankRow<kHeadDim>& row) {
  float sums[2] = {0.0F, 0.0F};
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i % 2] = fmaf(row.x[j][i], row.x[j][i], sums[i % 2]);
  }
  return sum_of_four(sums[0] + sums[1]);
}

/// Eight codes of chunk j to `codes` [rank, 32 chunks]; zeros past the head.
template <int kHeadDim>
__device__ __forceinline__ void store_codes(const Code (&code)[8], int rank, int j, int t, std::byte* codes) {
  uint2 packed = make_uint2(pack_bytes(code[0].bits, code[1].bits, code[2].bits, code[3].bits),
                            pack_bytes(code[4].bits, code[5].bits, code[6].bits, code[7].bits));
  if (!inside<kHeadDim>(j, t)) packed = make_uint2(0, 0);
  *reinterpret_cast<uint2*>(codes + rank * kRowFloats<kHeadDim> + 32 * j + 8 * t) = packed;
}

/// Quantises rank `rank` of the basis, whose row must be multiplied by `factor` to be a unit vector, in place: what the
/// codes mean, in steps. Returns the step.
template <int kHeadDim>
__device__ __forceinline__ float quantise_basis(const Args& args, int rank, float factor, int lane, RankRow<kHeadDim>& row,
                                                std::byte* codes, std::byte* record) {
  const int t = lane % 4;
  const bool four_bits = (args.four_bit_quads >> rank / 4 & 1U) != 0;
  const float half = four_bits ? 8.0F : 2.0F;
  const bool stored = rank < args.rank;
  float step = four_bits ? args.step4 : args.step2;
  float inverse = reciprocal(step);
  if (args.basis_has_scales) {
    float largest = 0.0F;
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(row.x[j][i]));
    }
    const StoredStep scale =
        stored_step(largest_of_four(largest) * factor * (four_bits ? 1.0F / 7.0F : 1.0F), make_scale(1.0F, 1.0F, 0));
    step = scale.scaled;
    inverse = scale.inverse;
    if (stored && t == 0) {
      *reinterpret_cast<std::uint16_t*>(record + args.at.basis_scales_at + 2 * rank) =
          static_cast<std::uint16_t>(scale.bits);
    }
  }
  inverse *= factor;
  const auto quantise = [&](const auto& code_of) {
#pragma unroll
    for (int j = 0; j < kChunks<kHeadDim>; ++j) {
      Code code[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        code[i] = code_of(row.x[j][i]);
        row.x[j][i] = code[i].meaning;
      }
      if (stored) store_codes<kHeadDim>(code, rank, j, t, codes);
    }
  };
  if (args.basis_has_scales) {
    quantise([inverse, half](float x) { return mid_tread(x, inverse, half); });
  } else {
    quantise([inverse, half](float x) { return mid_rise(x, inverse, half); });
  }
  return step;
}

/// Right-hand sides of the normal equations, of eight ranks from `first` on: basis . deviations^T.
template <int kHeadDim>
__device__ __forceinline__ void multiply_by_basis(float* rows, const RankRow<kHeadDim>& basis, const float* steps, int first,
                                                  int rank, int lane, float* system) {
  float sums[4] = {};
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
    float x[2][8];
    load_chunk<kHeadDim>(rows, j, lane, x);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float a0 = high_part(x[0][i]);
      const float a1 = high_part(x[1][i]);
      const float a2 = high_part(x[0][i + 1]);
      const float a3 = high_part(x[1][i + 1]);
      mma_tf32(sums, a0, a1, a2, a3, basis.x[j][i], basis.x[j][i + 1]);
      mma_tf32(sums, x[0][i] - a0, x[1][i] - a1, x[0][i + 1] - a2, x[1][i + 1] - a3, basis.x[j][i], basis.x[j][i + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 2 * (lane % 4) + i % 2;
    if (row < rank) system[row * kSystemStride + rank + lane / 4 + 8 * (i / 2)] = sums[i] * steps[row];
  }
}

__device__ __forceinline__ void mma_s8(int (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                       std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The matrix of the normal equations: basis . basis^T, exactly but for the steps, from the codes: the sum of (c - z) (c' -
/// z') is that of c c', less z times that of c', less z' times that of c, plus head_dim z z'.
template <int kHeadDim>
__device__ __forceinline__ void multiply_codes(const Args& args, const std::byte* codes, const float* steps, int lane,
                                               float* system) {
  constexpr std::uint32_t kOnes = 0x01010101U;
  const int g = lane / 4;
  const int t = lane % 4;
  int sums[2][4] = {};    // ranks g and g + 8 by ranks 8 n + 2 t and one more
  int totals[2][4] = {};  // the same for a row of ones
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
    uint2 words[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int rank = g + 8 * n;
      words[n] = make_uint2(0, 0);
      if (rank < args.rank) {
        words[n] = *reinterpret_cast<const uint2*>(codes + rank * kRowFloats<kHeadDim> + 32 * j + 8 * t);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (8 * n >= args.rank) continue;
      mma_s8(sums[n], words[0].x, words[1].x, words[0].y, words[1].y, words[n].x, words[n].y);
      mma_s8(totals[n], kOnes, kOnes, kOnes, kOnes, words[n].x, words[n].y);
    }
  }
  const auto zero_of = [&args](int rank) {
    const float half = (args.four_bit_quads >> rank / 4 & 1U) != 0 ? 8.0F : 2.0F;
    return args.basis_has_scales ? half : half - 0.5F;
  };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = g + 8 * r;
    // The total of a row's codes is with the lane that has it for a column.
    const int even = __shfl_sync(kAll, totals[r][0], g / 2);
    const int odd = __shfl_sync(kAll, totals[r][1], g / 2);
    const auto total = static_cast<float>(g % 2 == 0 ? even : odd);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * n + 2 * t + i;
        if (row >= args.rank || column >= args.rank) continue;
        const float z = zero_of(row);
        const float other_z = zero_of(column);
        const float product = static_cast<float>(sums[n][2 * r + i]) - z * static_cast<float>(totals[n][i]) -
                              other_z * total + kHeadDim * z * other_z;
        system[row * kSystemStride + column] = product * steps[row] * steps[column];
      }
    }
  }
}

/// Packs the codes of the basis as page_summary.h says.
template <int kHeadDim>
__device__ __forceinline__ void pack_basis(const Args& args, const std::byte* codes, int lane, std::byte* record) {
  constexpr int kRow = kRowFloats<kHeadDim>;
  const auto load = [](const std::byte* from) { return *reinterpret_cast<const uint2*>(from); };
  for (int quad = 0; quad < args.rank / 4; ++quad) {
    const std::byte* const from = codes + 4 * quad * kRow;
    std::byte* const to = record + args.at.quad_at[quad];
    if ((args.four_bit_quads >> quad & 1U) != 0) {
      for (int i = lane; i < kHeadDim / 4; i += 32) {  // rank i % 4, block i / 4
        const std::byte* const eight = from + i % 4 * kRow + i / 4 * 16;
        const uint2 low = load(eight);
        const uint2 high = load(eight + 8);
        *reinterpret_cast<uint2*>(to + 8 * i) = make_uint2(low.x | high.x << 4, low.y | high.y << 4);
      }
    } else {
      for (int i = lane; i < 4 * kChunks<kHeadDim>; i += 32) {
        const std::byte* const eight = from + i % 4 * kRow + i / 4 * 32;
        uint2 packed = load(eight);
#pragma unroll
        for (int part = 1; part < 4; ++part) {
          const uint2 next = load(eight + 8 * part);
          packed.x |= next.x << 2 * part;
          packed.y |= next.y << 2 * part;
        }
        *reinterpret_cast<uint2*>(to + 8 * i) = packed;
      }
    }
  }
}

}  // namespace locks::cuda::summarize_stage
