// Times of work that is bound by memory, beside the read bandwidth of the machine at the same moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "locks/target.h"
#include "locks/team.h"
#include "locks/thread_pool.h"

namespace locks::cli {

/// 64-byte aligned memory on ordinary pages, as a host's cache has it.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes);
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t bytes_ = 0;
};

/// Fills `memory` with copies of its first `period` bytes.
void repeat(std::span<std::byte> memory, std::size_t period);

[[nodiscard]] double median(std::vector<double> values);

/// Reads 640 MB, more than any processor cache holds: a measurement, and afterwards nothing else is cached.
class ReadBandwidth {
 public:
  explicit ReadBandwidth(Target target);
  /// Bytes per second of one pass by all threads.
  double measure(ThreadPool& pool);

 private:
  Memory memory_;
  std::uint64_t (*read_)(const std::byte*, std::size_t);
  std::uint64_t total_ = 0;
};

/// What is timed. `run` is called by all threads of the team; one run is `steps` repetitions on different data.
struct Work {
  std::function<void(Team)> run;
  int steps = 1;
};

struct Timing {
  double step_us = 0.0;
  double baseline_us = 0.0;      // 0: no baseline
  double baseline_ratio = 0.0;   // baseline step / step, median of the rounds' ratios
  double bandwidth = 0.0;        // of the machine, bytes per second
  double bandwidth_share = 0.0;  // of `bytes_per_step`, median of the rounds' ratios
  int rounds = 0;
};

/// Rounds of bandwidth, baseline (if it has a run) and work, each after a pass that leaves the processor caches without
/// their data, for about `seconds` and at least `min_rounds`. Ratios are taken inside a round, so that a machine that is
/// busy for a while slows both sides.
Timing measure(ThreadPool& pool, ReadBandwidth& bandwidth, const Work& work, const Work& baseline, double bytes_per_step,
               double seconds, int min_rounds);

}  // namespace locks::cli
