// Runs kernels on the CPU, for what they compute and not for how fast: a thread block is a thread whose fibers are the
// block's threads, in turns from one meeting point to the next; a cluster is some blocks at a time. Include it before the
// kernels. They must keep warps whole where lanes talk to each other.
#pragma once

#undef _FORTIFY_SOURCE  // it takes jumps between stacks for errors

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#define LOCKS_EMULATED
#define __device__
#define __global__ inline
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local  // a block has a thread

struct EmulatedIndex {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};
inline thread_local EmulatedIndex threadIdx, blockIdx, blockDim;

namespace locks::cuda::emulator {

/// Where `expected` fibers meet.
struct MeetingPoint {
  int arrived = 0;
  unsigned meetings = 0;
  bool complete(int expected) {
    if (arrived < expected) return false;
    arrived = 0;
    ++meetings;
    return true;
  }
};

struct Cluster {
  explicit Cluster(int blocks) : size(blocks), meeting(blocks), shared(static_cast<std::size_t>(blocks)) {}
  int size;
  std::barrier<> meeting;
  std::vector<std::byte*> shared;  // of each block; there from its first meeting on
};

/// One thread block at work, on the thread that runs it.
class Block {
 public:
  static constexpr int kLanes = 32;
  static thread_local Block* current;

  Block(Cluster& cluster, int rank, int threads, std::size_t shared_bytes)
      : cluster_(cluster),
        rank_(rank),
        fibers_(static_cast<std::size_t>(threads)),
        warps_(fibers_.size() / kLanes),
        shared_(shared_bytes / sizeof(std::max_align_t) + 1) {
    cluster.shared[static_cast<std::size_t>(rank)] = reinterpret_cast<std::byte*>(shared_.data());
  }

  void run(const std::function<void()>& kernel) {
    current = this;
    kernel_ = &kernel;
    live_ = static_cast<int>(fibers_.size());
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, [] { current->work(); }, 0);
    }
    while (live_ > 0) {
      for (std::size_t i = 0; i < fibers_.size(); ++i) {
        if (fibers_[i].done) continue;
        own_ = i;
        threadIdx.x = static_cast<unsigned>(i);
        switch_to(fibers_[i]);
      }
    }
    current = nullptr;
  }

  void meet_block() { meet(block_, live_); }
  /// All lanes give a value; each gets what `pick` makes of all of them.
  template <class T, class Pick>
  auto exchange(T value, const Pick& pick) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    Warp& warp = warps_[own_ / kLanes];
    const std::size_t lane = own_ % kLanes;
    std::memcpy(&warp.slots[lane], &value, sizeof(T));
    meet(warp.meeting, kLanes);
    T values[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(&values[i], &warp.slots[i], sizeof(T));
    const auto picked = pick(values, static_cast<int>(lane));
    meet(warp.meeting, kLanes);
    return picked;
  }
  void meet_cluster() {
    meet_block();
    if (own_ == 0) cluster_.meeting.arrive_and_wait();
    meet_block();
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int cluster_size() const { return cluster_.size; }
  [[nodiscard]] void* shared() { return shared_.data(); }
  template <class T>
  [[nodiscard]] T* at(T* own, int other) {
    auto* const bytes = reinterpret_cast<std::byte*>(own);
    return reinterpret_cast<T*>(cluster_.shared[static_cast<std::size_t>(other)] +
                                (bytes - cluster_.shared[static_cast<std::size_t>(rank_)]));
  }

 private:
  static constexpr std::size_t kStackBytes = 64 * 1024;
  struct Fiber {
    ucontext_t context{};
    jmp_buf place;
    std::unique_ptr<std::byte[]> stack;
    bool started = false;
    bool done = false;
  };
  struct Warp {
    MeetingPoint meeting;
    std::uint64_t slots[kLanes] = {};
  };

  void work() {
    (*kernel_)();
    fibers_[own_].done = true;
    --live_;
    block_.complete(std::max(live_, 1));  // who has left is not waited for
    _longjmp(scheduler_place_, 1);
  }
  /// Contexts begin a fiber; from then on jumps, which make no system call.
  void switch_to(Fiber& fiber) {
    if (_setjmp(scheduler_place_) != 0) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.context);
  }
  void meet(MeetingPoint& point, int expected) {
    const unsigned before = point.meetings;
    ++point.arrived;
    if (point.complete(expected)) return;
    while (point.meetings == before) {
      if (_setjmp(fibers_[own_].place) == 0) _longjmp(scheduler_place_, 1);
    }
  }

  Cluster& cluster_;
  int rank_;
  const std::function<void()>* kernel_ = nullptr;
  jmp_buf scheduler_place_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::max_align_t> shared_;
  MeetingPoint block_;
  std::size_t own_ = 0;
  int live_ = 0;
};
inline thread_local Block* Block::current = nullptr;

inline int cluster_rank() { return Block::current->rank(); }
inline int cluster_size() { return Block::current->cluster_size(); }
inline void cluster_sync() { Block::current->meet_cluster(); }
inline void* dynamic_shared() { return Block::current->shared(); }
/// The same place in another block of the cluster.
template <class T>
T* at(T* own, int other) {
  return Block::current->at(own, other);
}

/// Launches `kernel` on a grid of x by y blocks in clusters of neighbours in x, cluster after cluster.
inline void launch(unsigned x, unsigned y, int cluster, int threads, std::size_t shared_bytes,
                   const std::function<void()>& kernel) {
  for (unsigned row = 0; row < y; ++row) {
    for (unsigned first = 0; first < x; first += static_cast<unsigned>(cluster)) {
      Cluster together(cluster);
      std::vector<std::jthread> blocks;
      for (int rank = 0; rank < cluster; ++rank) {
        blocks.emplace_back([&, rank] {
          blockIdx = {first + static_cast<unsigned>(rank), row};
          blockDim = {static_cast<unsigned>(threads), 1};
          Block(together, rank, threads, shared_bytes).run(kernel);
        });
      }
    }
  }
}

}  // namespace locks::cuda::emulator

// What the kernels call.
inline void __syncthreads() { locks::cuda::emulator::Block::current->meet_block(); }
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  return locks::cuda::emulator::Block::current->exchange(
      value, [&](const T* all, int own) { return all[own / width * width + lane % width]; });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  return locks::cuda::emulator::Block::current->exchange(
      value, [&](const T* all, int own) { return (own ^ mask) / width == own / width ? all[own ^ mask] : all[own]; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
  const int step = static_cast<int>(delta);
  return locks::cuda::emulator::Block::current->exchange(
      value, [&](const T* all, int own) { return own % width >= step ? all[own - step] : all[own]; });
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
  const int step = static_cast<int>(delta);
  return locks::cuda::emulator::Block::current->exchange(
      value, [&](const T* all, int own) { return own % width + step < width ? all[own + step] : all[own]; });
}
inline void __syncwarp() { (void)__shfl_sync(~0U, 0, 0); }
inline int __reduce_add_sync(unsigned, int value) {
  return locks::cuda::emulator::Block::current->exchange(
      value, [](const int* all, int) { return std::accumulate(all, all + 32, 0); });
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  return locks::cuda::emulator::Block::current->exchange(static_cast<unsigned>(vote), [](const unsigned* all, int) {
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) votes |= all[i] << i;
    return votes;
  });
}
template <class T>
T atomicAdd(T* at, T value) {
  return std::atomic_ref(*at).fetch_add(value);
}
template <class T>
T atomicAnd(T* at, T value) {
  return std::atomic_ref(*at).fetch_and(value);
}
template <class T>
T atomicOr(T* at, T value) {
  return std::atomic_ref(*at).fetch_or(value);
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
struct float2 {
  float x, y;
};
struct int4 {
  int x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
using std::max;
using std::min;
