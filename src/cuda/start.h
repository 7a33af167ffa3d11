// When a kernel of a step may start.
#pragma once

namespace locks::cuda {

/// A step's first kernel starts after all that was queued before, or waits for it before it lets another one start: what it
/// then reads, and what the others read before they wait for each other, is the caller's and is complete. The others may
/// start early (see chain.cuh).
enum class Start : bool { kAfterPrevious, kEarly };

}  // namespace locks::cuda
