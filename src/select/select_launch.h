// What the checked entry points call.
#pragma once

#include "cuda/start.h"
#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

/// Checks the arguments and lays the workspace out.
[[nodiscard]] Lists checked(const SelectArgs& args);

/// The candidates; with whole pages, the selection.
void launch_pages(const Lists& lists, Start start, Stream stream);
/// The selection, if it is by parts; and if the rest is wanted, what is skipped and the pages that stand in for it.
void launch_tokens(const Lists& lists, bool wants_rest, Start start, Stream stream);

}  // namespace locks::cuda::select_kernels
