#include "locks/thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace locks {
namespace {

/// Waits some tens of microseconds, about what it costs to wake a sleeping thread, for `happened()` and says whether it
/// did. Yields meanwhile, because the thread that makes it happen may be waiting for this very core.
template <class Happened>
bool spin_until(const Happened& happened) {
  constexpr auto kLongest = std::chrono::microseconds(50);
  for (const auto start = std::chrono::steady_clock::now(); !happened();) {
    if (std::chrono::steady_clock::now() - start > kLongest) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

/// Each side spins before it sleeps. What a sleeper waits for is written, or announced, under the mutex, so that no
/// wake-up is lost.
struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  const std::function<void(Team)>* work = nullptr;  // published by `job`
  std::atomic<std::uint64_t> job = 0;
  std::atomic<int> running = 0;
  std::atomic<bool> stopping = false;
  std::exception_ptr failure;
  Barrier barrier;
  std::vector<std::jthread> threads;  // the last member: they end, and are joined, before the rest goes

  /// Also when a later thread could not be started.
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
  }

  void call(int index, int count) {
    try {
      (*work)(Team{index, count, &barrier});
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void serve(int index, int count) {
    for (std::uint64_t seen = 0;; ++seen) {  // run() waits for everyone: no job is skipped
      const auto called = [&] { return stopping || job != seen; };
      if (!spin_until(called)) {
        std::unique_lock lock(mutex);
        start.wait(lock, called);
      }
      if (stopping) return;
      call(index, count);
      if (--running == 0) {
        const std::lock_guard lock(mutex);  // the caller has not looked yet, or sleeps
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 1)
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; at least 1 is needed");
  for (int index = 1; index < num_threads; ++index) {
    state_->threads.emplace_back([state = state_.get(), index, num_threads] { state->serve(index, num_threads); });
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const noexcept { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(const std::function<void(Team)>& work) {
  const int count = num_threads();
  state_->work = &work;
  state_->running = count - 1;
  state_->failure = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->job;
  }
  state_->start.notify_all();
  state_->call(0, count);
  const auto finished = [state = state_.get()] { return state->running == 0; };
  if (!spin_until(finished)) {
    std::unique_lock lock(state_->mutex);
    state_->done.wait(lock, finished);
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
}

}  // namespace locks
