#include "select_case.h"

#include "device.h"

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

INSTANTIATE_TEST_SUITE_P(All, CudaSelect, testing::ValuesIn(test::selection::cases()));

}  // namespace
}  // namespace locks
