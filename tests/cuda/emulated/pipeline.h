// Kernels that follow each other, in the order that is worst for one that may start early: it runs as soon as it can, and
// the one before goes on only when it waits for that. So what is read too soon is not there yet. Clusters and large grids
// have their turn alone.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "emulated/emulator.h"

namespace locks::cuda::emulator {

/// A thread that runs a block and stops in the middle: its caller and it take turns.
class Worker {
 public:
  Worker() : thread_([this](const std::stop_token& stop) { work(stop); }) {}
  ~Worker() {
    thread_.request_stop();
    give_turn(true);
  }
  /// Until the job calls suspend(), or ends.
  void start(std::function<void()> job) {
    job_ = std::move(job);
    resume();
  }
  void resume() {
    give_turn(true);
    wait_for_turn(false);
  }
  void suspend() {
    give_turn(false);
    wait_for_turn(true);
  }
  [[nodiscard]] bool done() const { return job_ == nullptr; }

 private:
  void work(const std::stop_token& stop) {
    for (wait_for_turn(true); !stop.stop_requested(); wait_for_turn(true)) {
      job_();
      job_ = nullptr;
      if (stop.stop_requested()) return;
      give_turn(false);
    }
  }
  void give_turn(bool workers) {
    {
      const std::lock_guard lock(mutex_);
      workers_turn_ = workers;
    }
    changed_.notify_all();
  }
  void wait_for_turn(bool workers) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return workers_turn_ == workers; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool workers_turn_ = false;
  std::function<void()> job_;
  std::jthread thread_;  // last: it begins when all the others are there
};

struct KernelLaunch {
  dim3 grid;
  int cluster = 1;
  int threads = 0;
  std::size_t shared_bytes = 0;
  bool early = false;
  std::function<void()> kernel;
};

/// A kernel under way.
class Grid {
 public:
  Grid(KernelLaunch launch, std::unique_ptr<Grid> previous) : launch_(std::move(launch)), previous_(std::move(previous)) {}

  /// Until all of its blocks have let the next kernel start, or ended.
  void begin() {
    if (launch_.cluster > 1) {
      finish_previous();
      launch(launch_.grid, launch_.cluster, launch_.threads, launch_.shared_bytes, launch_.kernel);
      return;
    }
    const std::size_t blocks = std::size_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
    const bool suspends = blocks <= kMostSuspended;
    for (unsigned z = 0; z < launch_.grid.z; ++z) {
      for (unsigned y = 0; y < launch_.grid.y; ++y) {
        for (unsigned x = 0; x < launch_.grid.x; ++x) {
          if (suspends) {
            begin_block({x, y, z});
          } else {
            run_block({x, y, z}, {nullptr, [this] { finish_previous(); }});
          }
        }
      }
    }
  }
  /// Its own blocks alone: if none of them waited for the kernel before, that may still be under way.
  void finish() {
    for (std::unique_ptr<Worker>& worker : workers_) {
      worker->resume();
      idle().push_back(std::move(worker));
    }
    workers_.clear();
  }
  void finish_all() {
    finish();
    if (previous_ != nullptr) previous_->finish_all();
    previous_ = nullptr;
  }

 private:
  static constexpr std::size_t kMostSuspended = 128;  // each has a thread

  static std::vector<std::unique_ptr<Worker>>& idle() {
    static std::vector<std::unique_ptr<Worker>> workers;
    return workers;
  }
  void begin_block(EmulatedIndex index) {
    if (idle().empty()) idle().push_back(std::make_unique<Worker>());
    std::unique_ptr<Worker> worker = std::move(idle().back());
    idle().pop_back();
    worker->start(
        [this, index, own = worker.get()] { run_block(index, {[own] { own->suspend(); }, [this] { finish_previous(); }}); });
    (worker->done() ? idle() : workers_).push_back(std::move(worker));
  }
  void run_block(EmulatedIndex index, const Block::Turns& turns) const {
    blockIdx = index;
    blockDim = {static_cast<unsigned>(launch_.threads), 1, 1};
    gridDim = {launch_.grid.x, launch_.grid.y, launch_.grid.z};
    Cluster alone(1);
    Block(alone, 0, launch_.threads, launch_.shared_bytes).run(launch_.kernel, turns);
  }
  void finish_previous() {
    if (previous_ != nullptr) previous_->finish();
  }

  KernelLaunch launch_;
  std::unique_ptr<Grid> previous_;                // which this one may have been started before the end of
  std::vector<std::unique_ptr<Worker>> workers_;  // of blocks that are suspended
};

/// All streams are one.
class Pipeline {
 public:
  void launch(KernelLaunch launch) {
    if (!launch.early) finish();
    last_ = std::make_unique<Grid>(std::move(launch), std::move(last_));
    last_->begin();
  }
  void finish() {
    if (last_ != nullptr) last_->finish_all();
    last_ = nullptr;
  }

 private:
  std::unique_ptr<Grid> last_;
};

}  // namespace locks::cuda::emulator
