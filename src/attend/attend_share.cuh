// Queries that the warps of a block convert together, for a block that needs them once and soon: each asks for its share
// before the list. All queries in every warp would hold up the list on its way through L1.
#pragma once

#include "attend/attend_tile.cuh"

namespace locks::cuda::attend_stage {

/// A warp's share of queries that need no scale: of every kWarps-th step of 16 dimensions and 8 heads.
template <class S, int kWarps>
class QueryShare {
  using N = Numbers<S::kType>;
  static constexpr int kSteps = S::kColumns * S::kSteps;
  static constexpr int kShare = (kSteps + kWarps - 1) / kWarps;

 public:
  __device__ __forceinline__ QueryShare(const AttendParams& params, int request, int first_head, int end_head, int warp,
                                        int lane) {
    const float* const data = params.queries + request * params.query_request_stride + N::kLaneStep * (lane % 4);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int index = i * kWarps + warp;
      const int head = first_head + index / S::kSteps * 8 + lane / 4;
      const bool exists = index < kSteps && head < end_head;
      const float* const step = data + head * params.query_head_stride + 16 * (index % S::kSteps);
#pragma unroll
      for (int k = 0; k < 4; ++k) asked_[i][k] = exists ? step[Queries<S>::element(k)] : 0.0F;
    }
  }

  /// Leaves the parts in `memory`, for `queries`, once all warps of the block have.
  __device__ __forceinline__ void convert(const AttendParams& params, uint2* memory, int warp, int lane,
                                          Queries<S>& queries) const {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int index = i * kWarps + warp;
      if (index >= kSteps) break;
      std::uint32_t parts[2][N::kParts];
#pragma unroll
      for (int half = 0; half < 2; ++half) mma16::split(parts[half], asked_[i][2 * half], asked_[i][2 * half + 1]);
#pragma unroll
      for (int part = 0; part < N::kParts; ++part) {
        memory[(index * N::kParts + part) * 32 + lane] = {parts[0][part], parts[1][part]};
      }
    }
    queries.shared = memory;
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      queries.logit_scale[column][0] = queries.logit_scale[column][1] = params.softmax_scale;
    }
  }

 private:
  float asked_[kShare][4];
};

/// For f16, whose scale takes all elements: each warp asks for all and converts them for itself, or with the others.
template <class S, int kWarps>
class AllQueries {
 public:
  __device__ __forceinline__ AllQueries(const AttendParams& params, int request, int first_head, int end_head, int /*warp*/,
                                        int lane) {
    asked_.ask(params, request, first_head, end_head, lane);
  }
  __device__ __forceinline__ void convert(const AttendParams& params, uint2* memory, int warp, int lane,
                                          Queries<S>& queries) {
    asked_.convert(params, memory, warp, kWarps, lane);
    queries = asked_;
  }

 private:
  Queries<S> asked_;
};

}  // namespace locks::cuda::attend_stage
