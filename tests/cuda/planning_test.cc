// What is planned on the host: how rows are cut, grids, divisions by multiplication and workspaces. Needs no GPU.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "attend/attend_cuda.h"
#include "cuda/door.h"
#include "locks/cuda.h"
#include "score/score_launch.h"
#include "select/select_launch.h"

namespace locks {
namespace {

using namespace cuda::attend_stage;

TEST(CudaPlanning, LeavesCoverEveryRowAndAreFew) {
  for (const int lists : {1, 2, 3, 4, 6, 8, 16, 32, 96, 1000}) {
    const Cut cut = make_cut(lists);
    EXPECT_EQ(cut.short_leaves % kGroupLeaves, 0) << lists;
    EXPECT_LE(cut.short_leaves, kMaxLeaves) << lists;
    EXPECT_LE(cut.long_leaves, cut.short_leaves) << lists;
    for (std::int64_t tokens = 0; tokens < (1 << 30); tokens += 1 + tokens / 7) {
      const auto row = static_cast<int>(tokens);
      const int leaf = leaf_tokens(row, cut);
      const int leaves = leaves_of(row, cut);
      EXPECT_EQ(leaf % kLeafStep, 0) << tokens;
      EXPECT_GE(std::int64_t{leaf} * leaves, tokens) << tokens;
      EXPECT_LT(std::int64_t{leaf} * (leaves - 1), std::max<std::int64_t>(tokens, 1))
          << tokens << ": the last leaf is empty";
      // What a grid is sized for, the longest row, covers all shorter ones.
      EXPECT_LE(leaves, most_leaves(tokens, cut)) << tokens;
      EXPECT_LE(most_leaves(tokens, cut), most_leaves(tokens + 1, cut)) << tokens;
      if (leaf > kLeafTokens) {
        EXPECT_LT(std::int64_t{leaf - kLeafStep} * cut.long_leaves, tokens) << "leaves are longer than they need to be";
      }
    }
  }
  EXPECT_EQ(make_cut(1).long_leaves, kMaxLeaves);
  EXPECT_EQ(make_cut(4).short_leaves, 64);
  EXPECT_EQ(make_cut(8).short_leaves, 64);
  EXPECT_EQ(make_cut(8).long_leaves, 32);
  EXPECT_EQ(make_cut(32).long_leaves, 8);
  EXPECT_EQ(kMaxLeaves % leaves_per_part(1), 0);
  EXPECT_EQ(kMaxLeaves % leaves_per_part(1 << 20), 0);
}

TEST(CudaPlanning, BlocksTakeAsManyShortLeavesAsOneWaveNeeds) {
  constexpr int kAtOnce = 264;
  for (const int leaf : {128, 192, 256, 512, 4096}) {
    for (int rows = 1; rows < kFewRows; ++rows) {
      for (int leaves = 1; leaves <= kMaxLeaves; ++leaves) {
        const int taken = leaves_per_block(leaf, leaves, rows, kAtOnce);
        ASSERT_GE(taken, 1);
        ASSERT_TRUE(taken == 1 || taken * leaf <= kBlockTokens);
        if (taken > 1) {
          ASSERT_GT((leaves * rows + taken - 2) / (taken - 1), kAtOnce) << "fewer would do";
        }
        ASSERT_TRUE(leaves * rows <= taken * kAtOnce || (taken + 1) * leaf > kBlockTokens);
      }
    }
  }
}

TEST(CudaPlanning, GridsHaveBlocksForEveryShorterRow) {
  constexpr int kAtOnce = 264;
  for (const int lists : {1, 4, 8, 32}) {
    const Cut cut = make_cut(lists);
    for (int rows = lists; rows < kFewRows; rows += lists) {
      for (const int longest : {0, 1, 128, 1000, 16384, 20000, 131072}) {
        const int known = blocks_of_rows(longest, cut, rows, kAtOnce);
        const int listed = blocks_of_lists(longest, cut, rows, kAtOnce);
        // A block of a list takes as many leaves as it would of the longest one.
        const int taken =
            longest == 0 ? 1 : leaves_per_block(leaf_tokens(longest, cut), most_leaves(longest, cut), rows, kAtOnce);
        for (int tokens = 1; tokens <= longest; tokens += 1 + tokens / 50) {
          const int leaves = leaves_of(tokens, cut);
          ASSERT_LE(leaves, known * leaves_per_block(leaf_tokens(tokens, cut), leaves, rows, kAtOnce)) << tokens;
          ASSERT_LE(leaves, listed * taken) << tokens;
        }
      }
    }
  }
  EXPECT_EQ(blocks_of_rows(1 << 20, make_cut(4), 4, kAtOnce), 64);
}

TEST(CudaPlanning, DividersDivideEveryNumber) {
  // A quotient changes only at multiples of the divisor: if it is right on both sides of each, it is right between.
  const auto check = [](std::uint32_t divisor, std::uint32_t number) {
    const Divider by = make_divider(divisor);
    const std::uint64_t quotient = ((std::uint64_t{2} * number * by.magic) >> 32) >> by.shift;  // as on the device
    ASSERT_EQ(quotient, number / divisor) << number << " / " << divisor;
  };
  for (std::uint32_t divisor :
       {1U, 2U, 3U, 5U, 6U, 7U, 8U, 12U, 48U, 63U, 64U, 65U, 1000U, 4096U, 65535U, 65537U, 1U << 30}) {
    for (std::uint64_t multiple = divisor; multiple < (std::uint64_t{1} << 31);
         multiple += divisor + multiple / 64 / divisor * divisor) {
      check(divisor, static_cast<std::uint32_t>(multiple));
      check(divisor, static_cast<std::uint32_t>(multiple - 1));
    }
    check(divisor, 0);
    check(divisor, (1U << 31) - 1);
  }
}

TEST(CudaPlanning, TablesDivideByAMultiplication) {
  const std::vector<std::int32_t> blocks(1);
  const std::vector<std::int32_t> tokens{1};
  for (int pages = 2; pages <= cuda::kMaxInverted; ++pages) {
    PageTable table;
    table.block_tokens = pages * kPageTokens;
    table.blocks = {blocks.data(), {1, 1}, {1, 1}};
    table.context_tokens = tokens;
    const cuda::DeviceTable on_device = cuda::door::table(table);
    const auto quotient = [&](std::uint32_t index) {
      return static_cast<std::uint32_t>((std::uint64_t{index} * on_device.inverse) >> 32);
    };
    for (std::uint32_t block = 1; block < (1U << 27) / static_cast<unsigned>(pages); block += 1 + block / 512) {
      const std::uint32_t first = block * static_cast<unsigned>(pages);
      ASSERT_EQ(quotient(first), block) << pages << " pages a block";
      ASSERT_EQ(quotient(first - 1), block - 1) << pages << " pages a block";
    }
  }
}

TEST(CudaPlanning, ScoringFillsTheGpuButStartsNoIdleBlock) {
  constexpr int kWarps = 8;
  constexpr int kResident = 264;
  const auto shares = [](int columns, int requests, int pages) {
    return cuda::score_kernels::page_shares(kResident, columns, requests, pages, kWarps);
  };
  EXPECT_EQ(shares(4, 1, 65536), kResident / 4) << "long: as many as run at once";
  EXPECT_EQ(shares(4, 1, 64), 1) << "eight warps take eight pages each";
  EXPECT_EQ(shares(4, 1, 65), 2);
  EXPECT_EQ(shares(4, 3, 65), 6);
  EXPECT_EQ(shares(1000, 1, 65536), 1) << "more columns than fit: one after the other";
  EXPECT_EQ(shares(4, 512, 65536), kResident / 4);
}

TEST(CudaPlanning, HeadsBeyondAPassTakeMorePasses) {
  EXPECT_EQ(heads_per_pass(DType::kF16, 128, 8), 8);
  EXPECT_EQ(heads_per_pass(DType::kBF16, 128, 16), 16);
  EXPECT_EQ(heads_per_pass(DType::kF32, 128, 16), 8) << "its state would not fit the registers";
  EXPECT_EQ(heads_per_pass(DType::kF16, 256, 16), 8);
}

// ---- workspaces

Geometry geometry(int kv_heads, int group) { return {128, kv_heads, kv_heads * group, 0.09F}; }

std::size_t decode_bytes(const DecodeConfig& config, const Geometry& shape, int requests, int context) {
  return cuda::decode_workspace_bytes(DecodePlan(config, shape, {requests, context, 1}));
}

TEST(CudaPlanning, WorkspacesGrowWithTheirLimitsAndStayAligned) {
  for (const DecodeConfig& config : {DecodeConfig{}, DecodeConfig::paper()}) {
    std::size_t before = 0;
    for (int context = 1024; context <= 1 << 20; context *= 2) {
      const std::size_t one = decode_bytes(config, geometry(4, 8), 1, context);
      EXPECT_EQ(one % 64, 0U);
      EXPECT_GE(one, before) << context;
      EXPECT_GT(decode_bytes(config, geometry(4, 8), 8, context), one) << context;
      before = one;
    }
  }
}

TEST(CudaPlanning, ContextsThatAreNeverSelectedFromNeedStatesAlone) {
  DecodeConfig config;
  config.select.budget_tokens = 4096;
  const std::size_t whole = decode_bytes(config, geometry(4, 8), 1, 4096);
  const Geometry shape = geometry(4, 8);
  const std::size_t states = static_cast<std::size_t>(shape.query_heads * (2 + shape.head_dim)) * sizeof(float);
  EXPECT_LE(whole, cuda::attend_workspace_bytes(shape, 1, shape.kv_heads) + states + 64);
  EXPECT_GT(decode_bytes(config, shape, 1, 4097), whole) << "one token more is selected from";
}

TEST(CudaPlanning, AMillionTokensNeedAFewMegabytesOfWorkspace) {
  // The keys and values of one layer at this length are 2 GiB.
  const std::size_t cache = std::size_t{2} * 4 * 128 * 2 * (1 << 20);
  EXPECT_LT(decode_bytes({}, geometry(4, 8), 1, 1 << 20), cache / 64);
  EXPECT_LT(decode_bytes(DecodeConfig::paper(), geometry(4, 8), 1, 1 << 20), cache / 64);
  EXPECT_LT(decode_bytes({}, geometry(4, 8), 512, 1 << 15), std::size_t{512} << 21) << "2 MiB a request at 32,768 tokens";
}

TEST(CudaPlanning, EveryQueryHeadForItselfNeedsListsOfItsOwn) {
  DecodeConfig config;
  const std::size_t shared = decode_bytes(config, geometry(4, 8), 2, 1 << 16);
  config.select.combine = GroupCombine::kPerQueryHead;
  EXPECT_GT(decode_bytes(config, geometry(4, 8), 2, 1 << 16), shared);
}

TEST(CudaPlanning, GangsHaveWorkAndRunSideBySide) {
  constexpr int kProcessors = 132;
  namespace kernels = cuda::select_kernels;
  static_assert(kernels::gang_size(4, 16, kProcessors) == 16, "128K tokens, 4 lists of 8 heads");
  static_assert(kernels::gang_size(4, 128, kProcessors) == 16, "1M: no more than a cluster holds");
  static_assert(kernels::gang_size(512, 2, kProcessors) == 1, "64 requests have lists enough");
  static_assert(kernels::block_threads(64, 1024, kProcessors) == 1024, "128K, 4 lists, for a quarter of them");
  static_assert(kernels::block_threads(64, 2048, kProcessors) == 1024, "1M");
  static_assert(kernels::block_threads(512, 512, kProcessors) == 256, "64 requests");
  for (std::int64_t gangs = 1; gangs < 5000; gangs = 1 + gangs * 5 / 4) {
    for (std::int64_t blocks = 1; blocks < 3000; blocks = 1 + blocks * 3) {
      const int size = kernels::gang_size(gangs, blocks, kProcessors);
      const int threads = kernels::block_threads(gangs * size, blocks, kProcessors);
      EXPECT_EQ(size & (size - 1), 0);
      EXPECT_EQ(threads & (threads - 1), 0);
      EXPECT_GE(threads, kernels::kFewestThreads);
      EXPECT_LE(threads, kernels::kMostThreads);
      EXPECT_TRUE(threads == kernels::kFewestThreads || blocks >= threads);
      if (size == 1) continue;
      EXPECT_LE(gangs * size * threads, std::int64_t{kProcessors} * kernels::kMostThreads);
      EXPECT_GE(blocks, size);
    }
  }
}

}  // namespace
}  // namespace locks
