// A kernel of a step on the GPU: what is attended whatever the scores say.
#pragma once

#include "locks/cuda.h"

namespace locks::cuda {

struct AlwaysArgs {
  SelectConfig config;
  int min_context_tokens = 0;
  Geometry geometry;
  View<const float, 3> queries;
  PagedCache keys;
  PageTable table;
  int num_lists = 0;
  // Out, nothing for contexts attended whole:
  View<SelectedPage, 3> entries;  // [requests, lists, capacity]; behind the last page, entries without tokens
  SoftmaxStates states;           // the largest logit and the sum of weights
};

/// Reads nothing that kernels of the step have written, and so starts early.
void launch_always(const AlwaysArgs& args, Stream stream);

}  // namespace locks::cuda
