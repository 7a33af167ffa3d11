// What the door of the GPU's completion hands to the kernels. One instance a format and number of units of 64 dimensions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/args.h"
#include "locks/cuda.h"

namespace locks::cuda::complete_kernels {

/// Parts of a list that are summed apart, whatever its length and the lists around it: so the same list gives the same bits.
constexpr int kParts = 32;

/// The state of a part for one head: head_dim sums of weights * values in the rotated space, the largest logit, the sum of
/// weights, and two floats of padding.
constexpr int partial_floats(int head_dim) { return head_dim + 4; }

struct Sums {
  RecordShape shape;
  ValueLayout values_at;
  RecordArray keys;
  RecordArray values;
  DeviceTable table;
  QueryArgs queries;
  int requests = 0;
  int lists = 0;
  int capacity = 0;
  const SelectedPage* completed = nullptr;
  std::int64_t completed_request_stride = 0;
  std::int64_t completed_list_stride = 0;
  const std::int32_t* num_completed = nullptr;
  std::int64_t num_request_stride = 0;
  std::int64_t num_list_stride = 0;
  float* partials = nullptr;  // [requests, query_heads, kParts, partial_floats]
};

struct Merge {
  const float* partials = nullptr;
  Rotation rotation;
  int requests = 0;
  int query_heads = 0;
  int head_dim = 0;
  const float* skipped_log_mass = nullptr;
  std::int64_t skipped_request_stride = 0;
  std::int64_t skipped_head_stride = 0;
  float* states = nullptr;
  std::int64_t states_request_stride = 0;
  std::int64_t states_head_stride = 0;
};

template <FormatId kId>
void launch(const Sums& args, Stream stream);
void launch(const Merge& args, Stream stream);

}  // namespace locks::cuda::complete_kernels
