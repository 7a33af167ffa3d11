// Query heads in shared memory, and how many thread blocks share the pages of a request. For kernels in which 16 or 32 lanes
// hold a row of the cache, 8 dimensions each.
#pragma once

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/pages.cuh"
#include "cuda/rows.cuh"
#include "selectors/kernels_cuda.h"

namespace locks::cuda::rivals {

/// The first four dimensions of every lane lie together, then the others: a load of 16 bytes a lane meets every bank once.
template <int kRowLanes>
struct QueryRows {
  float4 rows[kHeadsAtOnce][2 * kRowLanes];

  __device__ __forceinline__ void set(int head, int dim, float value) {
    reinterpret_cast<float*>(rows[head])[(dim % kLaneDims / 4 * kRowLanes + dim / kLaneDims) * 4 + dim % 4] = value;
  }
  __device__ __forceinline__ void get(int head, int lane, float (&to)[kLaneDims]) const {
    const float4 first = rows[head][lane];
    const float4 second = rows[head][kRowLanes + lane];
    to[0] = first.x;
    to[1] = first.y;
    to[2] = first.z;
    to[3] = first.w;
    to[4] = second.x;
    to[5] = second.y;
    to[6] = second.z;
    to[7] = second.w;
  }
};

/// Calls set(head, dim, value) for `heads` heads from `first` on, times `scale`; what is past head_dim is 0.
template <int kRowLanes, class Set>
__device__ __forceinline__ void read_queries(const View<const float, 3>& queries, int head_dim, int request, int first,
                                             int heads, float scale, const Set& set) {
  constexpr int kDims = kRowLanes * kLaneDims;
  for (int i = static_cast<int>(threadIdx.x); i < heads * kDims; i += static_cast<int>(blockDim.x)) {
    const int head = i / kDims;
    const int dim = i % kDims;
    set(head, dim, dim < head_dim ? *queries.at(request, first + head, dim) * scale : 0.0F);
  }
}

/// A grid of KV heads, shares of a request's pages, requests; a thread block takes `pages_at_once`.
inline dim3 grid_of(const Geometry& geometry, std::int64_t requests, int max_pages, int pages_at_once) {
  constexpr std::int64_t kAtOnce = 4;  // blocks of a multiprocessor, with some to spare for requests that are short
  const std::int64_t wanted = kAtOnce * device_attribute(cudaDevAttrMultiProcessorCount) / (geometry.kv_heads * requests);
  const std::int64_t most = (max_pages + pages_at_once - 1) / pages_at_once;
  return {static_cast<unsigned>(geometry.kv_heads), static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, most)),
          static_cast<unsigned>(requests)};
}

/// Calls run with the type of the cache's numbers and the lanes of a row.
template <class Run>
void with_rows(DType dtype, int head_dim, const Run& run) {
  const auto with_lanes = [&]<class Pair>() {
    if (head_dim <= 16 * kLaneDims) return run.template operator()<Pair, 16>();
    run.template operator()<Pair, 32>();
  };
  if (dtype == DType::kF16) return with_lanes.template operator()<__half2>();
  if (dtype == DType::kBF16) return with_lanes.template operator()<__nv_bfloat162>();
  if (dtype == DType::kE4M3) return with_lanes.template operator()<E4M3>();
  with_lanes.template operator()<float>();
}

}  // namespace locks::cuda::rivals
