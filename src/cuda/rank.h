// Selection by scores that are no masses.
#pragma once

#include "cuda/start.h"
#include "locks/cuda.h"

namespace locks::cuda {

/// Whole pages: `args.log_mass` [requests, lists, pages] are scores of any kind, of which the largest are taken. Equal ones
/// go to the lower page; what is no number counts as -infinity. `args.states` are not read, `args.coverage` is not written
/// to but with 1, and no page is completed.
void rank_pages(const SelectArgs& args, Start start, Stream stream);

}  // namespace locks::cuda
