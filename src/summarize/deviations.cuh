// The mean of a page as stored, the deviations from it in shared memory, and their Gram matrix.
#pragma once

#include "summarize/load_page.cuh"

namespace locks::cuda::summarize_stage {

constexpr int kGramStride = 17;  // floats of a row

/// Stores codes and scale of the mean of the page, multiplied by `down`, at `codes` and `scale_at`, and what they mean at
/// `mean` [head_dim]. `sums` [8, head_dim] is scratch.
template <int kHeadDim>
__device__ __forceinline__ void store_mean(const PageFragment<kHeadDim>& page, float down, const Scale& scale, int lane,
                                           float* sums, float* mean, std::byte* codes, std::byte* scale_at) {
  constexpr int kQuarters = kRowFloats<kHeadDim> / 4;
  constexpr int kRounds = (kQuarters + 31) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  __syncwarp();  // others may still read what was there
  // Two lanes of a group of eight would meet in a bank.
  const auto quarter_of = [sums](int row, int quarter) {
    return reinterpret_cast<float4*>(sums) + row * kQuarters + (quarter ^ (row & 1));
  };
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const x = page.x[0][j] + 4 * half;
      const float* const y = page.x[1][j] + 4 * half;
      *quarter_of(g, 8 * j + 2 * t + half) = make_float4(x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3]);
    }
  }
  __syncwarp();
  float4 means[kRounds];
  float largest = 0.0F;
  const float share = down * (1.0F / kPageTokens);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int quarter = 32 * round + lane;
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (quarter < kQuarters) {
#pragma unroll
      for (int row = 0; row < 8; ++row) {
        const float4 x = *quarter_of(row, quarter);
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
    }
    means[round] = make_float4(sum.x * share, sum.y * share, sum.z * share, sum.w * share);
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(means[round].x), fabsf(means[round].y)),
                                   fmaxf(fabsf(means[round].z), fabsf(means[round].w))));
  }
  const StoredStep step = stored_step(largest_of_warp(largest) / 127.0F, scale);
  if (lane == 0) *reinterpret_cast<std::uint16_t*>(scale_at) = static_cast<std::uint16_t>(step.bits);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int quarter = 32 * round + lane;
    const Code x = mid_tread(means[round].x, step.inverse, 128.0F);
    const Code y = mid_tread(means[round].y, step.inverse, 128.0F);
    const Code z = mid_tread(means[round].z, step.inverse, 128.0F);
    const Code w = mid_tread(means[round].w, step.inverse, 128.0F);
    if (quarter < kQuarters) {
      const float4 stored =
          make_float4(x.meaning * step.scaled, y.meaning * step.scaled, z.meaning * step.scaled, w.meaning * step.scaled);
      reinterpret_cast<float4*>(mean)[quarter] = stored;
    }
    // Codes are 128 more than the signed bytes of the record.
    const std::uint32_t packed = pack_bytes(x.bits, y.bits, z.bits, w.bits) ^ 0x80808080U;
    if (4 * quarter < kHeadDim) reinterpret_cast<std::uint32_t*>(codes)[quarter] = packed;
  }
  __syncwarp();
}

/// Stores the deviations of the page, multiplied by `down`, from `mean` at `deviations` (fragments.cuh), and calls
/// take(seen, rest) with the operands that 16 components of this lane's two rows make: tokens g and g + 8, then the same
/// four components on. `deviations` may be where `sums` was.
template <int kHeadDim, class Take>
__device__ __forceinline__ void store_deviations(const PageFragment<kHeadDim>& page, float down, const float* mean, int lane,
                                                 std::byte* deviations, const Take& take) {
  const int g = lane / 4;
  const int t = lane % 4;
  std::byte* const row = deviations + 16 * g * kRowPieces<kHeadDim>;
  const int turn = turn_of<kHeadDim>(g);
#pragma unroll
  for (int j = 0; j < kChunks<kHeadDim>; ++j) {
    const float4 low = reinterpret_cast<const float4*>(mean)[8 * j + 2 * t];
    const float4 high = reinterpret_cast<const float4*>(mean)[8 * j + 2 * t + 1];
    const float stored[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    std::uint32_t seen[2][4];
    std::uint32_t rest[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[8] = page.x[r][j];
        split_halves(fmaf(x[2 * i], down, -stored[2 * i]), fmaf(x[2 * i + 1], down, -stored[2 * i + 1]), seen[r][i],
                     rest[r][i]);
      }
      // Rows 8 apart have the same turn.
      std::byte* const piece = row + 16 * (8 * r * kRowPieces<kHeadDim> + (4 * j + t ^ turn));
      *reinterpret_cast<uint4*>(piece) = make_uint4(seen[r][0], seen[r][1], seen[r][2], seen[r][3]);
      *reinterpret_cast<uint4*>(piece + kPageBytes<kHeadDim>) = make_uint4(rest[r][0], rest[r][1], rest[r][2], rest[r][3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t some_seen[4] = {seen[0][2 * half], seen[1][2 * half], seen[0][2 * half + 1],
                                          seen[1][2 * half + 1]};
      const std::uint32_t some_rest[4] = {rest[0][2 * half], rest[1][2 * half], rest[0][2 * half + 1],
                                          rest[1][2 * half + 1]};
      take(some_seen, some_rest);
    }
  }
  __syncwarp();
}

/// The same, and gram [16, 17] = M with M + M^T = D D^T. Products of what f16 has of two numbers are halved, products with
/// the rest count once here and once in the transpose. `gram` may be where `mean` is.
template <int kHeadDim>
__device__ __forceinline__ void store_deviations_and_gram(const PageFragment<kHeadDim>& page, float down, const float* mean,
                                                          int lane, std::byte* deviations, float* gram) {
  float high[2][4] = {};
  float mixed[2][4] = {};
  store_deviations(page, down, mean, lane, deviations, [&](const std::uint32_t(&seen)[4], const std::uint32_t(&rest)[4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ptx::mma_f16(high[n], seen[0], seen[1], seen[2], seen[3], seen[n], seen[n + 2]);
      ptx::mma_f16(mixed[n], seen[0], seen[1], seen[2], seen[3], rest[n], rest[n + 2]);
    }
  });
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2);
      gram[row * kGramStride + 8 * n + 2 * (lane % 4) + i % 2] = fmaf(0.5F, high[n][i], mixed[n][i]);
    }
  }
  __syncwarp();
}

}  // namespace locks::cuda::summarize_stage
