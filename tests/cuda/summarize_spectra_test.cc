// Pages whose energies are chosen: apart, in pairs ever closer, all but equal, few, next to noise, or beside a large mean.
// What finds directions on the GPU takes one of two ways, by how close energies are.
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "device_summaries.h"
#include "support/data.h"
#include "support/record_checks.h"
#include "support/summaries.h"

namespace locks {
namespace {

using test::CacheData;
using test::Content;
using test::DeviceSummaries;
using test::Layout;
using test::missed_keys;
using test::SummaryData;

constexpr int kHeadDim = 128;
constexpr int kHeads = 2;
constexpr int kPages = 6;
constexpr int kMostEnergies = kPageTokens - 1;  // the mean takes one

using Random = std::mt19937;
using Vectors = std::vector<std::vector<double>>;

/// Orthonormal rows [count, length], whose components have the sum 0 if `centred`.
Vectors orthonormal(int count, int length, bool centred, Random& random) {
  std::normal_distribution<double> normal;
  Vectors rows;
  for (int r = 0; r < count; ++r) {
    std::vector<double> row(static_cast<std::size_t>(length));
    for (double& x : row) x = normal(random);
    for (int time = 0; time < 2; ++time) {  // once leaves rounding behind
      double sum = 0.0;
      for (const double x : row) sum += x;
      for (double& x : row) x -= centred ? sum / length : 0.0;
      for (const auto& other : rows) {
        double product = 0.0;
        for (int i = 0; i < length; ++i) product += other[i] * row[i];
        for (int i = 0; i < length; ++i) row[i] -= product * other[i];
      }
    }
    double square = 0.0;
    for (const double x : row) square += x * x;
    for (double& x : row) x /= std::sqrt(square);
    rows.push_back(std::move(row));
  }
  return rows;
}

void make_page(CacheData& keys, int page, int head, const std::vector<double>& energies, double mean, Random& random) {
  const int count = static_cast<int>(energies.size());
  const Vectors u = orthonormal(count, kPageTokens, true, random);
  const Vectors v = orthonormal(count, kHeadDim, false, random);
  std::normal_distribution<double> normal(0.0, 1.0);
  for (int dim = 0; dim < kHeadDim; ++dim) {
    const double common = mean * normal(random);
    for (int token = 0; token < kPageTokens; ++token) {
      double x = common;
      for (int r = 0; r < count; ++r) x += std::sqrt(energies[r]) * u[r][token] * v[r][dim];
      keys.set_value(page, token, head, dim, static_cast<float>(x));
    }
  }
}

struct Spectrum {
  std::string name;
  std::vector<double> energies;
  double mean = 1.0;
};

std::vector<Spectrum> spectra() {
  std::vector<Spectrum> all;
  const auto add = [&all](const std::string& name, int count, const std::function<double(int)>& energy, double mean = 1.0) {
    Spectrum spectrum{name, {}, mean};
    for (int r = 0; r < count; ++r) spectrum.energies.push_back(energy(r));
    all.push_back(spectrum);
  };
  for (const double ratio : {0.9, 0.5, 0.1}) {
    add("ratio " + std::to_string(ratio), kMostEnergies, [=](int r) { return 100.0 * std::pow(ratio, r); });
  }
  for (const double gap : {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0}) {
    const std::string text = " apart by 1 - " + std::to_string(1.0 - gap);
    add("pairs" + text, kMostEnergies, [=](int r) { return 100.0 * std::pow(0.6, r / 2) * (1.0 - gap * (r % 2)); });
    add("all" + text, kMostEnergies, [=](int r) { return 10.0 * (1.0 - gap * r); });
  }
  for (const int rank : {1, 2, 7, 8, 9})
    add("rank " + std::to_string(rank), rank, [](int r) { return 10.0 * std::pow(0.7, r); });
  for (const double noise : {1e-2, 1e-4, 1e-6, 1e-8}) {
    add("one and noise", kMostEnergies, [=](int r) { return r == 0 ? 100.0 : 100.0 * noise * (1.0 - 0.03 * r); });
  }
  for (const double mean : {0.0, 10.0, 1000.0}) {
    add("mean " + std::to_string(mean), kMostEnergies, [](int r) { return 16.0 * (1.0 - 0.05 * r); }, mean);
  }
  return all;
}

class CudaSummarizeSpectraTest : public test::CudaTest {};

TEST_F(CudaSummarizeSpectraTest, MissesNoMoreThanTheReferenceHoweverCloseEnergiesAre) {
  Random random(7);
  for (const Spectrum& spectrum : spectra()) {
    CacheData keys(DType::kF32, Layout::kTokenMajor, kPages, kHeads, kHeadDim, 16, Content::kZero, 1);
    for (int page = 0; page < kPages; ++page) {
      for (int head = 0; head < kHeads; ++head) make_page(keys, page, head, spectrum.energies, spectrum.mean, random);
    }
    for (const SummaryFormat* format : summary_formats()) {
      SCOPED_TRACE(testing::Message() << format->name << " " << spectrum.name);
      const SummaryData want(*format, kHeadDim, kHeads, keys.view());
      DeviceSummaries summaries(*format, kHeadDim, kHeads, keys, nullptr);
      summaries.summarize_all();
      const SummaryStore got = summaries.store().read();
      double sums[2] = {};
      for (int page = 0; page < kPages; ++page) {
        for (int head = 0; head < kHeads; ++head) {
          const double got_keys = missed_keys(keys, got, page, head);
          const double want_keys = missed_keys(keys, want.store(), page, head);
          // Close energies leave the basis free inside their space: another draw of the same quantisation noise, of which
          // `record_checks.cc` tells more.
          EXPECT_LE(got_keys, 1.04 * want_keys) << page << " " << head;
          sums[0] += got_keys;
          sums[1] += want_keys;
        }
      }
      EXPECT_LE(sums[0], 1.01 * sums[1]);
    }
  }
}

}  // namespace
}  // namespace locks
