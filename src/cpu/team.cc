#include "locks/team.h"

#include <thread>

namespace locks {

void Barrier::wait(int count) noexcept {
  // About a microsecond. If the thread that is waited for has no core of its own, every spin delays it.
  constexpr int kSpins = 64;
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
