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
#include "support/summaries.h"

namespace locks {
namespace {

using test::CacheData;
using test::Content;
using test::Layout;
using test::SummaryData;

constexpr int kHeads = 2;
constexpr int kPages = 4;
constexpr Content kContents[] = {Content::kNormal, Content::kLowRank,  Content::kConstant,  Content::kZero,
                                 Content::kHuge,   Content::kDenormal, Content::kOneOutlier};

/// The 16 keys or values of one page and head, as the record sees them.
std::vector<std::vector<float>> page_rows(const CacheData& cache, int head_dim, std::int64_t page, int head, bool rotated) {
  std::vector<std::vector<float>> rows(kPageTokens, std::vector<float>(static_cast<std::size_t>(head_dim)));
  for (int token = 0; token < kPageTokens; ++token) {
    for (int dim = 0; dim < head_dim; ++dim) rows[token][dim] = cache.value(page, token, head, dim);
    if (rotated) rotate(rows[token]);
  }
  return rows;
}

/// Length of what `mean` and `directions` weighted by the record's coefficients leave of the rows.
template <class Mean, class Directions>
double missed(const std::vector<std::vector<float>>& rows, const Mean& mean, const Directions& directions,
              const DecodedSummary& record, int rank) {
  double sum = 0.0;
  for (int token = 0; token < kPageTokens; ++token) {
    for (std::size_t dim = 0; dim < rows[token].size(); ++dim) {
      double left = rows[token][dim] - mean[dim];
      for (int r = 0; r < rank; ++r) left -= record.coefficients[token][r] * directions[r][dim];
      sum += left * left;
    }
  }
  return std::sqrt(sum);
}

double missed_keys(const CacheData& keys, const SummaryData& summaries, std::int64_t page, int head) {
  const SummaryStore& store = summaries.store();
  const DecodedSummary record = summaries.decoded(page, head);
  const auto rows = page_rows(keys, store.head_dim, page, head, store.format->rotated);
  return missed(rows, record.mean, record.basis, record, store.format->rank);
}

double missed_values(const CacheData& values, const SummaryData& summaries, std::int64_t page, int head) {
  const SummaryStore& store = summaries.store();
  const DecodedValues record = summaries.decoded_values(page, head);
  const auto rows = page_rows(values, store.head_dim, page, head, true);
  return missed(rows, record.mean, record.slopes, summaries.decoded(page, head), store.format->rank);
}

std::vector<std::byte> bytes_of(const SummaryStore& store, std::int64_t page, int head) {
  const std::byte* record = store.record(page, head);
  std::vector<std::byte> bytes(record, record + record_layout(*store.format, store.head_dim).record_bytes);
  if (store.value_data != nullptr) {
    const std::byte* values = store.value_record(page, head);
    bytes.insert(bytes.end(), values, values + value_layout(*store.format, store.head_dim).record_bytes);
  }
  return bytes;
}

using Parameters = std::tuple<Target, int>;

class SummarizeTest : public testing::TestWithParam<Parameters> {
 protected:
  [[nodiscard]] static Target target() { return std::get<0>(GetParam()); }
  [[nodiscard]] static int head_dim() { return std::get<1>(GetParam()); }
};

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  return std::string(target_name(std::get<0>(info.param))) + "_d" + std::to_string(std::get<1>(info.param));
}

struct Tolerance {
  double record;  // how much more of one page a record may miss than the reference's, relative
  double mean;    // the same for the mean over records
};

/// Single precision knows the direction of rank r to an angle of about eps * energy_0 / (gap to the next energy), eps =
/// 6e-8. Where the spectrum is wide (low-rank pages: gaps down to 1e-3 of the first energy; one outlier: 1e-6), a basis row
/// may turn by up to 1e-4 or 0.1 inside the space of its neighbours. What the turned basis misses is another draw of the
/// same quantisation noise: it scatters both ways for a record, and hardly moves the mean.
Tolerance tolerance(Content content) {
  if (content == Content::kOneOutlier) return {0.10, 0.04};
  if (content == Content::kLowRank) return {0.04, 0.01};
  return {1e-3, 1e-3};
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
  const auto [record_tolerance, mean_tolerance] = tolerance(content);
  double sums[2][2] = {};
  for (int page = 0; page < kPages; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      // The smallest bf16 steps and half a unit of float denormals allow this much on pages of denormals.
      const double tiny = 1e-38 * std::sqrt(16.0 * head_dim);
      const double want_keys = missed_keys(keys, want, page, head);
      const double got_keys = missed_keys(keys, got, page, head);
      EXPECT_LE(got_keys, want_keys * (1.0 + record_tolerance) + tiny) << "keys of page " << page << " head " << head;
      const double want_values = missed_values(values, want, page, head);
      const double got_values = missed_values(values, got, page, head);
      EXPECT_LE(got_values, want_values * (1.0 + record_tolerance) + tiny) << "values of page " << page << " head " << head;
      sums[0][0] += want_keys;
      sums[0][1] += got_keys + tiny;
      sums[1][0] += want_values;
      sums[1][1] += got_values + tiny;

      const DecodedSummary record = got.decoded(page, head);
      EXPECT_FALSE(record.always_attend);
      const double variance = got_keys * got_keys / (kPageTokens * head_dim);
      // bf16 has 8 significant bits; float arithmetic on the way adds far less, and the squares of denormals vanish.
      EXPECT_NEAR(record.residual_variance, variance, variance * 0x1.02p-8 + tiny * tiny);
      const RecordLayout at = record_layout(format, head_dim);
      const std::byte* got_record = got.store().record(page, head);
      const std::byte* want_record = want.store().record(page, head);
      for (int dim = 0; dim < head_dim; ++dim) {
        const int got_code = static_cast<std::int8_t>(got_record[at.mean_at + dim]);
        const int want_code = static_cast<std::int8_t>(want_record[at.mean_at + dim]);
        ASSERT_LE(std::abs(got_code - want_code), 1) << "mean of page " << page << " head " << head << " dim " << dim;
      }
      ASSERT_LE(std::abs(load_u16(got_record + at.mean_scale_at) - load_u16(want_record + at.mean_scale_at)), 1);
    }
  }
  EXPECT_LE(sums[0][1], sums[0][0] * (1.0 + mean_tolerance) + 1e-30) << "keys, all records";
  EXPECT_LE(sums[1][1], sums[1][0] * (1.0 + mean_tolerance) + 1e-30) << "values, all records";
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
      EXPECT_LE(missed_keys(keys, got, 1, 1), 1.25 * missed_keys(keys, want, 1, 1) + 0.1);
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
      EXPECT_LE(missed_keys(keys, got, 1, 0), missed_keys(keys, want, 1, 0) + rounding) << format->name << " " << size;
      EXPECT_LE(missed_values(keys, got, 1, 0), missed_values(keys, want, 1, 0) + rounding) << format->name << " " << size;
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
