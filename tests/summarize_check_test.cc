#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "locks/summarize.h"
#include "support/data.h"
#include "support/summaries.h"

namespace locks {
namespace {

using test::CacheData;
using test::Content;
using test::Layout;
using test::SummaryData;

constexpr int kHeads = 2;
constexpr int kPages = 4;

class CheckSummarizeTest : public testing::Test {
 protected:
  CheckSummarizeTest()
      : keys_(DType::kF16, Layout::kTokenMajor, kPages, kHeads, 64, 16, Content::kNormal, 1),
        summaries_(kGraded8, 64, kHeads, keys_.view(), &keys_.view()) {
    args_ = {.head_dim = 64,
             .kv_heads = kHeads,
             .keys = keys_.view(),
             .values = &keys_.view(),
             .pages = pages_,
             .out = summaries_.store()};
  }
  void expect_refused(const std::string& message) const {
    try {
      check_summarize(args_);
      FAIL() << "not refused: " << message;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), message);
    }
  }

  CacheData keys_;
  SummaryData summaries_;
  std::vector<std::int32_t> pages_{0, 3, 1};
  SummarizeArgs args_;
};

TEST_F(CheckSummarizeTest, TakesWhatIsRight) { EXPECT_NO_THROW(check_summarize(args_)); }

TEST_F(CheckSummarizeTest, RefusesPagesOutOfRangeByIndexAndValue) {
  pages_[1] = 4;
  expect_refused("pages[1]: expected a page number from 0 to 3, got 4");
  pages_[1] = 3;
  pages_[2] = -1;
  expect_refused("pages[2]: expected a page number from 0 to 3, got -1");
  pages_[2] = 0;
  args_.out.num_pages = 3;
  expect_refused("pages[1]: expected a page number from 0 to 2, got 3");
}

TEST_F(CheckSummarizeTest, RefusesPagesOfAnEmptyCache) {
  args_.keys.num_pages = 0;
  args_.values = &args_.keys;
  expect_refused("pages[0]: expected no page (the cache or the store has none), got 0");
}

TEST_F(CheckSummarizeTest, RefusesHeadDimsThatNoModelHas) {
  args_.head_dim = 72;
  expect_refused("head_dim: expected 64, 80, 96, 128, 192 or 256, got 72");
}

TEST_F(CheckSummarizeTest, RefusesNoHeads) {
  args_.kv_heads = 0;
  expect_refused("kv_heads: expected at least 1, got 0");
}

TEST_F(CheckSummarizeTest, RefusesMissingData) {
  args_.keys.data = nullptr;
  expect_refused("keys: expected data, got a null pointer");
}

TEST_F(CheckSummarizeTest, RefusesAMissingStore) {
  args_.out.data = nullptr;
  expect_refused("out.data: expected memory, got a null pointer");
  args_.out.format = nullptr;
  expect_refused("out.format: expected a format, got a null pointer");
}

TEST_F(CheckSummarizeTest, RefusesStridesBelowARow) {
  args_.keys.head_stride = 126;
  expect_refused("keys.head_stride: expected at least 128 bytes (a row), either way, got 126");
  args_.keys.token_stride = -100;
  expect_refused("keys.token_stride: expected at least 128 bytes (a row), either way, got -100");
}

TEST_F(CheckSummarizeTest, RefusesStoresWhoseRecordsOverlap) {
  args_.out.head_stride = 341;
  expect_refused("out.head_stride: expected at least 342 bytes (a record), got 341");
  args_.out.head_stride = 342;
  args_.out.value_head_stride = 209;
  expect_refused("out.value_head_stride: expected at least 210 bytes (a value record), got 209");
  args_.out.value_page_stride = 0;
  expect_refused("out.value_page_stride: expected at least 210 bytes (a value record), got 0");
}

TEST_F(CheckSummarizeTest, RefusesAValuePartWithoutValues) {
  args_.values = nullptr;
  expect_refused("values: expected a cache, because out.value_data is set, got a null pointer");
}

TEST_F(CheckSummarizeTest, RefusesValuesOfAnotherSize) {
  PagedCache values = keys_.view();
  values.num_pages = 3;
  args_.values = &values;
  expect_refused("values.num_pages: expected 4 as in keys, got 3");
}

TEST_F(CheckSummarizeTest, RefusesWhatOnlyTheGpuReads) {
  args_.keys.dtype = DType::kE4M3;
  expect_refused("keys.dtype: expected f32, f16, bf16 or q8_0 on the CPU, got e4m3");
}

TEST_F(CheckSummarizeTest, RefusesAScaleOfWhatHasNone) {
  const float scale = 1.0F;
  args_.keys.scale = &scale;
  expect_refused("keys.scale: expected none, as only e4m3 has a scale, got one for f16");
}

TEST_F(CheckSummarizeTest, RefusesQ8RowsThatAreNoWholeBlocks) {
  args_.head_dim = 80;
  args_.keys.dtype = DType::kQ8_0;
  expect_refused("keys: expected a head_dim that is a multiple of 32 for q8_0, got 80");
}

}  // namespace
}  // namespace locks
