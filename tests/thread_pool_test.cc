#include "locks/thread_pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace locks {
namespace {

TEST(Team, SharesCoverEveryItemOnce) {
  for (int count = 1; count <= 9; ++count) {
    for (std::int64_t items = 0; items < 40; ++items) {
      std::int64_t next = 0;
      for (int index = 0; index < count; ++index) {
        const auto [first, last] = Team{index, count}.share(items);
        EXPECT_EQ(first, next);
        EXPECT_LE(last - first, items / count + 1);
        EXPECT_GE(last - first, items / count);
        next = last;
      }
      EXPECT_EQ(next, items);
    }
  }
}

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryThreadWorksOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  std::vector<int> calls(GetParam());
  for (int round = 1; round <= 200; ++round) {
    pool.run([&](Team team) {
      EXPECT_EQ(team.count, GetParam());
      ++calls[team.index];
    });
    for (const int count : calls) ASSERT_EQ(count, round);
  }
}

/// What one phase writes without any lock, the next must see, over and over with the same barrier.
TEST_P(ThreadPoolTest, BarrierSeparatesPhases) {
  constexpr int kPhases = 60;
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> cells(GetParam());
  std::atomic<int> wrong{0};
  for (int round = 0; round < 3; ++round) {
    std::fill(cells.begin(), cells.end(), 0);
    pool.run([&](Team team) {
      for (int phase = 1; phase <= kPhases; ++phase) {
        cells[team.index] = phase;
        team.sync();
        for (const std::int64_t cell : cells) wrong += cell == phase ? 0 : 1;
        team.sync();
      }
    });
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(ThreadPoolTest, ThrowsAgainWhatAnyThreadThrew) {
  ThreadPool pool(GetParam());
  for (int thrower = 0; thrower < GetParam(); ++thrower) {
    std::atomic<int> finished{0};
    try {
      pool.run([&](Team team) {
        if (team.index == thrower) throw std::runtime_error("thread " + std::to_string(thrower));
        ++finished;
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "thread " + std::to_string(thrower));
    }
    EXPECT_EQ(finished, GetParam() - 1);
  }
  EXPECT_THROW(pool.run([](Team) { throw std::invalid_argument("all"); }), std::invalid_argument);
  std::atomic<int> after{0};
  pool.run([&](Team) { ++after; });  // and the pool still works
  EXPECT_EQ(after, GetParam());
}

/// Threads wait spinning at first and then asleep; so does the caller.
TEST_P(ThreadPoolTest, SleepersWakeUp) {
  constexpr auto kLongerThanSpinning = std::chrono::milliseconds(2);
  ThreadPool pool(GetParam());
  std::vector<int> calls(GetParam());
  for (int round = 1; round <= 10; ++round) {
    if (round % 2 == 0) std::this_thread::sleep_for(kLongerThanSpinning);
    pool.run([&](Team team) {
      if (team.index == round % team.count) std::this_thread::sleep_for(kLongerThanSpinning);
      ++calls[team.index];
    });
    for (const int count : calls) ASSERT_EQ(count, round);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 7));

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), std::invalid_argument);
  EXPECT_THROW(ThreadPool(-3), std::invalid_argument);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need the address space
TEST(ThreadPoolDeathTest, ThreadsThatCannotBeStartedAreAnError) {
  const auto start_too_many = [] {
    const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};  // room for some of the threads' stacks of 8 MiB
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(4096);
    } catch (const std::system_error&) {
      std::_Exit(0);  // not before the threads that were started have ended
    }
    std::_Exit(1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPool, MayEndUnused) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace locks
