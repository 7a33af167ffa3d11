// The door of the completion on the GPU: checks, and the instance of the format.
#include <string>

#include "attend/complete_launch.h"
#include "cuda/door.h"

namespace locks::cuda {
namespace {

void launch(const SummaryFormat& format, const complete_kernels::Sums& args, Stream stream) {
  switch (format.id) {
    case FormatId::kPaper:
      return complete_kernels::launch<FormatId::kPaper>(args, stream);
    case FormatId::kGraded8:
      return complete_kernels::launch<FormatId::kGraded8>(args, stream);
    case FormatId::kGraded12:
      return complete_kernels::launch<FormatId::kGraded12>(args, stream);
    case FormatId::kGraded4:
      return complete_kernels::launch<FormatId::kGraded4>(args, stream);
  }
  check::fail("summaries.format", "one of the library's formats", std::string(format.name));
}

}  // namespace

std::size_t completion_workspace_bytes(const Geometry& geometry, int num_requests, int) noexcept {
  return static_cast<std::size_t>(num_requests) * static_cast<std::size_t>(geometry.query_heads) * complete_kernels::kParts *
         static_cast<std::size_t>(complete_kernels::partial_floats(geometry.head_dim)) * sizeof(float);
}

void complete(const CompletionArgs& args, SoftmaxStates states, Stream stream) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  door::lists(args.num_lists, geometry);
  const int requests = args.table.num_requests();
  const std::int64_t capacity = args.completed.shape[2];
  if (requests == 0 || capacity == 0 || args.summaries.num_pages == 0) return;
  complete_kernels::Sums sums;
  sums.keys = door::key_records(args.summaries, geometry);
  sums.values = door::value_records(args.summaries, geometry);
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
  sums.lists = args.num_lists;
  sums.capacity = static_cast<int>(capacity);
  sums.completed = args.completed.data;
  sums.completed_request_stride = args.completed.stride[0];
  sums.completed_list_stride = args.completed.stride[1];
  sums.num_completed = args.num_completed.data;
  sums.num_request_stride = args.num_completed.stride[0];
  sums.num_list_stride = args.num_completed.stride[1];
  sums.partials = reinterpret_cast<float*>(args.workspace.data());
  launch(*args.summaries.format, sums, stream);

  complete_kernels::Merge merge;
  merge.partials = sums.partials;
  merge.rotation = sums.queries.rotation;
  merge.requests = requests;
  merge.query_heads = geometry.query_heads;
  merge.head_dim = geometry.head_dim;
  merge.skipped_log_mass = args.skipped_log_mass.data;
  merge.skipped_request_stride = args.skipped_log_mass.stride[0];
  merge.skipped_head_stride = args.skipped_log_mass.stride[1];
  merge.states = states.data;
  merge.states_request_stride = states.stride[0];
  merge.states_head_stride = states.stride[1];
  complete_kernels::launch(merge, stream);
}

}  // namespace locks::cuda
