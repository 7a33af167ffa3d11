// The door of the completion on the GPU: checks, and the instance of the format.
#include <string>

#include "attend/attend_cuda.h"
#include "attend/complete_launch.h"
#include "cuda/door.h"

namespace locks::cuda {
namespace complete_kernels {

void launch(FormatId format, const Sums& args, Stream stream) {
  switch (format) {
    case FormatId::kPaper:
      return launch<FormatId::kPaper>(args, stream);
    case FormatId::kGraded8:
      return launch<FormatId::kGraded8>(args, stream);
    case FormatId::kGraded12:
      return launch<FormatId::kGraded12>(args, stream);
    case FormatId::kGraded4:
      return launch<FormatId::kGraded4>(args, stream);
  }
}

Launches launches(const CompletionArgs& args, SoftmaxStates states) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  door::lists(args.num_lists, geometry);
  const int requests = args.table.num_requests();
  const std::int64_t capacity = args.completed.shape[2];
  Launches out;
  if (requests == 0 || capacity == 0 || args.summaries.num_pages == 0) return out;
  Sums& sums = out.sums;
  sums.keys = door::key_records(args.summaries, geometry);
  sums.values = door::value_records(args.summaries, geometry);
  out.format = args.summaries.format->id;
  sums.shape = door::record_shape(*args.summaries.format, geometry.head_dim);
  sums.values_at = value_layout(*args.summaries.format, geometry.head_dim);
  sums.table = door::table(args.table);
  sums.queries = door::queries(args.queries, geometry, requests);
  door::at_least("completed", args.completed, {requests, args.num_lists, capacity});
  door::data("num_completed", args.num_completed.data);
  door::data("skipped_log_mass", args.skipped_log_mass.data);
  door::at_least("states", states, {requests, geometry.query_heads, 2 + geometry.head_dim});
  check::workspace(args.workspace, completion_workspace_bytes(geometry, requests, args.num_lists));
  sums.requests = requests;
  sums.context_tokens = args.table.context_tokens.data();
  sums.lists = args.num_lists;
  sums.lists_per_kv_head = args.num_lists / geometry.kv_heads;
  sums.list_heads = geometry.query_heads / args.num_lists;
  sums.passes = (sums.list_heads + kHeads - 1) / kHeads;
  sums.capacity = static_cast<int>(capacity);
  sums.completed = args.completed.data;
  sums.completed_request_stride = args.completed.stride[0];
  sums.completed_list_stride = args.completed.stride[1];
  sums.num_completed = args.num_completed.data;
  sums.num_request_stride = args.num_completed.stride[0];
  sums.num_list_stride = args.num_completed.stride[1];
  sums.parts.values = reinterpret_cast<float*>(args.workspace.data());
  sums.parts.max_and_sum = sums.parts.values + first_part(requests, geometry.query_heads, 0) * geometry.head_dim;

  Merge& merge = out.merge;
  merge.parts = sums.parts;
  merge.rotation = sums.queries.rotation;
  merge.requests = requests;
  merge.query_heads = geometry.query_heads;
  merge.list_heads = sums.list_heads;
  merge.head_dim = geometry.head_dim;
  merge.capacity = sums.capacity;
  merge.num_completed = sums.num_completed;
  merge.num_request_stride = sums.num_request_stride;
  merge.num_list_stride = sums.num_list_stride;
  merge.skipped_log_mass = args.skipped_log_mass.data;
  merge.skipped_request_stride = args.skipped_log_mass.stride[0];
  merge.skipped_head_stride = args.skipped_log_mass.stride[1];
  return out;
}

}  // namespace complete_kernels

std::size_t completion_workspace_bytes(const Geometry& geometry, int num_requests, int) noexcept {
  return static_cast<std::size_t>(complete_kernels::first_part(num_requests, geometry.query_heads, 0)) *
         static_cast<std::size_t>(geometry.head_dim + 2) * sizeof(float);
}

void complete(const CompletionArgs& args, SoftmaxStates states, Stream stream) {
  const complete_kernels::Launches launches = complete_kernels::launches(args, states);
  if (launches.merge.parts.values == nullptr) return;
  complete_kernels::launch(launches.format, launches.sums, stream);
  complete_kernels::launch(launches.merge, states, {}, stream);
}

void complete(const CompletionArgs& args, SoftmaxStates states, const HeadRows& out, Stream stream) {
  const complete_kernels::Launches launches = complete_kernels::launches(args, states);
  if (launches.merge.parts.values == nullptr) return finish(states, out, stream);
  attend_stage::check_out(states, out);
  complete_kernels::launch(launches.format, launches.sums, stream);
  complete_kernels::launch(launches.merge, states, out, stream);
}

}  // namespace locks::cuda
