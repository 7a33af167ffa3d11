#include "locks/thread_pool.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace locks {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  const std::function<void(Team)>* work = nullptr;
  std::uint64_t job = 0;
  int running = 0;
  bool stopping = false;
  std::exception_ptr failure;
  Barrier barrier;
  std::vector<std::jthread> threads;

  void call(int index, int count) {
    try {
      (*work)(Team{index, count, &barrier});
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void serve(int index, int count) {
    std::uint64_t seen = 0;
    for (std::unique_lock lock(mutex);;) {
      start.wait(lock, [&] { return stopping || job != seen; });
      if (stopping) return;
      seen = job;
      lock.unlock();
      call(index, count);
      lock.lock();
      if (--running == 0) done.notify_one();
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

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->start.notify_all();
}

int ThreadPool::num_threads() const noexcept { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(const std::function<void(Team)>& work) {
  const int count = num_threads();
  {
    const std::lock_guard lock(state_->mutex);
    state_->work = &work;
    state_->running = count - 1;
    state_->failure = nullptr;
    ++state_->job;
  }
  state_->start.notify_all();
  state_->call(0, count);
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [&] { return state_->running == 0; });
  if (state_->failure) std::rethrow_exception(state_->failure);
}

}  // namespace locks
