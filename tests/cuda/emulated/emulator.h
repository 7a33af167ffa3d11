// Runs kernels on the CPU, for what they compute and not for how fast: a thread block is a thread whose fibers are the
// block's threads, in turns from one meeting point to the next; a cluster is some blocks at a time. Include it before the
// kernels. They must keep warps whole where lanes talk to each other. Copies that nobody waited for have not been made.
#pragma once

#undef _FORTIFY_SOURCE  // it takes jumps between stacks for errors; so this file comes before all others

#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#define LOCKS_EMULATED
#undef __device__
#undef __global__
#undef __forceinline__
#undef __launch_bounds__
#undef __maxnreg__
#undef __grid_constant__
#undef __shared__
#define __device__
#define __global__ inline
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __shared__ static thread_local  // a block has a thread

struct EmulatedIndex {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};
inline thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

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

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s, block %u %u %u, thread %u\n", what, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
  std::abort();
}

/// 16 bytes on their way to shared memory: zeros, if they come from nowhere.
struct Copy {
  static constexpr std::size_t kBytes = 16;
  std::byte* to;
  const std::byte* from;
  void make() const {
    if (from == nullptr) {
      std::memset(to, 0, kBytes);
    } else {
      std::memcpy(to, from, kBytes);
    }
  }
};

/// One thread block at work, on the thread that runs it.
class Block {
 public:
  static constexpr int kLanes = 32;
  static constexpr int kBarriers = 16;
  static thread_local Block* current;

  Block(Cluster& cluster, int rank, int threads, std::size_t shared_bytes)
      : cluster_(cluster),
        rank_(rank),
        fibers_(static_cast<std::size_t>(threads)),
        warps_((fibers_.size() + kLanes - 1) / kLanes),
        shared_(shared_bytes / sizeof(std::max_align_t) + 1),
        live_(threads) {
    std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(std::max_align_t));
    cluster.shared[static_cast<std::size_t>(rank)] = reinterpret_cast<std::byte*>(shared_.data());
  }

  /// What a block does between kernels that follow each other; nothing, if it is on its own.
  struct Turns {
    std::function<void()> suspend;            // comes back when the block goes on
    std::function<void()> wait_for_previous;  // the kernel before this one
  };

  void run(const std::function<void()>& kernel, const Turns& turns = {}) {
    current = this;
    kernel_ = &kernel;
    turns_ = &turns;
    goes_on_ = turns.suspend == nullptr;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      ucontext_t& context = fibers_[i].context;
      getcontext(&context);
      std::memcpy(stack_of(i), kStackEnd, sizeof(kStackEnd));
      context.uc_stack = {stack_of(i), 0, kStackBytes};
      context.uc_link = nullptr;
      makecontext(&context, [] { current->work(); }, 0);
    }
    // Every other block goes through its threads backwards: what no barrier puts in order comes in both.
    backwards_ = (blockIdx.x + blockIdx.y + blockIdx.z) % 2 == 1;
    while (live_ > 0) {
      moved_ = false;
      for (std::size_t i = 0; i < fibers_.size(); ++i) {
        own_ = backwards_ ? fibers_.size() - 1 - i : i;
        if (fibers_[own_].done) continue;
        threadIdx.x = static_cast<unsigned>(own_);
        switch_to(fibers_[own_]);
      }
      if (moved_) continue;
      if (goes_on_) fail("threads wait for each other");
      // Some threads let the next kernel start, and the others can do nothing without them.
      if (released_ == live_) turns.suspend();
      goes_on_ = true;
    }
    cluster_.meeting.arrive_and_drop();  // who has left is not waited for
    current = nullptr;
  }

  void let_next_start() {
    if (goes_on_) return;
    ++released_;
    moved_ = true;
    while (!goes_on_) leave();
  }
  void wait_for_previous() {
    if (turns_->wait_for_previous) turns_->wait_for_previous();
  }

  void meet_block() { meet(barriers_[0], live_); }
  void meet_some(int barrier, int threads) { meet(barriers_[barrier], threads); }
  /// All lanes give a value; each gets what `pick` makes of all of them.
  template <class T, class Pick>
  auto exchange(const T& value, const Pick& pick) {
    static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
    Warp& warp = warps_[own_ / kLanes];
    const std::size_t lane = own_ % kLanes;
    // A lane can be at the next exchange while others still read, but not at the one behind it.
    std::byte* const slots = warp.slots[warp.meeting.meetings % 2];
    std::memcpy(slots + lane * sizeof(T), &value, sizeof(T));
    meet(warp.meeting, kLanes);
    return pick(reinterpret_cast<const T*>(slots), static_cast<int>(lane));
  }
  void meet_cluster() {
    meet_block();
    if (own_ == 0) cluster_.meeting.arrive_and_wait();
    meet_block();
  }
  /// As late as a copy can be, or as early: into what others still read, or not there when it is read.
  void begin_copy(const Copy& copy) {
    if (reinterpret_cast<std::uintptr_t>(copy.from) % Copy::kBytes != 0) fail("a copy from an address that is not aligned");
    if (backwards_) {
      copy.make();
    } else {
      fibers_[own_].copies.push_back(copy);
    }
  }
  void commit_copies() { fibers_[own_].groups.push_back(std::exchange(fibers_[own_].copies, {})); }
  void wait_copies(std::size_t pending) {
    std::deque<std::vector<Copy>>& groups = fibers_[own_].groups;
    for (; groups.size() > pending; groups.pop_front()) {
      for (const Copy& copy : groups.front()) copy.make();
    }
  }
  /// For what another block does, which is done long before a minute is over.
  template <class Done>
  void wait_for(const Done& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) fail("bytes that do not come");
      moved_ = true;
      std::this_thread::yield();
      leave();
    }
    moved_ = true;
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int cluster_size() const { return cluster_.size; }
  [[nodiscard]] void* shared() { return shared_.data(); }
  [[nodiscard]] std::uint32_t address_of(const void* shared) const {
    return static_cast<std::uint32_t>(static_cast<const std::byte*>(shared) - shared_bytes());
  }
  [[nodiscard]] std::byte* at_address(std::uint32_t address, std::size_t bytes) {
    if (address % bytes != 0) fail("an address in shared memory that is not aligned");
    if (address + bytes > shared_.size() * sizeof(std::max_align_t)) fail("an address behind the shared memory");
    return reinterpret_cast<std::byte*>(shared_.data()) + address;
  }
  template <class T>
  [[nodiscard]] T* at(T* own, int other) {
    auto* const bytes = reinterpret_cast<std::byte*>(own);
    return reinterpret_cast<T*>(cluster_.shared[static_cast<std::size_t>(other)] +
                                (bytes - cluster_.shared[static_cast<std::size_t>(rank_)]));
  }

 private:
  static constexpr std::size_t kStackBytes = 64 * 1024;
  static constexpr char kStackEnd[] = "no stack comes this far down";
  static constexpr std::size_t kSlotBytes = 64;
  struct Fiber {
    ucontext_t context{};
    jmp_buf place;
    bool started = false;
    bool done = false;
    std::vector<Copy> copies;
    std::deque<std::vector<Copy>> groups;
  };
  struct Warp {
    MeetingPoint meeting;
    alignas(std::max_align_t) std::byte slots[2][kLanes * kSlotBytes];
  };

  [[nodiscard]] const std::byte* shared_bytes() const { return reinterpret_cast<const std::byte*>(shared_.data()); }
  /// Kept for the blocks that the thread runs later.
  static std::byte* stack_of(std::size_t fiber) {
    static thread_local std::vector<std::unique_ptr<std::byte[]>> stacks;
    while (stacks.size() <= fiber) stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    return stacks[fiber].get();
  }
  void work() {
    (*kernel_)();
    fibers_[own_].done = true;
    moved_ = true;
    if (std::memcmp(stack_of(own_), kStackEnd, sizeof(kStackEnd)) != 0) fail("a stack that is too small");
    --live_;
    barriers_[0].complete(std::max(live_, 1));  // who has left is not waited for
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
    moved_ = true;
    ++point.arrived;
    if (point.complete(expected)) return;
    while (point.meetings == before) leave();
  }
  /// Comes back in the fiber's next turn.
  void leave() {
    if (_setjmp(fibers_[own_].place) == 0) _longjmp(scheduler_place_, 1);
  }

  Cluster& cluster_;
  int rank_;
  const std::function<void()>* kernel_ = nullptr;
  jmp_buf scheduler_place_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::max_align_t> shared_;
  MeetingPoint barriers_[kBarriers];
  std::size_t own_ = 0;
  int live_;
  const Turns* turns_ = nullptr;
  bool goes_on_ = true;  // with what comes after it let the next kernel start
  int released_ = 0;     // threads that have come there
  bool moved_ = false;   // a thread has, in this turn of all
  bool backwards_ = false;
};
inline thread_local Block* Block::current = nullptr;

/// Bytes that other blocks write into the shared memory of this one.
class Mailbox {
 public:
  void open(int bytes) { left_.store(bytes); }
  template <class T>
  void put(T* to, const T& value) {
    *to = value;
    if (left_.fetch_sub(sizeof(T)) < static_cast<int>(sizeof(T))) fail("more bytes than were to come");
  }
  void wait() {
    Block::current->wait_for([this] { return left_.load() == 0; });
  }

 private:
  std::atomic<int> left_;
};

inline int cluster_rank() { return Block::current->rank(); }
inline int cluster_size() { return Block::current->cluster_size(); }
inline void cluster_sync() { Block::current->meet_cluster(); }
inline void* dynamic_shared() { return Block::current->shared(); }
/// The same place in another block of the cluster.
template <class T>
T* at(T* own, int other) {
  return Block::current->at(own, other);
}

/// Runs `kernel` on a grid whose blocks are in clusters of neighbours in x, cluster after cluster.
inline void launch(dim3 grid, int cluster, int threads, std::size_t shared_bytes, const std::function<void()>& kernel) {
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned first = 0; first < grid.x; first += static_cast<unsigned>(cluster)) {
        Cluster together(cluster);
        const auto run = [&](int rank) {
          blockIdx = {first + static_cast<unsigned>(rank), y, z};
          blockDim = {static_cast<unsigned>(threads), 1, 1};
          gridDim = {grid.x, grid.y, grid.z};
          Block(together, rank, threads, shared_bytes).run(kernel);
        };
        if (cluster == 1) {
          run(0);
          continue;
        }
        std::vector<std::jthread> blocks;
        for (int rank = 0; rank < cluster; ++rank) blocks.emplace_back(run, rank);
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
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return locks::cuda::emulator::Block::current->exchange(
      value, [](const unsigned* all, int) { return *std::max_element(all, all + 32); });
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  return locks::cuda::emulator::Block::current->exchange(
      value, [](const unsigned* all, int) { return std::accumulate(all, all + 32, 0U, std::bit_or<>()); });
}
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
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __any_sync(unsigned lanes, bool vote) { return __ballot_sync(lanes, vote) != 0; }
inline int __all_sync(unsigned lanes, bool vote) { return __ballot_sync(lanes, vote) == ~0U; }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fmaf_rd(float x, float y, float z) {
  const double sum = std::fma(double{x}, double{y}, double{z});  // so near that rounding it can only matter at 2^-53
  const auto nearest = static_cast<float>(sum);
  return nearest > sum ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest;
}
inline float __saturatef(float x) { return x >= 0.0F ? std::min(x, 1.0F) : 0.0F; }
inline float __log2f(float x) { return std::log2(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline std::uint32_t __umulhi(std::uint32_t x, std::uint32_t y) {
  return static_cast<std::uint32_t>(std::uint64_t{x} * y >> 32);
}
inline std::uint32_t __funnelshift_l(std::uint32_t low, std::uint32_t high, std::uint32_t shift) {
  return static_cast<std::uint32_t>(((std::uint64_t{high} << 32 | low) << (shift % 32)) >> 32);
}
inline std::uint32_t __byte_perm(std::uint32_t first, std::uint32_t second, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{second} << 32 | first;
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return word;
}
inline std::uint32_t __vcmpeq2(std::uint32_t x, std::uint32_t y) {
  const std::uint32_t differ = x ^ y;
  return ((differ & 0xFFFFU) == 0 ? 0xFFFFU : 0U) | ((differ >> 16) == 0 ? 0xFFFF0000U : 0U);
}
inline std::uint32_t __cvta_generic_to_shared(const void* shared) {
  return locks::cuda::emulator::Block::current->address_of(shared);
}
using std::max;
using std::min;
