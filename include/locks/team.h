// Threads are the caller's. Every stage is called by all threads of a team at once; each does its share and returns.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace locks {

/// Lets `count` threads wait for each other, any number of times. Spins briefly, then yields: a team may have more
/// threads than the machine has free cores.
class Barrier {
 public:
  void wait(int count) noexcept;

 private:
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> round_{0};
};

/// One thread's place in its team. The default is a team of one.
struct Team {
  int index = 0;
  int count = 1;
  Barrier* barrier = nullptr;  // needed if count > 1

  void sync() const noexcept {
    if (count > 1) barrier->wait(count);
  }
  /// This thread's part [first, last) of `items` pieces of work, in order and as even as can be.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> share(std::int64_t items) const noexcept {
    return {items * index / count, items * (index + 1) / count};
  }
};

}  // namespace locks
