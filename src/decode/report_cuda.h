// What a step did, put together on the device.
#pragma once

#include <span>

#include "locks/cuda.h"

namespace locks::cuda {

struct ReportArgs {
  SelectConfig select;
  int min_context_tokens = 0;
  std::span<const std::int32_t> context_tokens;
  int num_lists = 0;
  int kv_heads = 0;
  bool selects = false;                      // if not, everything was attended and the rest is null
  View<const SelectedPage, 3> selected;      // [requests, lists, capacity]
  View<const std::int32_t, 2> num_selected;  // [requests, lists], like the next
  View<const std::int32_t, 2> num_completed;
  View<const float, 2> coverage;  // [requests, query_heads]; null if there is no estimate
  std::int64_t token_bytes = 0;   // of a token's key and value of one head
  std::int64_t record_bytes = 0;
  std::int64_t value_record_bytes = 0;
  std::span<DecodeReport> reports;
};
void launch_report(const ReportArgs& args, Stream stream);

}  // namespace locks::cuda
