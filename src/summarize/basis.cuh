// A page's directions: rows of a [rank, head_dim] matrix, eight ranks at a time.
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

/// This lane's components of one rank: of dimensions 8 n ... 8 n + 7 those from 2 t on, for lane 4 g + t and rank g.
template <int kHeadDim>
struct RankRow {
  static constexpr int kBlocks = kHeadDim / 8;
  float x[kBlocks][2];
};

/// row = weights . rows: `weights` [rank, 20] has a row a rank, `pieces` are the page's deviations. The weights go in as two
/// rows of the product's left operand, what f16 has of them and the rest; the deviations in turn.
template <int kHeadDim>
__device__ __forceinline__ void project(const float* weights, int rank, const PieceAddresses<kHeadDim>& pieces, int lane,
                                        RankRow<kHeadDim>& row) {
  const int g = lane / 4;
  const int t = lane % 4;
  std::uint32_t a[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float2 two = make_float2(0.0F, 0.0F);
    if (g < rank) two = *reinterpret_cast<const float2*>(weights + g * kVectorStride + 8 * half + 2 * t);
    split_halves(two.x, two.y, a[2 * half], a[2 * half + 1]);
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    std::uint32_t seen[4];
    std::uint32_t rest[4];
    mma16::load_transposed(seen, address_of(pieces, step, 0));
    mma16::load_transposed(rest, address_of(pieces, step, 1));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      ptx::mma_f16(sums, a[0], a[1], a[2], a[3], rest[2 * n], rest[2 * n + 1]);
      ptx::mma_f16(sums, a[0], a[1], a[2], a[3], seen[2 * n], seen[2 * n + 1]);
      row.x[2 * step + n][0] = sums[0] + sums[2];
      row.x[2 * step + n][1] = sums[1] + sums[3];
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ float energy_of(const RankRow<kHeadDim>& row) {
  float sums[2] = {0.0F, 0.0F};
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = fmaf(row.x[n][i], row.x[n][i], sums[i]);
  }
  return sum_of_four(sums[0] + sums[1]);
}

/// A row of the basis as codes, and what they mean in steps as operands of products: exactly.
template <int kHeadDim>
struct BasisRow {
  std::uint32_t codes[kHeadDim / 8];  // two, in the low bytes of the halves
  std::uint32_t meanings[kHeadDim / 8];
};

/// Quantises rank `rank` of the basis, whose row must be multiplied by `factor` to be a unit vector. Returns the step.
template <int kHeadDim>
__device__ __forceinline__ float quantise_basis(const Args& args, int rank, float factor, int lane,
                                                const RankRow<kHeadDim>& row, BasisRow<kHeadDim>& basis, std::byte* record) {
  const bool four_bits = (args.four_bit_quads >> rank / 4 & 1U) != 0;
  const float half = four_bits ? 8.0F : 2.0F;
  float step = four_bits ? args.step4 : args.step2;
  float inverse = ptx::reciprocal(step);
  if (args.basis_has_scales) {
    float largest = 0.0F;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) largest = fmaxf(largest, fmaxf(fabsf(row.x[n][0]), fabsf(row.x[n][1])));
    const StoredStep scale =
        stored_step(largest_of_four(largest) * factor * (four_bits ? 1.0F / 7.0F : 1.0F), make_scale(1.0F, 1.0F, 0));
    step = scale.scaled;
    inverse = scale.inverse;
    if (rank < args.rank && lane % 4 == 0) {
      *reinterpret_cast<std::uint16_t*>(record + args.at.basis_scales_at + 2 * rank) =
          static_cast<std::uint16_t>(scale.bits);
    }
  }
  inverse *= factor;
  const auto quantise = [&](const auto& code_of) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const Code first = code_of(row.x[n][0]);
      const Code second = code_of(row.x[n][1]);
      basis.codes[n] = __byte_perm(first.bits, second.bits, 0x5410);
      basis.meanings[n] = ptx::pack_f16(first.meaning, second.meaning);
    }
  };
  if (args.basis_has_scales) {
    quantise([inverse, half](float x) { return mid_tread(x, inverse, half); });
  } else {
    quantise([inverse, half](float x) { return mid_rise(x, inverse, half); });
  }
  return step;
}

/// The two codes that a block's word has, of which the low halves may have more bits, as two bytes.
__device__ __forceinline__ std::uint16_t two_bytes(std::uint32_t codes) {
  return static_cast<std::uint16_t>(__byte_perm(codes, 0, 0x4420));
}

/// Writes the codes of rank `rank` as page_summary.h says: a lane has all the codes of its bytes.
template <int kHeadDim>
__device__ __forceinline__ void store_basis(const Args& args, int rank, const BasisRow<kHeadDim>& basis, int lane,
                                            std::byte* record) {
  if (rank >= args.rank) return;
  std::byte* const to = record + args.at.quad_at[rank / 4] + 8 * (rank % 4) + 2 * (lane % 4);
  const auto store = [to](int group, std::uint32_t codes) {
    *reinterpret_cast<std::uint16_t*>(to + 32 * group) = two_bytes(codes);
  };
  if ((args.four_bit_quads >> rank / 4 & 1U) != 0) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) store(n / 2, basis.codes[n] | basis.codes[n + 1] << 4);
  } else {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 4) {
      std::uint32_t codes = basis.codes[n] | basis.codes[n + 1] << 2;
      if (n + 2 < kHeadDim / 8) codes |= basis.codes[n + 2] << 4 | basis.codes[n + 3] << 6;
      store(n / 4, codes);
    }
  }
}

/// Right-hand sides of the normal equations, of eight ranks from `first` on: basis . deviations^T; and of their matrix these
/// ranks with each other and with the eight `before`: basis . basis^T, exactly but for the steps.
template <int kHeadDim>
__device__ __forceinline__ void multiply_by_basis(const PieceAddresses<kHeadDim>& pieces, const BasisRow<kHeadDim>& before,
                                                  const BasisRow<kHeadDim>& basis, const float* steps, int first, int rank,
                                                  int lane, float* system) {
  float sums[4] = {};
  float rests[4] = {};
  float squares[4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    std::uint32_t seen[4];
    std::uint32_t rest[4];
    mma16::load_matrices(seen, address_of(pieces, step, 0));
    mma16::load_matrices(rest, address_of(pieces, step, 1));
    const std::uint32_t low = basis.meanings[2 * step];
    const std::uint32_t high = basis.meanings[2 * step + 1];
    ptx::mma_f16(sums, seen[0], seen[1], seen[2], seen[3], low, high);
    ptx::mma_f16(rests, rest[0], rest[1], rest[2], rest[3], low, high);
    ptx::mma_f16(squares, before.meanings[2 * step], low, before.meanings[2 * step + 1], high, low, high);
  }
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = first + 2 * (lane % 4) + i % 2;  // ranks are columns here
    if (column >= rank) continue;
    const float step = steps[column];
    system[column * kSystemStride + rank + g + 8 * (i / 2)] = (sums[i] + rests[i]) * step;
    const int row = first - 8 + g + 8 * (i / 2);
    if (row < 0 || row >= rank) continue;
    const float product = squares[i] * steps[row] * step;
    system[row * kSystemStride + column] = product;
    if (row < first) system[column * kSystemStride + row] = product;  // else another lane has it, rounded otherwise
  }
}

}  // namespace locks::cuda::summarize_stage
