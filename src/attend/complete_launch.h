// What the door of the GPU's completion hands to the kernels. One instance a format and number of units of 64 dimensions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/args.h"
#include "locks/cuda.h"

namespace locks::cuda::complete_kernels {

/// Parts of a list that are summed apart. Its length alone decides how many, whatever the lists around it: so the same list
/// gives the same bits. A part of 64 pages is two units for each warp: what a warp does before its first page
/// and behind its last costs as much as eight pages.
constexpr int kMaxParts = 64;
constexpr int kPartPages = 64;
constexpr int parts_of(int entries) {
  const int parts = (entries + kPartPages - 1) / kPartPages;
  return parts < kMaxParts ? parts : kMaxParts;
}

/// The state of a warp for one head, in shared memory: head_dim sums of weights * values in the rotated space, what weights
/// are relative to (in units of log 2), the sum of weights, and two floats of padding.
constexpr int state_floats(int head_dim) { return head_dim + 4; }

/// States of parts, in the workspace: sums of weights * values, and apart what those are relative to and the sums of
/// weights.
struct Parts {
  float* values = nullptr;       // [requests, query_heads, kMaxParts, head_dim]; null: there are none
  float* max_and_sum = nullptr;  // [requests, query_heads, kMaxParts, 2]
};
/// Of a head of a request; the next head's lies kMaxParts on.
constexpr std::int64_t first_part(int request, int query_heads, int head) {
  return (static_cast<std::int64_t>(request) * query_heads + head) * kMaxParts;
}

constexpr int kHeads = 8;  // of a list, that a pass takes

struct Sums {
  RecordShape shape;
  ValueLayout values_at;
  RecordArray keys;
  RecordArray values;
  DeviceTable table;
  QueryArgs queries;
  int requests = 0;
  int lists = 0;
  int lists_per_kv_head = 0;
  int list_heads = 0;
  int passes = 0;  // over a list, for eight heads each
  int capacity = 0;
  const SelectedPage* completed = nullptr;
  std::int64_t completed_request_stride = 0;
  std::int64_t completed_list_stride = 0;
  const std::int32_t* num_completed = nullptr;
  std::int64_t num_request_stride = 0;
  std::int64_t num_list_stride = 0;
  Parts parts;
  /// The kernel before this one is attention, which wrote nothing that is read here and waited for what came before it; but
  /// for contexts of at most `whole_tokens`, of which nothing is completed.
  bool beside_attention = false;
  int whole_tokens = 0;
  const std::int32_t* context_tokens = nullptr;
  std::uint32_t bias = 0x43004300U;  // bf16 128, twice: a constant that kernels need in a register
};

struct Merge {
  Parts parts;  // none: nothing is completed
  Rotation rotation;
  int requests = 0;
  int query_heads = 0;
  int list_heads = 0;
  int head_dim = 0;
  int capacity = 0;
  const std::int32_t* num_completed = nullptr;
  std::int64_t num_request_stride = 0;
  std::int64_t num_list_stride = 0;
  const float* skipped_log_mass = nullptr;
  std::int64_t skipped_request_stride = 0;
  std::int64_t skipped_head_stride = 0;
};

/// The door: what the kernels are told. No parts if there is nothing to do.
struct Launches {
  FormatId format = FormatId::kGraded8;
  Sums sums;
  Merge merge;
};
Launches launches(const CompletionArgs& args, SoftmaxStates states);

template <FormatId kId>
void launch(const Sums& args, Stream stream);
void launch(FormatId format, const Sums& args, Stream stream);
/// Merges the completion into `states`, or, if `out` has data, writes what finish() would.
void launch(const Merge& args, SoftmaxStates states, const HeadRows& out, Stream stream);

}  // namespace locks::cuda::complete_kernels
