#include "locks/summarize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/half.h"
#include "support/data.h"
#include "support/record_checks.h"
#include "support/summaries.h"

namespace locks {
namespace {

using test::bytes_of;
using test::CacheData;
using test::Content;
using test::kContents;
using test::Layout;
using test::missed_keys;
using test::missed_values;
using test::page_rows;
using test::SummaryData;

constexpr int kHeads = 2;
constexpr int kPages = 4;

using Parameters = std::tuple<Target, int>;

class SummarizeTest : public testing::TestWithParam<Parameters> {
 protected:
  [[nodiscard]] static Target target() { return std::get<0>(GetParam()); }
  [[nodiscard]] static int head_dim() { return std::get<1>(GetParam()); }
};

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  return std::string(target_name(std::get<0>(info.param))) + "_d" + std::to_string(std::get<1>(info.param));
}

void expect_as_good_as_reference(DType dtype, Layout layout, int block_tokens, Content content, const SummaryFormat& format,
                                 int head_dim, Target target) {
  SCOPED_TRACE(testing::Message() << format.name << " " << dtype_name(dtype) << " content " << static_cast<int>(content));
  const CacheData keys(dtype, layout, kPages, kHeads, head_dim, block_tokens, content, 11);
  const CacheData values(dtype, layout, kPages, kHeads, head_dim, block_tokens, content, 12);
  const SummaryData want(format, head_dim, kHeads, keys.view(), &values.view());
  const SummaryData got(format, head_dim, kHeads, keys.view(), &values.view(), target);
  EXPECT_EQ(got.report().records, kPages * kHeads);
  EXPECT_EQ(got.report().not_finite_records, 0);
  // bf16 has 8 significant bits; float arithmetic on the way adds far less.
  test::expect_as_good_as_reference(got.store(), want.store(), keys, values, kHeads, content, 0x1.02p-8);
}

TEST_P(SummarizeTest, MissesNoMoreThanTheReferenceWhateverThePagesHold) {
  for (const SummaryFormat* format : summary_formats()) {
    for (const Content content : kContents) {
      expect_as_good_as_reference(DType::kF32, Layout::kTokenMajor, 16, content, *format, head_dim(), target());
    }
  }
}

TEST_P(SummarizeTest, MissesNoMoreThanTheReferenceForEveryDTypeAndLayout) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kQ8_0}) {
    if (dtype == DType::kQ8_0 && head_dim() % kQ8BlockElements != 0) continue;
    expect_as_good_as_reference(dtype, Layout::kHeadMajor, 32, Content::kNormal, kGraded8, head_dim(), target());
    expect_as_good_as_reference(dtype, Layout::kGaps, 64, Content::kLowRank, kPaper, head_dim(), target());
    expect_as_good_as_reference(dtype, Layout::kScattered, 16, Content::kHuge, kGraded12, head_dim(), target());
    expect_as_good_as_reference(dtype, Layout::kTokenMajor, 16, Content::kDenormal, kGraded4, head_dim(), target());
  }
}

/// Two thirds of the energy in one exact direction, the rest in `rank - 1` others; nothing else.
void make_low_rank(CacheData& keys, int head_dim, int rank) {
  for (int page = 0; page < kPages; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      for (int token = 0; token < kPageTokens; ++token) {
        for (int dim = 0; dim < head_dim; ++dim)
          keys.set_value(page, token, head, dim, token < rank && dim == 5 * token ? 8.0F : 0.0F);
      }
    }
  }
}

TEST_P(SummarizeTest, NullDirectionsCostNothingAndTieBreaksAreStable) {
  // `rank` one-hot keys: all kept energies but two are equal, and for `paper` (not rotated, exact) the rest are zero.
  for (const int rank : {1, 2, 5, 16}) {
    CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
    make_low_rank(keys, head_dim(), std::min(rank, head_dim() / 5));
    for (const SummaryFormat* format : summary_formats()) {
      SCOPED_TRACE(testing::Message() << format->name << " rank " << rank);
      const SummaryData want(*format, head_dim(), kHeads, keys.view());
      const SummaryData got(*format, head_dim(), kHeads, keys.view(), nullptr, target());
      // Equal energies leave the basis free inside their space, so that only the noise of its quantisation is comparable.
      EXPECT_LE(missed_keys(keys, got.store(), 1, 1), 1.25 * missed_keys(keys, want.store(), 1, 1) + 0.1);
      EXPECT_EQ(bytes_of(got.store(), 0, 0), bytes_of(got.store(), 3, 1));
      const DecodedSummary record = got.decoded(0, 0);
      for (int r = rank + 1; r < format->rank; ++r) {  // one more than `rank`: the rounding of the mean
        for (int token = 0; token < kPageTokens; ++token) EXPECT_EQ(record.coefficients[token][r], 0.0) << r;
      }
    }
  }
}

TEST_P(SummarizeTest, DifferencesTooSmallToSquareStayFinite) {
  for (const float size : {1e-12F, 1e-19F, 1e-22F, 1e-30F, 1e-38F, 1e-44F}) {
    CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
    const auto noise = test::normal_floats(static_cast<std::size_t>(kPageTokens * head_dim()), 2, size);
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 1; dim < head_dim(); ++dim) keys.set_value(1, token, 0, dim, noise[token * head_dim() + dim]);
      keys.set_value(1, token, 0, 0, 1.0F);
    }
    for (const SummaryFormat* format : summary_formats()) {
      const SummaryData want(*format, head_dim(), kHeads, keys.view(), &keys.view());
      const SummaryData got(*format, head_dim(), kHeads, keys.view(), &keys.view(), target());
      // One rounding of a component near 1, for each of them.
      const double rounding = 6e-8 * std::sqrt(static_cast<double>(kPageTokens * head_dim()));
      EXPECT_LE(missed_keys(keys, got.store(), 1, 0), missed_keys(keys, want.store(), 1, 0) + rounding)
          << format->name << " " << size;
      EXPECT_LE(missed_values(keys, got.store(), 1, 0), missed_values(keys, want.store(), 1, 0) + rounding)
          << format->name << " " << size;
    }
  }
}

/// Leaves numbers below the normal range where the next call has its arrays.
__attribute__((noinline)) void litter_the_stack() {
  constexpr std::size_t kFloats = 1 << 15;
  volatile float litter[kFloats];
  for (std::size_t i = 0; i < kFloats; ++i) litter[i] = 1e-44F;
}

// Arithmetic on such numbers takes a hundred times as long: what nobody wrote must not be computed with.
TEST_P(SummarizeTest, WhatLiesOnTheStackIsNotComputedWith) {
  constexpr unsigned kDenormalOperand = 2;  // a flag of MXCSR
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 1);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData made(*format, head_dim(), kHeads, keys.view(), &keys.view(), target());  // grows the stack
    std::vector<std::byte> memory(
        static_cast<std::size_t>(summary_bytes(*format, head_dim(), kHeads, keys.view().num_pages, true)));
    const std::vector<std::int32_t> pages{0, 1};
    const SummarizeArgs args{
        head_dim(),   kHeads, keys.view(),
        &keys.view(), pages,  make_store(*format, head_dim(), kHeads, keys.view().num_pages, true, memory.data())};
    litter_the_stack();
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~kDenormalOperand);
    (void)summarize(args, Team{}, target());
    EXPECT_EQ(__builtin_ia32_stmxcsr() & kDenormalOperand, 0U) << format->name;
  }
}

TEST_P(SummarizeTest, AZeroPageHasOnlyMiddleCodes) {
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData want(*format, head_dim(), kHeads, keys.view(), &keys.view());
    const SummaryData got(*format, head_dim(), kHeads, keys.view(), &keys.view(), target());
    EXPECT_EQ(bytes_of(got.store(), 2, 1), bytes_of(want.store(), 2, 1)) << format->name;
    const DecodedSummary record = got.decoded(2, 1);
    for (int r = 0; r < format->rank; ++r) {
      for (int token = 0; token < kPageTokens; ++token) EXPECT_EQ(record.coefficients[token][r], 0.0);
    }
  }
}

TEST_P(SummarizeTest, CodesPastTheHeadAreZero) {
  const CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 3);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData got(*format, head_dim(), kHeads, keys.view(), nullptr, target());
    const RecordLayout at = record_layout(*format, head_dim());
    for (int quad = 0; quad < format->num_quads(); ++quad) {
      if (format->quad_bits[quad] != 2) continue;  // 16 divides every head_dim
      for (int dim = head_dim(); dim < (head_dim() + 31) / 32 * 32; ++dim) {
        for (int r = 0; r < 4; ++r) {
          const auto byte =
              std::to_integer<int>(got.store().record(1, 1)[at.quad_at[quad] + dim / 32 * 32 + 8 * r + dim % 8]);
          EXPECT_EQ(byte >> (dim % 32 / 8 * 2) & 3, 0) << "dim " << dim;
        }
      }
    }
  }
}

TEST_P(SummarizeTest, WhatIsNotFiniteIsMarkedAndHarmsNothingElse) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kBad[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  const int kPlaces[][2] = {{0, 0}, {15, head_dim() - 1}, {7, head_dim() / 2 + 1}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const SummaryFormat* format : summary_formats()) {
      CacheData keys(dtype, Layout::kGaps, kPages, kHeads, head_dim(), 16, Content::kNormal, 4);
      CacheData values(dtype, Layout::kGaps, kPages, kHeads, head_dim(), 16, Content::kNormal, 5);
      const SummaryData clean(*format, head_dim(), kHeads, keys.view(), &values.view(), target());
      for (int i = 0; i < 3; ++i) {
        keys.set_value(i, kPlaces[i][0], 1, kPlaces[i][1], kBad[i]);
        values.set_value(3 - i, kPlaces[i][0], 0, kPlaces[i][1], kBad[i]);
      }
      const SummaryData got(*format, head_dim(), kHeads, keys.view(), &values.view(), target());
      EXPECT_EQ(got.report().not_finite_records, 6);
      for (int page = 0; page < kPages; ++page) {
        for (int head = 0; head < kHeads; ++head) {
          const bool bad = head == 1 ? page < 3 : page > 0;
          auto want = bytes_of(clean.store(), page, head);
          if (bad) {
            const RecordLayout at = record_layout(*format, head_dim());
            std::fill(want.begin(), want.end(), std::byte{0});
            want[at.format_at] = static_cast<std::byte>(format->id);
            want[at.flags_at] = std::byte{kFlagAlwaysAttend};
          }
          EXPECT_EQ(bytes_of(got.store(), page, head), want) << format->name << " page " << page << " head " << head;
          EXPECT_EQ(got.decoded(page, head).always_attend, bad);
        }
      }
    }
  }
}

TEST_P(SummarizeTest, ComponentsTooLargeForFloatArithmeticAreMarked) {
  CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 6);
  keys.set_value(0, 3, 0, 7, 0x1.8p104F);  // rotation divides by at most 16
  keys.set_value(1, 3, 0, 7, 0x1p96F);
  for (const Target each : {Target::kReference, target()}) {
    const SummaryData got(kGraded8, head_dim(), kHeads, keys.view(), nullptr, each);
    EXPECT_EQ(got.report().not_finite_records, 1);
    EXPECT_TRUE(got.decoded(0, 0).always_attend);
    EXPECT_FALSE(got.decoded(1, 0).always_attend);
  }
}

TEST_P(SummarizeTest, ARecordDoesNotDependOnTeamOrderOrCompany) {
  constexpr int kMany = 9;
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kMany, kHeads, head_dim(), 16, Content::kLowRank, 7);
  const CacheData values(DType::kF16, Layout::kTokenMajor, kMany, kHeads, head_dim(), 16, Content::kLowRank, 8);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData whole(*format, head_dim(), kHeads, keys.view(), &values.view(), target());
    std::vector<std::int32_t> pages(kMany);
    std::iota(pages.rbegin(), pages.rend(), 0);
    std::vector<std::byte> memory(static_cast<std::size_t>(summary_bytes(*format, head_dim(), kHeads, kMany, true)));
    SummarizeArgs args{.head_dim = head_dim(),
                       .kv_heads = kHeads,
                       .keys = keys.view(),
                       .values = &values.view(),
                       .pages = pages,
                       .out = make_store(*format, head_dim(), kHeads, kMany, true, memory.data())};
    const auto expect_same = [&](const std::string& what) {
      for (int page = 0; page < kMany; ++page) {
        for (int head = 0; head < kHeads; ++head) {
          EXPECT_EQ(bytes_of(args.out, page, head), bytes_of(whole.store(), page, head)) << what << ", page " << page;
        }
      }
      std::fill(memory.begin(), memory.end(), std::byte{0xEE});
    };
    for (const int team_size : {1, 2, 3, 7, 40}) {
      SummarizeReport sum;
      for (int index = 0; index < team_size; ++index) {
        const SummarizeReport part = summarize(args, Team{index, team_size, nullptr}, target());
        sum.records += part.records;
      }
      EXPECT_EQ(sum.records, kMany * kHeads);
      expect_same("team of " + std::to_string(team_size));
    }
    for (const std::int32_t& page : pages) {
      args.pages = std::span(&page, 1);
      static_cast<void>(summarize(args, Team{}, target()));
    }
    expect_same("one by one");
  }
}

TEST_P(SummarizeTest, WritesItsRecordsAndNothingElse) {
  const CacheData keys(DType::kBF16, Layout::kScattered, kPages, kHeads, head_dim(), 16, Content::kNormal, 9);
  const CacheData values(DType::kBF16, Layout::kHeadMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 10);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData dense(*format, head_dim(), kHeads, keys.view(), &values.view(), target());
    const int record = record_layout(*format, head_dim()).record_bytes;
    const int value_record = value_layout(*format, head_dim()).record_bytes;
    SummaryStore out{format, head_dim(), kPages};
    out.head_stride = record + 7;
    out.page_stride = kHeads * out.head_stride + 13;
    out.value_head_stride = value_record + 3;
    out.value_page_stride = kHeads * out.value_head_stride + 1;
    std::vector<std::byte> memory(static_cast<std::size_t>(kPages * out.page_stride), std::byte{0xCD});
    std::vector<std::byte> value_memory(static_cast<std::size_t>(kPages * out.value_page_stride), std::byte{0xCD});
    auto want_memory = memory;
    auto want_value_memory = value_memory;
    out.data = memory.data();
    out.value_data = value_memory.data();
    const std::vector<std::int32_t> pages{3, 1};
    for (const std::int32_t page : pages) {
      for (int head = 0; head < kHeads; ++head) {
        std::memcpy(want_memory.data() + (out.record(page, head) - out.data), dense.store().record(page, head),
                    static_cast<std::size_t>(record));
        std::memcpy(want_value_memory.data() + (out.value_record(page, head) - out.value_data),
                    dense.store().value_record(page, head), static_cast<std::size_t>(value_record));
      }
    }
    const SummarizeArgs args{.head_dim = head_dim(),
                             .kv_heads = kHeads,
                             .keys = keys.view(),
                             .values = &values.view(),
                             .pages = pages,
                             .out = out};
    check_summarize(args);
    static_cast<void>(summarize(args, Team{}, target()));
    EXPECT_EQ(memory, want_memory) << format->name;
    EXPECT_EQ(value_memory, want_value_memory) << format->name;
  }
}

TEST_P(SummarizeTest, NoPagesAreNoWork) {
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 1);
  const SummaryData store(kGraded8, head_dim(), kHeads, keys.view());
  const SummarizeArgs args{
      .head_dim = head_dim(), .kv_heads = kHeads, .keys = keys.view(), .pages = {}, .out = store.store()};
  check_summarize(args);
  EXPECT_EQ(summarize(args, Team{}, target()).records, 0);
}

/// Root mean square of the error of q.k over that of q.(k - page mean), for normal queries.
double relative_logit_error(const SummaryFormat& format, int head_dim, Target target) {
  constexpr int kManyPages = 32;
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kManyPages, 1, head_dim, 16, Content::kLowRank, 21);
  const SummaryData summaries(format, head_dim, 1, keys.view(), nullptr, target);
  double missed2 = 0.0;
  double spread2 = 0.0;
  for (int page = 0; page < kManyPages; ++page) {
    const DecodedSummary record = summaries.decoded(page, 0);
    const auto rows = page_rows(keys, head_dim, page, 0, format.rotated);
    auto query = test::normal_floats(static_cast<std::size_t>(head_dim), 100 + static_cast<std::uint64_t>(page));
    if (format.rotated) rotate(query);
    for (int token = 0; token < kPageTokens; ++token) {
      double exact = 0.0;
      double estimate = 0.0;
      double mean = 0.0;
      for (int dim = 0; dim < head_dim; ++dim) {
        double key = record.mean[dim];
        for (int r = 0; r < format.rank; ++r) key += record.coefficients[token][r] * record.basis[r][dim];
        exact += static_cast<double>(query[dim]) * rows[token][dim];
        estimate += query[dim] * key;
        for (int other = 0; other < kPageTokens; ++other)
          mean += static_cast<double>(query[dim]) * rows[other][dim] / kPageTokens;
      }
      missed2 += (estimate - exact) * (estimate - exact);
      spread2 += (exact - mean) * (exact - mean);
    }
  }
  return std::sqrt(missed2 / spread2);
}

TEST_P(SummarizeTest, GradedLogitsAreNearlyAsGoodAsThePapers) {
  const double paper = relative_logit_error(kPaper, head_dim(), target());
  const double graded8 = relative_logit_error(kGraded8, head_dim(), target());
  RecordProperty("paper", std::to_string(paper));
  RecordProperty("graded8", std::to_string(graded8));
  EXPECT_LT(paper, 0.2);
  EXPECT_LT(graded8, 1.5 * paper);
}

INSTANTIATE_TEST_SUITE_P(Targets, SummarizeTest,
                         testing::Combine(testing::ValuesIn(test::simd_targets()),
                                          testing::Values(64, 80, 96, 128, 192, 256)),
                         name_of);

TEST(SummarizeQ8Test, ABlockWithAnInfiniteScaleIsMarked) {
  for (const Target target : supported_targets()) {
    for (const int head_dim : {64, 96, 128, 192, 256}) {
      const CacheData keys(DType::kQ8_0, Layout::kTokenMajor, kPages, kHeads, head_dim, 16, Content::kNormal, 6);
      store_u16(const_cast<std::byte*>(keys.view().token(2, 9, 1)) + row_bytes(DType::kQ8_0, head_dim) - kQ8BlockBytes,
                0x7C00);
      const SummaryData got(kGraded8, head_dim, kHeads, keys.view(), nullptr, target);
      EXPECT_EQ(got.report().not_finite_records, 1) << target_name(target) << " head_dim " << head_dim;
      EXPECT_TRUE(got.decoded(2, 1).always_attend) << target_name(target) << " head_dim " << head_dim;
    }
  }
}

}  // namespace
}  // namespace locks
