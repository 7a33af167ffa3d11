#include "cuda/launch_kernel.cuh"
#include "decode/report_cuda.h"

namespace locks::cuda {
namespace {

/// Sum over a warp, in every lane; integers, or floats in a fixed order.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  return value;
}

/// A warp a request.
__global__ void report(const __grid_constant__ ReportArgs args) {
  const int request = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int tokens = args.context_tokens[request];
  const AlwaysAttended always = always_attended(args.select, tokens, args.min_context_tokens);
  std::int64_t selected_tokens = 0;
  std::int64_t completed_pages = 0;
  float coverage = 0.0F;
  if (!always.everything && args.selects) {
    for (int list = 0; list < args.num_lists; ++list) {
      const int entries = args.num_selected(request, list);
      for (int entry = lane; entry < entries; entry += 32) {
        selected_tokens += __popc(args.selected(request, list, entry).mask);
      }
      if (lane == 0) completed_pages += args.num_completed(request, list);
    }
    for (int head = lane; args.coverage.data != nullptr && head < static_cast<int>(args.coverage.shape[1]); head += 32)
      coverage += args.coverage(request, head);
  }
  selected_tokens = warp_sum(selected_tokens);
  completed_pages = warp_sum(completed_pages);
  coverage = warp_sum(coverage);
  if (lane != 0) return;

  DecodeReport out;
  out.context_tokens = tokens;
  out.dense = always.everything;
  out.dense_bytes = args.token_bytes * args.kv_heads * tokens;
  out.attended_tokens = static_cast<float>(tokens);
  out.attend_bytes = out.dense_bytes;
  if (!always.everything) {
    const auto lists = static_cast<float>(args.num_lists);
    out.attended_tokens = static_cast<float>(always.tokens) + static_cast<float>(selected_tokens) / lists;
    out.completed_pages = static_cast<float>(completed_pages) / lists;
    out.coverage = args.coverage.data == nullptr ? 0.0F : coverage / static_cast<float>(args.coverage.shape[1]);
    out.attend_bytes = args.token_bytes * (std::int64_t{args.kv_heads} * always.tokens + selected_tokens);
    out.score_bytes = std::int64_t{always.first_recent_page} * args.kv_heads * args.record_bytes;
    out.complete_bytes = completed_pages * args.value_record_bytes;
  }
  args.reports[request] = out;
}

}  // namespace

void launch_report(const ReportArgs& args, Stream stream) {
  launch_kernel<report>({"report", Start::kAfterPrevious, static_cast<unsigned>(args.context_tokens.size()), 32, 0, stream},
                        args);
}

}  // namespace locks::cuda
