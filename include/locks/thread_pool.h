// A plain pool for programs that have no threads of their own (the command line, the tests, small engines).
#pragma once

#include <functional>
#include <memory>

#include "locks/team.h"

namespace locks {

class ThreadPool {
 public:
  /// Starts num_threads - 1 threads; the caller of run() is the last one.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const noexcept;
  /// Calls work(team) on every thread and returns when all have finished. One caller at a time. An exception thrown
  /// by any thread's work is thrown here again (the first one); work that throws must not leave others at a barrier.
  void run(const std::function<void(Team)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace locks
