#include "locks/team.h"

#include <thread>

namespace locks {

void Barrier::wait(int count) noexcept {
  constexpr int kSpins = 4096;  // some microseconds: longer than a stage's imbalance, shorter than a time slice
  const std::uint32_t round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; round_.load(std::memory_order_acquire) == round; ++spin) {
    if (spin < kSpins) {
      __builtin_ia32_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace locks
