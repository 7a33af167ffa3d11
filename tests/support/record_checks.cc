#include "support/record_checks.h"

#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "cpu/half.h"

namespace locks::test {
namespace {

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

}  // namespace

std::vector<std::vector<float>> page_rows(const CacheData& cache, int head_dim, std::int64_t page, int head, bool rotated) {
  std::vector<std::vector<float>> rows(kPageTokens, std::vector<float>(static_cast<std::size_t>(head_dim)));
  for (int token = 0; token < kPageTokens; ++token) {
    for (int dim = 0; dim < head_dim; ++dim) rows[token][dim] = cache.value(page, token, head, dim);
    if (rotated) rotate(rows[token]);
  }
  return rows;
}

double missed_keys(const CacheData& keys, const SummaryStore& store, std::int64_t page, int head) {
  const DecodedSummary record = decode_record(*store.format, store.head_dim, store.record(page, head));
  const auto rows = page_rows(keys, store.head_dim, page, head, store.format->rotated);
  return missed(rows, record.mean, record.basis, record, store.format->rank);
}

double missed_values(const CacheData& values, const SummaryStore& store, std::int64_t page, int head) {
  const DecodedSummary record = decode_record(*store.format, store.head_dim, store.record(page, head));
  const DecodedValues decoded = decode_value_record(*store.format, store.head_dim, store.value_record(page, head));
  const auto rows = page_rows(values, store.head_dim, page, head, true);
  return missed(rows, decoded.mean, decoded.slopes, record, store.format->rank);
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

void expect_as_good_as_reference(const SummaryStore& got, const SummaryStore& want, const CacheData& keys,
                                 const CacheData& values, int kv_heads, Content content, double variance_error) {
  const int head_dim = got.head_dim;
  const auto [record_tolerance, mean_tolerance] = tolerance(content);
  double sums[2][2] = {};
  for (int page = 0; page < got.num_pages; ++page) {
    for (int head = 0; head < kv_heads; ++head) {
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

      const DecodedSummary record = decode_record(*got.format, head_dim, got.record(page, head));
      EXPECT_FALSE(record.always_attend);
      const double variance = got_keys * got_keys / (kPageTokens * head_dim);
      EXPECT_NEAR(record.residual_variance, variance, variance * variance_error + tiny * tiny);
      const RecordLayout at = record_layout(*got.format, head_dim);
      const std::byte* got_record = got.record(page, head);
      const std::byte* want_record = want.record(page, head);
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

}  // namespace locks::test
