#include "locks/page_summary.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/half.h"
#include "locks/error.h"

namespace locks {
namespace {

constexpr int kHeadDims[] = {64, 80, 96, 128, 192, 256};

std::vector<std::byte> empty_record(const SummaryFormat& format, int head_dim) {
  const RecordLayout at = record_layout(format, head_dim);
  std::vector<std::byte> record(static_cast<std::size_t>(at.record_bytes));
  record[at.format_at] = static_cast<std::byte>(format.id);
  for (int byte = at.basis_scales_at; byte < at.residual_at; byte += 2) store_u16(&record[byte], float_to_bf16(1.0F));
  return record;
}

TEST(PageSummaryTest, SectionsFollowEachOtherWithoutGaps) {
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : kHeadDims) {
      const RecordLayout at = record_layout(*format, head_dim);
      int next = 0;
      for (int quad = 0; quad < format->num_quads(); ++quad) {
        EXPECT_EQ(at.quad_at[quad], next);
        const int dims_per_block = format->quad_bits[quad] == 4 ? 16 : 32;
        next += (head_dim + dims_per_block - 1) / dims_per_block * 32;
      }
      EXPECT_EQ(at.mean_at, next);
      EXPECT_EQ(at.coefficients_at, next += head_dim);
      EXPECT_EQ(at.basis_scales_at, next += format->rank * 16 * format->coefficient_bits / 8);
      EXPECT_EQ(at.coefficient_scales_at, next += format->basis_has_scales ? 2 * format->rank : 0);
      EXPECT_EQ(at.mean_scale_at, next += format->coefficient_bits == 8 ? 32 : 2 * format->rank);
      EXPECT_EQ(at.residual_at, next += 2);
      EXPECT_EQ(at.format_at, next += 2);
      EXPECT_EQ(at.flags_at, next += 1);
      EXPECT_EQ(at.record_bytes, next + 1);
    }
  }
}

// One code at a time, put where the header says it lies, must change exactly one number of the decoded basis.
TEST(PageSummaryTest, EveryBasisCodeLiesWhereTheHeaderSays) {
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 256}) {
      const RecordLayout at = record_layout(*format, head_dim);
      const auto record = empty_record(*format, head_dim);
      const DecodedSummary before = decode_record(*format, head_dim, record.data());
      for (int rank = 0; rank < format->rank; ++rank) {
        const int bits = format->quad_bits[rank / 4];
        const double step = format->basis_has_scales ? 1.0 : static_cast<double>(basis_step(bits, head_dim));
        for (int dim = 0; dim < head_dim; ++dim) {
          auto changed = record;
          const int block = bits == 4 ? dim / 16 : dim / 32;
          const int shift = bits == 4 ? dim % 16 / 8 * 4 : dim % 32 / 8 * 2;
          changed[at.quad_at[rank / 4] + 32 * block + 8 * (rank % 4) + dim % 8] = static_cast<std::byte>(3 << shift);
          DecodedSummary after = decode_record(*format, head_dim, changed.data());
          ASSERT_NEAR(after.basis[rank][dim] - before.basis[rank][dim], 3.0 * step, 1e-12)
              << format->name << " " << rank << " " << dim;
          after.basis[rank][dim] = before.basis[rank][dim];
          ASSERT_EQ(after.basis, before.basis) << format->name << " rank " << rank << " dim " << dim;
        }
      }
    }
  }
}

TEST(PageSummaryTest, EveryCoefficientCodeLiesWhereTheHeaderSays) {
  for (const SummaryFormat* format : summary_formats()) {
    const RecordLayout at = record_layout(*format, 64);
    const auto record = empty_record(*format, 64);
    const DecodedSummary before = decode_record(*format, 64, record.data());
    for (int rank = 0; rank < format->rank; ++rank) {
      for (int token = 0; token < kPageTokens; ++token) {
        auto changed = record;
        if (format->coefficient_bits == 8) {
          changed[at.coefficients_at + 16 * rank + token] = static_cast<std::byte>(3);
        } else {
          changed[at.coefficients_at + 8 * rank + token % 8] = static_cast<std::byte>(3 << (token < 8 ? 0 : 4));
        }
        DecodedSummary after = decode_record(*format, 64, changed.data());
        ASSERT_EQ(after.coefficients[token][rank] - before.coefficients[token][rank], 3.0);
        after.coefficients[token][rank] = before.coefficients[token][rank];
        ASSERT_EQ(after.coefficients, before.coefficients);
      }
    }
  }
}

TEST(PageSummaryTest, ScalesMultiplyWhatIsTheirs) {
  for (const SummaryFormat* format : summary_formats()) {
    const RecordLayout at = record_layout(*format, 64);
    auto record = empty_record(*format, 64);
    record[at.mean_at + 9] = static_cast<std::byte>(-127);
    std::fill_n(record.begin() + at.coefficients_at, format->rank * 2 * format->coefficient_bits, std::byte{0x11});
    const DecodedSummary before = decode_record(*format, 64, record.data());
    store_u16(&record[at.mean_scale_at], float_to_bf16(0.25F));
    store_u16(&record[at.residual_at], float_to_bf16(3.0F));
    const int last_scale = format->coefficient_bits == 8 ? 15 : format->rank - 1;
    store_u16(&record[at.coefficient_scales_at + 2 * last_scale], float_to_bf16(2.0F));
    const DecodedSummary after = decode_record(*format, 64, record.data());
    EXPECT_EQ(after.mean[9], -127 * 0.25);
    EXPECT_EQ(after.residual_variance, 3.0);
    for (int rank = 0; rank < format->rank; ++rank) {
      for (int token = 0; token < kPageTokens; ++token) {
        const bool scaled = (format->coefficient_bits == 8 ? token : rank) == last_scale;
        EXPECT_EQ(after.coefficients[token][rank], before.coefficients[token][rank] * (scaled ? 2.0 : 1.0));
      }
    }
  }
}

TEST(PageSummaryTest, MidRiseCodesHaveNoZeroAndAreSymmetric) {
  auto record = empty_record(kGraded8, 64);
  const RecordLayout at = record_layout(kGraded8, 64);
  record[at.quad_at[0]] = std::byte{0xF0};  // rank 0: dimension 0 is code 0, dimension 8 code 15
  record[at.quad_at[1]] = std::byte{0xE4};  // rank 4: dimensions 0, 8, 16, 24 are codes 0 to 3
  const DecodedSummary decoded = decode_record(kGraded8, 64, record.data());
  const double four_bit = basis_step(4, 64);
  const double two_bit = basis_step(2, 64);
  EXPECT_NEAR(decoded.basis[0][0], -7.5 * four_bit, 1e-12);
  EXPECT_NEAR(decoded.basis[0][8], 7.5 * four_bit, 1e-12);
  for (int code = 0; code < 4; ++code) EXPECT_NEAR(decoded.basis[4][8 * code], (code - 1.5) * two_bit, 1e-12);
}

// A uniform quantiser's least-squares step for a unit normal variable, by numeric search over the squared error.
TEST(PageSummaryTest, BasisStepsAreTheLeastSquaresOnes) {
  for (const int bits : {2, 4}) {
    const int half = 1 << (bits - 1);
    const auto error = [half](double step) {
      double sum = 0.0;
      for (double x = 0.0005; x < 6.0; x += 0.001) {
        const double middle = (std::min(std::floor(x / step), half - 1.0) + 0.5) * step;
        sum += (x - middle) * (x - middle) * std::exp(-0.5 * x * x);
      }
      return sum;
    };
    const double step = static_cast<double>(basis_step(bits, 64)) * 8.0;
    EXPECT_LT(error(step), error(step * 1.02)) << bits;
    EXPECT_LT(error(step), error(step * 0.98)) << bits;
  }
}

TEST(PageSummaryTest, EverySlopeLiesWhereTheHeaderSays) {
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80}) {
      const ValueLayout at = value_layout(*format, head_dim);
      std::vector<std::byte> record(static_cast<std::size_t>(at.record_bytes));
      for (int rank = 0; rank < format->rank; ++rank) store_u16(&record[at.slope_scales_at + 2 * rank], float_to_bf16(0.5F));
      store_u16(&record[at.mean_scale_at], float_to_bf16(2.0F));
      record[at.mean_at + 3] = static_cast<std::byte>(-5);
      const DecodedValues before = decode_value_record(*format, head_dim, record.data());
      EXPECT_EQ(before.mean[3], -10.0);
      for (int rank = 0; rank < format->rank; ++rank) {
        for (int dim = 0; dim < head_dim; ++dim) {
          auto changed = record;
          const int row = head_dim / 4;
          changed[at.slopes_at + rank * row + dim % row] = static_cast<std::byte>(2 << (dim / row * 2));
          DecodedValues after = decode_value_record(*format, head_dim, changed.data());
          ASSERT_EQ(after.slopes[rank][dim], 0.25);  // code 2 of 0..3
          ASSERT_EQ(before.slopes[rank][dim], -0.75);
          after.slopes[rank][dim] = before.slopes[rank][dim];
          ASSERT_EQ(after.slopes, before.slopes);
        }
      }
    }
  }
}

TEST(PageSummaryTest, RefusesRecordsOfAnotherFormat) {
  const auto record = empty_record(kGraded12, 128);
  try {
    static_cast<void>(decode_record(kGraded8, 128, record.data()));
    FAIL() << "not refused";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "the record was not written as 'graded8': its format byte is 0");
    EXPECT_EQ(error.byte_offset(), record_layout(kGraded8, 128).format_at);
  }
}

TEST(PageSummaryTest, RefusesTruncatedRecordsAndTrailingBytes) {
  auto record = empty_record(kGraded8, 64);
  EXPECT_NO_THROW(static_cast<void>(decode_record(kGraded8, 64, std::span<const std::byte>(record))));
  try {
    static_cast<void>(decode_record(kGraded8, 64, std::span<const std::byte>(record).first(341)));
    FAIL() << "not refused";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "a record of 'graded8' with head_dim 64 has 342 bytes; there are 341");
    EXPECT_EQ(error.byte_offset(), 341);
  }
  record.push_back(std::byte{0});
  try {
    static_cast<void>(decode_record(kGraded8, 64, std::span<const std::byte>(record)));
    FAIL() << "not refused";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.byte_offset(), 342);
  }
}

TEST(PageSummaryTest, FormatsAreFoundByName) {
  for (const SummaryFormat* format : summary_formats()) EXPECT_EQ(&find_format(format->name), format);
  try {
    static_cast<void>(find_format("graded9"));
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "summary format 'graded9' is unknown; it may be paper, graded8, graded12, graded4");
  }
}

TEST(PageSummaryTest, StoresLieSideBySide) {
  std::byte memory{};
  const SummaryStore store = make_store(kGraded8, 128, 3, 10, true, &memory);
  EXPECT_EQ(summary_bytes(kGraded8, 128, 3, 10, true), 10 * 3 * (598 + 402));
  EXPECT_EQ(summary_bytes(kGraded8, 128, 3, 10, false), 10 * 3 * 598);
  EXPECT_EQ(store.record(0, 0), &memory);
  EXPECT_EQ(store.record(2, 1) - &memory, (2 * 3 + 1) * 598);
  EXPECT_EQ(store.value_record(0, 0) - &memory, 10 * 3 * 598);
  EXPECT_EQ(store.value_record(9, 2) - store.value_record(0, 0), 29 * 402);
  EXPECT_EQ(make_store(kGraded8, 128, 3, 10, false, &memory).value_data, nullptr);
}

}  // namespace
}  // namespace locks
