// What kernels that follow each other do (src/cuda/chain.cuh), on the CPU: pipeline.h.
#pragma once

namespace locks::cuda {

inline void let_next_start() { emulator::Block::current->let_next_start(); }
inline void wait_for_previous() { emulator::Block::current->wait_for_previous(); }
inline void only_first_block_waits() {
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) wait_for_previous();
}

}  // namespace locks::cuda
