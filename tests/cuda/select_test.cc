#include "select_case.h"

#include "cuda/rank.h"
#include "device.h"
#include "rank_case.h"

namespace locks {
namespace {

using test::selection::Case;

class CudaSelect : public test::CudaTest, public testing::WithParamInterface<Case> {};

TEST_P(CudaSelect, HasTheBitsOfTheCpu) {
  test::selection::check_selection<test::DeviceArray>(GetParam(), {1500, 100, 0, 9000, 131072, 1037},
                                                      [](const cuda::SelectArgs& args) {
                                                        cuda::select_pages(args, nullptr);
                                                        cuda::select_tokens(args, nullptr);
                                                      });
}

/// Few of the cases: a list that 16 thread blocks share, and one so long beside so many that its masses are weighed twice.
class CudaSelectLong : public test::CudaTest, public testing::WithParamInterface<Case> {};

TEST_P(CudaSelectLong, HasTheBitsOfTheCpu) {
  const auto select = [](const cuda::SelectArgs& args) {
    cuda::select_pages(args, nullptr);
    cuda::select_tokens(args, nullptr);
  };
  test::selection::check_selection<test::DeviceArray>(GetParam(), {1048576}, select);
  std::vector<std::int32_t> many(67, 300);
  many[40] = 524288;
  test::selection::check_selection<test::DeviceArray>(GetParam(), many, select);
}

std::vector<Case> some_cases() {
  const std::vector<Case> all = test::selection::cases();
  std::vector<Case> some;
  for (std::size_t i = 0; i < all.size(); i += 11) some.push_back(all[i]);
  return some;
}
INSTANTIATE_TEST_SUITE_P(All, CudaSelectLong, testing::ValuesIn(some_cases()));

class CudaRanks : public test::CudaTest {};

TEST_F(CudaRanks, AreThoseOfTheSelectors) {
  for (const test::ranks::Scores kind : test::ranks::kAllScores) {
    const auto check = [kind](const std::vector<std::int32_t>& contexts, int budget) {
      test::ranks::check_ranks<test::DeviceArray>(kind, contexts, budget, [](const cuda::SelectArgs& args) {
        cuda::rank_pages(args, cuda::Start::kAfterPrevious, nullptr);
      });
    };
    check({5000, 100, 0, 131072, 1037, 1040, 1041}, 256);
    check({12000, 262144}, 4096);
    check({1048576}, 48);
    std::vector<std::int32_t> many(67, 300);
    many[40] = 262144;
    check(many, 2048);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSelect, testing::ValuesIn(test::selection::cases()));

}  // namespace
}  // namespace locks
