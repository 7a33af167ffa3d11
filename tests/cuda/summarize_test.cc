// Records made on the GPU miss no more of a page than the reference's, are written where they belong and nowhere else, and
// have the same bits in any company.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/half.h"
#include "device.h"
#include "device_summaries.h"
#include "support/data.h"
#include "support/record_checks.h"
#include "support/summaries.h"

namespace locks {
namespace {

using test::bytes_of;
using test::CacheData;
using test::Content;
using test::DeviceArray;
using test::DeviceSummaries;
using test::expect_cuda;
using test::Gaps;
using test::kContents;
using test::kUntouched;
using test::Layout;
using test::missed_keys;
using test::missed_values;
using test::SummaryData;

constexpr int kHeads = 2;
constexpr int kPages = 4;

class CudaSummarizeTest : public test::CudaTest, public testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] static int head_dim() { return GetParam(); }
};

void expect_as_good_as_reference(DType dtype, DType value_dtype, Layout layout, int block_tokens, Content content,
                                 const SummaryFormat& format, int head_dim) {
  SCOPED_TRACE(testing::Message() << format.name << " " << dtype_name(dtype) << " content " << static_cast<int>(content));
  const CacheData keys(dtype, layout, kPages, kHeads, head_dim, block_tokens, content, 11);
  const CacheData values(value_dtype, layout, kPages, kHeads, head_dim, block_tokens, content, 12);
  const SummaryData reference(format, head_dim, kHeads, keys.view(), &values.view());
  const SummaryStore& want = reference.store();
  DeviceSummaries summaries(format, head_dim, kHeads, keys, &values);
  summaries.summarize_all();
  const SummaryStore got = summaries.store().read();
  EXPECT_EQ(summaries.report().records, kPages * kHeads);
  EXPECT_EQ(summaries.report().not_finite_records, 0);
  // bf16 has 8 significant bits. The kernel takes the variance from products (coefficients.cuh): 2^-22 of |d|^2, which is
  // 2^-15 and less of what is missed.
  test::expect_as_good_as_reference(got, want, keys, values, kHeads, content, 0x1.04p-8);
}

TEST_P(CudaSummarizeTest, MissesNoMoreThanTheReferenceWhateverThePagesHold) {
  for (const SummaryFormat* format : summary_formats()) {
    for (const Content content : kContents) {
      expect_as_good_as_reference(DType::kF32, DType::kF32, Layout::kTokenMajor, 16, content, *format, head_dim());
    }
  }
}

TEST_P(CudaSummarizeTest, MissesNoMoreThanTheReferenceForEveryDTypeAndLayout) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3}) {
    const DType other = dtype == DType::kF16 ? DType::kF32 : DType::kF16;
    expect_as_good_as_reference(dtype, dtype, Layout::kHeadMajor, 32, Content::kNormal, kGraded8, head_dim());
    expect_as_good_as_reference(dtype, other, Layout::kGaps, 64, Content::kLowRank, kPaper, head_dim());
    expect_as_good_as_reference(dtype, dtype, Layout::kScattered, 16, Content::kHuge, kGraded12, head_dim());
    const Content small = dtype == DType::kF16 ? Content::kDenormal : Content::kOneOutlier;
    expect_as_good_as_reference(dtype, other, Layout::kTokenMajor, 16, small, kGraded4, head_dim());
  }
}

TEST_P(CudaSummarizeTest, DenormalBf16KeysMayCountAsZeros) {
  const CacheData keys(DType::kBF16, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kDenormal, 13);
  DeviceSummaries summaries(kGraded8, head_dim(), kHeads, keys, nullptr);
  summaries.summarize_all();
  const SummaryStore got = summaries.store().read();
  EXPECT_EQ(summaries.report().not_finite_records, 0);
  EXPECT_LE(missed_keys(keys, got, 1, 1), 1e-38 * std::sqrt(16.0 * head_dim()));
}

TEST_P(CudaSummarizeTest, CodesAreTheReferencesButForDirectionsThatTurn) {
  // Normal pages have gaps of some percent between their energies, so that hardly a code lies between the two roundings.
  const CacheData keys(DType::kBF16, Layout::kTokenMajor, 16, kHeads, head_dim(), 16, Content::kNormal, 31);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData want(*format, head_dim(), kHeads, keys.view(), &keys.view());
    DeviceSummaries summaries(*format, head_dim(), kHeads, keys, &keys);
    summaries.summarize_all();
    const SummaryStore got = summaries.store().read();
    int bytes = 0;
    int different = 0;
    for (int page = 0; page < 16; ++page) {
      for (int head = 0; head < kHeads; ++head) {
        const auto a = bytes_of(got, page, head);
        const auto b = bytes_of(want.store(), page, head);
        bytes += static_cast<int>(a.size());
        for (std::size_t i = 0; i < a.size(); ++i) different += a[i] != b[i] ? 1 : 0;
      }
    }
    RecordProperty(std::string(format->name), std::to_string(different) + " of " + std::to_string(bytes));
    EXPECT_LE(different, bytes / 100) << format->name;
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

TEST_P(CudaSummarizeTest, NullDirectionsCostNothingAndTieBreaksAreStable) {
  for (const int rank : {1, 2, 5, 16}) {
    CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
    make_low_rank(keys, head_dim(), std::min(rank, head_dim() / 5));
    for (const SummaryFormat* format : summary_formats()) {
      SCOPED_TRACE(testing::Message() << format->name << " rank " << rank);
      const SummaryData want(*format, head_dim(), kHeads, keys.view());
      DeviceSummaries summaries(*format, head_dim(), kHeads, keys, nullptr);
      summaries.summarize_all();
      const SummaryStore got = summaries.store().read();
      // Equal energies leave the basis free inside their space, so that only the noise of its quantisation is comparable.
      EXPECT_LE(missed_keys(keys, got, 1, 1), 1.25 * missed_keys(keys, want.store(), 1, 1) + 0.1);
      EXPECT_EQ(bytes_of(got, 0, 0), bytes_of(got, 3, 1));
      const DecodedSummary record = decode_record(*format, head_dim(), got.record(0, 0));
      for (int r = rank + 1; r < format->rank; ++r) {  // one more than `rank`: the rounding of the mean
        for (int token = 0; token < kPageTokens; ++token) EXPECT_EQ(record.coefficients[token][r], 0.0) << r;
      }
    }
  }
}

TEST_P(CudaSummarizeTest, DifferencesTooSmallToSquareStayFinite) {
  for (const float size : {1e-12F, 1e-19F, 1e-22F, 1e-30F, 1e-38F, 1e-44F}) {
    CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
    const auto noise = test::normal_floats(static_cast<std::size_t>(kPageTokens * head_dim()), 2, size);
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 1; dim < head_dim(); ++dim) keys.set_value(1, token, 0, dim, noise[token * head_dim() + dim]);
      keys.set_value(1, token, 0, 0, 1.0F);
    }
    for (const SummaryFormat* format : summary_formats()) {
      const SummaryData want(*format, head_dim(), kHeads, keys.view(), &keys.view());
      DeviceSummaries summaries(*format, head_dim(), kHeads, keys, &keys);
      summaries.summarize_all();
      const SummaryStore got = summaries.store().read();
      // One rounding of a component near 1, for each of them.
      const double rounding = 6e-8 * std::sqrt(static_cast<double>(kPageTokens * head_dim()));
      EXPECT_LE(missed_keys(keys, got, 1, 0), missed_keys(keys, want.store(), 1, 0) + rounding) << format->name << size;
      EXPECT_LE(missed_values(keys, got, 1, 0), missed_values(keys, want.store(), 1, 0) + rounding) << format->name << size;
    }
  }
}

TEST_P(CudaSummarizeTest, AZeroPageHasTheReferencesBytes) {
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kZero, 1);
  for (const SummaryFormat* format : summary_formats()) {
    const SummaryData want(*format, head_dim(), kHeads, keys.view(), &keys.view());
    DeviceSummaries summaries(*format, head_dim(), kHeads, keys, &keys);
    summaries.summarize_all();
    EXPECT_EQ(bytes_of(summaries.store().read(), 2, 1), bytes_of(want.store(), 2, 1)) << format->name;
  }
}

TEST_P(CudaSummarizeTest, WhatIsNotFiniteIsMarkedAndHarmsNothingElse) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kBad[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  const int kPlaces[][2] = {{0, 0}, {15, head_dim() - 1}, {7, head_dim() / 2 + 1}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3}) {
    for (const SummaryFormat* format : summary_formats()) {
      CacheData keys(dtype, Layout::kGaps, kPages, kHeads, head_dim(), 16, Content::kNormal, 4);
      CacheData values(dtype, Layout::kGaps, kPages, kHeads, head_dim(), 16, Content::kNormal, 5);
      DeviceSummaries clean(*format, head_dim(), kHeads, keys, &values);
      clean.summarize_all();
      const SummaryStore clean_store = clean.store().read();
      for (int i = 0; i < 3; ++i) {
        const float bad = dtype == DType::kE4M3 ? kBad[0] : kBad[i];  // it has no infinity
        keys.set_value(i, kPlaces[i][0], 1, kPlaces[i][1], bad);
        values.set_value(3 - i, kPlaces[i][0], 0, kPlaces[i][1], bad);
      }
      DeviceSummaries marked(*format, head_dim(), kHeads, keys, &values);
      marked.summarize_all();
      const SummaryStore got = marked.store().read();
      EXPECT_EQ(marked.report().records, kPages * kHeads);
      EXPECT_EQ(marked.report().not_finite_records, 6);
      for (int page = 0; page < kPages; ++page) {
        for (int head = 0; head < kHeads; ++head) {
          const bool bad = head == 1 ? page < 3 : page > 0;
          auto want = bytes_of(clean_store, page, head);
          if (bad) {
            const RecordLayout at = record_layout(*format, head_dim());
            std::fill(want.begin(), want.end(), std::byte{0});
            want[at.format_at] = static_cast<std::byte>(format->id);
            want[at.flags_at] = std::byte{kFlagAlwaysAttend};
          }
          EXPECT_EQ(bytes_of(got, page, head), want) << format->name << " page " << page << " head " << head;
        }
      }
    }
  }
}

TEST_P(CudaSummarizeTest, ComponentsTooLargeForFloatArithmeticAreMarked) {
  CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 6);
  keys.set_value(0, 3, 0, 7, 0x1.8p104F);  // rotation divides by at most 16
  keys.set_value(1, 3, 0, 7, 0x1p96F);
  DeviceSummaries summaries(kGraded8, head_dim(), kHeads, keys, nullptr);
  summaries.summarize_all();
  const SummaryStore got = summaries.store().read();
  EXPECT_EQ(summaries.report().not_finite_records, 1);
  EXPECT_TRUE(decode_record(kGraded8, head_dim(), got.record(0, 0)).always_attend);
  EXPECT_FALSE(decode_record(kGraded8, head_dim(), got.record(1, 0)).always_attend);
}

TEST_P(CudaSummarizeTest, ARecordDoesNotDependOnItsCompanyNorOnTheEntry) {
  constexpr int kMany = 37;
  constexpr int kManyHeads = 3;
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kMany, kManyHeads, head_dim(), 16, Content::kLowRank, 7);
  const CacheData values(DType::kBF16, Layout::kTokenMajor, kMany, kManyHeads, head_dim(), 16, Content::kLowRank, 8);
  for (const SummaryFormat* format : summary_formats()) {
    DeviceSummaries summaries(*format, head_dim(), kManyHeads, keys, &values);
    summaries.summarize_all();
    (void)summaries.store().read();
    const auto want = summaries.store().bytes();
    const auto want_values = summaries.store().value_bytes();
    const auto expect_same = [&](const std::string& what) {
      (void)summaries.store().read();
      EXPECT_TRUE(summaries.store().bytes() == want) << format->name << " " << what;
      EXPECT_TRUE(summaries.store().value_bytes() == want_values) << format->name << " " << what;
      summaries.store().wipe();
    };
    summaries.store().wipe();
    std::vector<std::int32_t> backwards(kMany);
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    summaries.summarize(backwards);
    expect_same("backwards");
    for (const std::int32_t page : backwards) summaries.summarize({page});
    expect_same("one by one");
    std::vector<std::int64_t> slots;
    for (int page = 0; page < kMany; ++page) slots.insert(slots.end(), {16 * page + 3, -1, 16 * page + 15});
    const DeviceArray<std::int64_t> on_device(slots);
    cuda::summarize_filled(summaries.args(), on_device.span(), nullptr, nullptr);
    expect_same("filled");
  }
}

TEST_P(CudaSummarizeTest, WritesItsRecordsAndNothingElse) {
  const CacheData keys(DType::kBF16, Layout::kScattered, kPages, kHeads, head_dim(), 16, Content::kNormal, 9);
  const CacheData values(DType::kBF16, Layout::kHeadMajor, kPages, kHeads, head_dim(), 16, Content::kNormal, 10);
  for (const SummaryFormat* format : summary_formats()) {
    DeviceSummaries dense(*format, head_dim(), kHeads, keys, &values);
    dense.summarize_all();
    const SummaryStore want = dense.store().read();
    for (const Gaps gaps : {Gaps{7, 13}, Gaps{2, 4}, Gaps{0, 0}}) {
      DeviceSummaries sparse(*format, head_dim(), kHeads, keys, &values, gaps);
      sparse.summarize({3, 1});
      const SummaryStore got = sparse.store().read();
      std::vector<std::byte> want_bytes(sparse.store().bytes().size(), kUntouched);
      std::vector<std::byte> want_value_bytes(sparse.store().value_bytes().size(), kUntouched);
      for (const std::int32_t page : {3, 1}) {
        for (int head = 0; head < kHeads; ++head) {
          std::memcpy(want_bytes.data() + (got.record(page, head) - got.data), want.record(page, head),
                      static_cast<std::size_t>(record_layout(*format, head_dim()).record_bytes));
          std::memcpy(want_value_bytes.data() + (got.value_record(page, head) - got.value_data),
                      want.value_record(page, head),
                      static_cast<std::size_t>(value_layout(*format, head_dim()).record_bytes));
        }
      }
      EXPECT_TRUE(sparse.store().bytes() == want_bytes) << format->name;
      EXPECT_TRUE(sparse.store().value_bytes() == want_value_bytes) << format->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, CudaSummarizeTest, testing::Values(64, 80, 96, 128, 192, 256),
                         [](const testing::TestParamInfo<int>& info) { return "d" + std::to_string(info.param); });

class CudaSummarizeFilledTest : public test::CudaTest {};

TEST_F(CudaSummarizeFilledTest, AGraphTakesTheSlotsOfItsReplay) {
  constexpr int kHeadDim = 128;
  constexpr int kMany = 12;
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kMany, kHeads, kHeadDim, 16, Content::kLowRank, 3);
  DeviceSummaries whole(kGraded8, kHeadDim, kHeads, keys, nullptr);
  whole.summarize_all();
  const SummaryStore want = whole.store().read();
  DeviceSummaries summaries(kGraded8, kHeadDim, kHeads, keys, nullptr);
  DeviceArray<std::int64_t> slots(std::vector<std::int64_t>(3, -1));
  cudaStream_t stream = nullptr;
  expect_cuda(cudaStreamCreate(&stream));
  cudaGraph_t graph = nullptr;
  expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cuda::summarize_filled(summaries.args(), slots.span(), summaries.device_report(), stream);
  expect_cuda(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  expect_cuda(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<bool> written(kMany, false);
  std::int64_t records = 0;
  // The last slot that the cache does not have is somebody's mistake: nothing must be read or written for it.
  for (const std::vector<std::int64_t>& step : {std::vector<std::int64_t>{-1, 14, 32},
                                                {47, -1, 5},
                                                {16 * 11 + 15, 15, 79},
                                                {16 * kMany + 15, 16, std::numeric_limits<std::int64_t>::max()}}) {
    slots.write(step);
    expect_cuda(cudaGraphLaunch(executable, stream));
    expect_cuda(cudaStreamSynchronize(stream));
    for (const std::int64_t slot : step) {
      if (slot % 16 != 15 || slot < 0 || slot / 16 >= kMany) continue;
      written[static_cast<std::size_t>(slot / 16)] = true;
      records += kHeads;
    }
    const SummaryStore got = summaries.store().read();
    for (int page = 0; page < kMany; ++page) {
      for (int head = 0; head < kHeads; ++head) {
        const auto bytes = bytes_of(got, page, head);
        if (written[static_cast<std::size_t>(page)]) {
          EXPECT_EQ(bytes, bytes_of(want, page, head)) << page;
        } else {
          EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kUntouched; })) << page;
        }
      }
    }
    EXPECT_EQ(summaries.report().records, records);
  }
  expect_cuda(cudaGraphExecDestroy(executable));
  expect_cuda(cudaGraphDestroy(graph));
  expect_cuda(cudaStreamDestroy(stream));
}

TEST_F(CudaSummarizeFilledTest, NothingToDoIsNoError) {
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, 64, 16, Content::kNormal, 3);
  DeviceSummaries summaries(kGraded8, 64, kHeads, keys, nullptr);
  summaries.summarize({});
  cuda::summarize_filled(summaries.args(), {}, nullptr, nullptr);
  EXPECT_EQ(summaries.report().records, 0);
}

/// The door throws before anything is queued, so it is tested without a GPU.
TEST(CudaSummarizeDoorTest, NamesWhatIsWrong) {
  const CacheData keys(DType::kF16, Layout::kTokenMajor, kPages, kHeads, 64, 16, Content::kZero, 1);
  const CacheData blocks(DType::kQ8_0, Layout::kTokenMajor, kPages, kHeads, 64, 16, Content::kZero, 1);
  std::vector<std::byte> memory(static_cast<std::size_t>(cuda::summary_bytes(kGraded8, 64, kHeads, kPages, true)));
  const SummarizeArgs good{.head_dim = 64,
                           .kv_heads = kHeads,
                           .keys = keys.view(),
                           .values = &keys.view(),
                           .pages = {},
                           .out = cuda::make_store(kGraded8, 64, kHeads, kPages, true, memory.data())};
  const auto message = [](const SummarizeArgs& args) {
    std::string what;
    try {
      cuda::summarize(args, nullptr, nullptr);
    } catch (const std::invalid_argument& error) {
      what = error.what();
    }
    try {
      cuda::summarize_filled(args, {}, nullptr, nullptr);
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(what, error.what());
    }
    return what;
  };
  EXPECT_EQ(message(good), "");
  SummarizeArgs args = good;
  args.keys = blocks.view();
  EXPECT_EQ(message(args), "keys.dtype: expected f32, f16, bf16 or e4m3 (on the GPU), got q8_0");
  args = good;
  args.values = &blocks.view();
  EXPECT_EQ(message(args), "values.dtype: expected f32, f16, bf16 or e4m3 (on the GPU), got q8_0");
  args = good;
  args.values = nullptr;
  EXPECT_EQ(message(args), "values: expected a cache, because out.value_data is set, got a null pointer");
  args = good;
  args.head_dim = 112;
  EXPECT_EQ(message(args), "head_dim: expected 64, 80, 96, 128, 192 or 256, got 112");
}

}  // namespace
}  // namespace locks
