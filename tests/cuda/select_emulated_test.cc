// The selection's kernels on the CPU (emulated/emulator.h): what they compute is tested without a GPU too.
#include "emulated/emulator.h"

#include "rank_case.h"
#include "select/kernels.cuh"
#include "select/select_launch.h"
#include "select_case.h"

namespace locks {
namespace {

using test::selection::Case;
namespace kernels = cuda::select_kernels;

/// Host memory with DeviceArray's face.
template <class T>
class HostArray {
 public:
  explicit HostArray(std::size_t count) : data_(std::max<std::size_t>(1, count)) {}
  explicit HostArray(const std::vector<T>& data) : data_(data) {}
  [[nodiscard]] T* data() const { return data_.data(); }
  [[nodiscard]] std::span<T> span() const { return data_; }
  [[nodiscard]] const std::vector<T>& read() const { return data_; }

 private:
  mutable std::vector<T> data_;
};

constexpr int kThreads = 128;  // the emulator's time goes with them

/// `most` bytes of shared memory.
void select(const cuda::SelectArgs& args, int gang, std::size_t most) {
  const kernels::Lists lists = kernels::checked(args);
  const auto x = static_cast<unsigned>(args.num_lists * gang);
  const auto y = static_cast<unsigned>(lists.requests());
  const int parts = kPageTokens / args.config.part_tokens;
  const auto& buffers = lists.buffers;
  const kernels::PagesMemory pages(lists.heads, (buffers.max_blocks + gang - 1) / gang, buffers.max_blocks,
                                   lists.selects_pages() ? lists.words_of_candidates() : 0, most);
  const kernels::TokensMemory tokens(lists.heads, parts, buffers.capacity, buffers.max_pages, most);
  cuda::emulator::launch({x, y}, gang, kThreads, pages.bytes, [&] { kernels::choose_pages<false>(lists, pages, true); });
  if (lists.selects_pages()) return;
  const int token_gang = tokens.keeps_candidates ? gang : 1;  // the workspace is no memory of a cluster's
  cuda::emulator::launch({static_cast<unsigned>(args.num_lists * token_gang), y}, token_gang, kThreads, tokens.bytes,
                         [&] { kernels::choose_tokens(lists, tokens, true); });
}

void rank(const cuda::SelectArgs& args, int gang, std::size_t most) {
  const kernels::Lists lists = kernels::checked(args);
  const auto& buffers = lists.buffers;
  const kernels::PagesMemory pages(lists.heads, (buffers.max_blocks + gang - 1) / gang, buffers.max_blocks, 0, most);
  cuda::emulator::launch({static_cast<unsigned>(args.num_lists * gang), static_cast<unsigned>(lists.requests())}, gang,
                         kThreads, pages.bytes, [&] { kernels::choose_pages<true>(lists, pages, false); });
}

TEST(EmulatedRanks, AreThoseOfTheSelectors) {
  constexpr std::size_t kPlenty = 1 << 20;
  for (const test::ranks::Scores kind : test::ranks::kAllScores) {
    const auto check = [kind](const std::vector<std::int32_t>& contexts, int budget, int gang, std::size_t most) {
      test::ranks::check_ranks<HostArray>(kind, contexts, budget,
                                          [=](const cuda::SelectArgs& args) { rank(args, gang, most); });
    };
    check({5000, 100, 0, 1037, 1040, 1041}, 256, 1, kPlenty);
    check({5000}, 4096, 1, 0);
    check({12000, 3000}, 2048, 4, kPlenty);
    check({12000}, 48, 4, 0);
  }
}

class EmulatedSelect : public testing::TestWithParam<Case> {};

TEST_P(EmulatedSelect, HasTheBitsOfTheCpu) {
  constexpr std::size_t kPlenty = 1 << 20;
  const auto by = [](int gang, std::size_t most) { return [=](const cuda::SelectArgs& args) { select(args, gang, most); }; };
  test::selection::check_selection<HostArray>(GetParam(), {5000, 100, 0, 1037}, by(1, kPlenty));
  test::selection::check_selection<HostArray>(GetParam(), {5000}, by(1, 0));
  test::selection::check_selection<HostArray>(GetParam(), {12000}, by(4, kPlenty));
  test::selection::check_selection<HostArray>(GetParam(), {12000}, by(4, 0));
}

/// Shared memory that holds neither all masses of a thread block nor their shares, but what is sent: blocks are weighed
/// twice, a round at a time, and sent once.
TEST(EmulatedSelectInRounds, HasTheBitsOfTheCpu) {
  constexpr int kHeads = 3;       // of a list in these cases
  constexpr int kTokens = 92000;  // for each of a gang's blocks more blocks of pages than a round has
  for (const int gang : {1, 4}) {
    const int tokens = gang * kTokens;
    const int max_blocks = (tokens / kPageTokens + select::kBlockPages - 1) / select::kBlockPages;
    const int own_blocks = (max_blocks + gang - 1) / gang;
    const std::size_t sent = sizeof(select::BlockMass) * static_cast<std::size_t>(kHeads * max_blocks);
    const std::size_t most = kernels::PagesMemory(kHeads, own_blocks, max_blocks, 0, 0).bytes + sent;
    const kernels::PagesMemory memory(kHeads, own_blocks, max_blocks, 0, most);
    ASSERT_TRUE(memory.gathers && !memory.keeps_shares && memory.round_blocks < own_blocks) << gang;
    for (const int part : {4, kPageTokens}) {
      test::selection::check_selection<HostArray>({part, 1024, 0.1F, GroupCombine::kSum, 0}, {tokens},
                                                  [=](const cuda::SelectArgs& args) { select(args, gang, most); });
    }
  }
}

/// A quarter of the GPU's cases, each setting among them.
std::vector<Case> cases() {
  std::vector<Case> some;
  const std::vector<Case> all = test::selection::cases();
  for (std::size_t i = 0; i < all.size(); i += 4) some.push_back(all[i]);
  return some;
}
INSTANTIATE_TEST_SUITE_P(All, EmulatedSelect, testing::ValuesIn(cases()));

}  // namespace
}  // namespace locks
