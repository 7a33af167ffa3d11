// The coefficients of a page against its stored basis: least squares, codes, and what they leave.
#pragma once

#include <cstdint>

#include "summarize/basis.cuh"

namespace locks::cuda::summarize_stage {

/// Added to the diagonal of the normal matrix, and the same as a share of its mean for the slopes of the values (records.h).
constexpr float kRefitRidge = 1e-4F;
constexpr float kSlopeRidge = 1e-2F;
/// Floats of a row of coefficients [rank, 16].
constexpr int kCoefficientStride = 16;

/// Solves for 16 right-hand sides: lane c has column c of kRank of the matrix, then of the right-hand sides. Gauss and
/// Jordan's elimination needs no pivots, because the matrix is positive definite with its ridge. Solutions go to `out`
/// [kRank, stride].
template <int kRank>
__device__ __forceinline__ void solve(float (&column)[kRank], int lane, float* out, int stride) {
#pragma unroll
  for (int k = 0; k < kRank; ++k) {
    const float pivot = column[k] * ptx::reciprocal(__shfl_sync(kAll, column[k], k));
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      if (r != k) column[r] = fmaf(-__shfl_sync(kAll, column[r], k), pivot, column[r]);
    }
    column[k] = pivot;
  }
  if (lane >= kRank && lane < kRank + kPageTokens) {
#pragma unroll
    for (int r = 0; r < kRank; ++r) out[r * stride + lane - kRank] = column[r];
  }
  __syncwarp();
}

/// Coefficients [rank, 16] by ridge regression. Ranks that are not `kept` were dropped: they have only the ridge on the
/// diagonal, and coefficients of zero.
template <int kRank>
__device__ __forceinline__ void refit(const float* system, unsigned kept, int lane, float* coefficients) {
  float column[kRank];
  const bool own_kept = lane >= kRank || (kept >> lane & 1U) != 0;
#pragma unroll
  for (int r = 0; r < kRank; ++r) {
    const float element = lane < kRank + kPageTokens ? system[r * kSystemStride + lane] : 0.0F;
    column[r] = (own_kept && (kept >> r & 1U) != 0 ? element : 0.0F) + (r == lane ? kRefitRidge : 0.0F);
  }
  solve(column, lane, coefficients, kCoefficientStride);
}
__device__ __forceinline__ void refit_coefficients(const float* system, unsigned kept, int rank, int lane,
                                                   float* coefficients) {
  if (rank == 8) {
    refit<8>(system, kept, lane, coefficients);
  } else if (rank == 12) {
    refit<12>(system, kept, lane, coefficients);
  } else {
    refit<4>(system, kept, lane, coefficients);
  }
}

/// Coefficients in four bits: of what `coefficient(rank, token)` gives, codes and scales to the record, and what they mean
/// to `stored` [rank, 16].
template <class Coefficient>
__device__ __forceinline__ void store_by_rank(const Args& args, const Scale& scale, int lane, const Coefficient& coefficient,
                                              float* stored, std::byte* record) {
  const int t = lane % 4;
  const int tokens[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};  // two bytes of the record
  for (int first = 0; first < args.rank; first += 8) {
    const int rank = first + lane / 4;
    float x[4] = {};
    if (rank < args.rank) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = coefficient(rank, tokens[i]);
    }
    const StoredStep step = best_step<4>([&x](int i) { return x[i]; }, 8.0F, scale);
    if (rank >= args.rank) continue;
    std::uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Code code = mid_rise(x[i], step.inverse, 8.0F);
      bits[i] = code.bits & 15U;
      stored[rank * kCoefficientStride + tokens[i]] = code.meaning * step.scaled;
    }
    *reinterpret_cast<std::uint16_t*>(record + args.at.coefficients_at + 8 * rank + 2 * t) =
        static_cast<std::uint16_t>((bits[0] | bits[2] << 4) | (bits[1] | bits[3] << 4) << 8);
    if (t == 0) {
      *reinterpret_cast<std::uint16_t*>(record + args.at.coefficient_scales_at + 2 * rank) =
          static_cast<std::uint16_t>(step.bits);
    }
  }
}

/// The same in signed bytes, with a scale a token.
template <class Coefficient>
__device__ __forceinline__ void store_by_token(const Args& args, const Scale& scale, int lane,
                                               const Coefficient& coefficient, float* stored, std::byte* record) {
  if (lane >= kPageTokens) return;
  float largest = 0.0F;
  for (int r = 0; r < args.rank; ++r) largest = fmaxf(largest, fabsf(coefficient(r, lane)));
  const StoredStep step = stored_step(largest / 127.0F, scale);
  *reinterpret_cast<std::uint16_t*>(record + args.at.coefficient_scales_at + 2 * lane) =
      static_cast<std::uint16_t>(step.bits);
  for (int r = 0; r < args.rank; ++r) {
    const Code code = mid_tread(coefficient(r, lane), step.inverse, 128.0F);
    stored[r * kCoefficientStride + lane] = code.meaning * step.scaled;
    record[args.at.coefficients_at + r * kPageTokens + lane] = static_cast<std::byte>(code.bits ^ 128U);
  }
}

/// Sum over components of the squares of what the stored coefficients c leave, from products alone: |d|^2 - c (f + (f - N
/// c)) a token, with f = basis . d and the matrix N of `system`. The basis has few bits, so that this is some thousandths of
/// |d|^2 or more, and |d|^2 is known to 1e-7. `squares` has |d|^2 of the tokens.
__device__ __forceinline__ float missed_energy(const float* squares, const float* stored, const float* system, int rank,
                                               int lane) {
  const int token = lane % kPageTokens;
  float c[12];
#pragma unroll
  for (int s = 0; s < 12; ++s) c[s] = s < rank ? stored[s * kCoefficientStride + token] : 0.0F;
  float missed = lane < kPageTokens ? squares[token] : 0.0F;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const int r = 2 * i + lane / kPageTokens;
    if (2 * i >= rank) break;
    const float* const row = system + r * kSystemStride;
    const float f = row[rank + token];
    float left = f;
#pragma unroll
    for (int s = 0; s < 12; s += 4) {
      if (s >= rank) break;
      const float4 n = *reinterpret_cast<const float4*>(row + s);
      left = fmaf(-n.x, c[s], left);
      left = fmaf(-n.y, c[s + 1], left);
      left = fmaf(-n.z, c[s + 2], left);
      left = fmaf(-n.w, c[s + 3], left);
    }
    missed = fmaf(-(lane < kPageTokens ? c[2 * i] : c[2 * i + 1]), f + left, missed);
  }
  return fmaxf(sum_of_warp(missed), 0.0F);
}

/// weights [rank, 20] = (C^T C + ridge)^-1 C^T: what makes slopes of values. C^T is `stored` [rank, 16].
template <int kRank>
__device__ __forceinline__ void weights_of(const float* stored, int lane, float* weights) {
  float column[kRank];
  float trace = 0.0F;
#pragma unroll
  for (int r = 0; r < kRank; ++r) {
    const float* const row = stored + r * kCoefficientStride;
    const float* const other = stored + (lane < kRank ? lane : 0) * kCoefficientStride;
    float product = 0.0F;
#pragma unroll
    for (int i = 0; i < kPageTokens; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(row + i);
      const float4 y = *reinterpret_cast<const float4*>(other + i);
      product = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, product))));
    }
    trace += __shfl_sync(kAll, product, r);
    const int token = lane - kRank;
    column[r] = lane < kRank ? product : token < kPageTokens ? row[token] : 0.0F;
  }
  const float ridge = kSlopeRidge * trace / static_cast<float>(kRank);
#pragma unroll
  for (int r = 0; r < kRank; ++r) {
    column[r] = ridge > 0.0F ? column[r] + (r == lane ? ridge : 0.0F) : lane == r ? 1.0F : 0.0F;
  }
  solve(column, lane, weights, kVectorStride);
}
__device__ __forceinline__ void slope_weights(const float* stored, int rank, int lane, float* weights) {
  if (rank == 8) {
    weights_of<8>(stored, lane, weights);
  } else if (rank == 12) {
    weights_of<12>(stored, lane, weights);
  } else {
    weights_of<4>(stored, lane, weights);
  }
}

/// Codes of the slopes of rank `rank` to `codes` [rank, head_dim], and its scale.
template <int kHeadDim>
__device__ __forceinline__ void quantise_slopes(const Args& args, int rank, const Scale& scale, int lane,
                                                const RankRow<kHeadDim>& row, std::byte* codes, std::byte* record) {
  const StoredStep step = best_step<kHeadDim / 4>([&row](int i) { return row.x[i / 2][i % 2]; }, 2.0F, scale);
  if (rank >= args.rank) return;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    const Code first = mid_rise(row.x[n][0], step.inverse, 2.0F);
    const Code second = mid_rise(row.x[n][1], step.inverse, 2.0F);
    *reinterpret_cast<std::uint16_t*>(codes + rank * kHeadDim + 8 * n + 2 * (lane % 4)) =
        static_cast<std::uint16_t>(__byte_perm(first.bits, second.bits, 0x0040));
  }
  if (lane % 4 == 0) {
    *reinterpret_cast<std::uint16_t*>(record + args.value_at.slope_scales_at + 2 * rank) =
        static_cast<std::uint16_t>(step.bits);
  }
}

/// Packs the codes of the slopes as page_summary.h says: a row a rank, quarters of the head beside each other.
template <int kHeadDim>
__device__ __forceinline__ void pack_slopes(const Args& args, const std::byte* codes, int lane, std::byte* record) {
  constexpr int kRowBytes = kHeadDim / 4;
  for (int i = lane; i < args.rank * kRowBytes / 4; i += 32) {
    const int rank = 4 * i / kRowBytes;
    const std::byte* const from = codes + rank * kHeadDim + 4 * i % kRowBytes;
    std::uint32_t packed = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      packed |= *reinterpret_cast<const std::uint32_t*>(from + part * kRowBytes) << 2 * part;
    }
    *reinterpret_cast<std::uint32_t*>(record + args.value_at.slopes_at + 4 * i) = packed;
  }
}

}  // namespace locks::cuda::summarize_stage
