// Scores against the definition. The integers inside are the same on every target, so the bounds cover only the float
// arithmetic after them: a few roundings of each product, the sum of the ranks, exp2 (2.9e-6) and log.
#include "locks/score.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/half.h"
#include "score/kernels.h"
#include "score/query.h"
#include "support/data.h"
#include "support/summaries.h"

namespace locks {
namespace {

constexpr double kEps = 0x1p-24;

/// Records of random codes with moderate scales, at any stride; the bytes between records are 0xFF.
class RandomStore {
 public:
  RandomStore(const SummaryFormat& format, int head_dim, int kv_heads, int num_pages, int gap, std::uint64_t seed,
              float coefficient_scale = 0.3F)
      : layout_(record_layout(format, head_dim)) {
    store.format = &format;
    store.head_dim = head_dim;
    store.num_pages = num_pages;
    store.head_stride = layout_.record_bytes + gap;
    store.page_stride = store.head_stride * kv_heads + 3 * gap;
    // The last record ends where the memory ends: a sanitizer sees any byte read past it.
    const std::int64_t last =
        (num_pages - 1) * store.page_stride + (kv_heads - 1) * store.head_stride + layout_.record_bytes;
    bytes_.assign(static_cast<std::size_t>(num_pages > 0 ? last : 0), std::byte{0xFF});
    store.data = bytes_.data();
    std::mt19937_64 random(seed);
    for (int page = 0; page < num_pages; ++page) {
      for (int head = 0; head < kv_heads; ++head) {
        std::byte* record = store.record(page, head);
        for (int at = 0; at < layout_.record_bytes; ++at) record[at] = static_cast<std::byte>(random());
        clear_padding(format, head_dim, record);
        const auto scales = [&](int at, int count, float scale) {
          std::uniform_real_distribution<float> factor(0.5F, 1.5F);
          for (int i = 0; i < count; ++i) store_u16(record + at + 2 * i, float_to_bf16(scale * factor(random)));
        };
        if (format.basis_has_scales) scales(layout_.basis_scales_at, format.rank, 0.05F);
        scales(layout_.coefficient_scales_at, format.coefficient_bits == 8 ? kPageTokens : format.rank,
               format.coefficient_bits == 8 ? coefficient_scale / 16.0F : coefficient_scale);
        scales(layout_.mean_scale_at, 1, 0.02F);
        scales(layout_.residual_at, 1, 0.1F);
        record[layout_.format_at] = static_cast<std::byte>(format.id);
        record[layout_.flags_at] = std::byte{0};
      }
    }
  }
  void flag(int page, int head) { store.record(page, head)[layout_.flags_at] = std::byte{kFlagAlwaysAttend}; }
  [[nodiscard]] const RecordLayout& layout() const { return layout_; }

  SummaryStore store;

 private:
  static void clear_padding(const SummaryFormat& format, int head_dim, std::byte* record) {
    const RecordLayout at = record_layout(format, head_dim);
    for (int quad = 0; quad < format.num_quads(); ++quad) {
      const int bits = format.quad_bits[quad];
      const int parts = 8 / bits;
      for (int dim = head_dim; dim < quad_bytes(bits, head_dim) / 32 * 8 * parts; ++dim) {
        for (int rank = 0; rank < 4; ++rank) {
          std::byte& byte = record[at.quad_at[quad] + dim / (8 * parts) * 32 + rank * 8 + dim % 8];
          byte &= ~static_cast<std::byte>(((1 << bits) - 1) << (dim / 8 % parts * bits));
        }
      }
    }
  }
  RecordLayout layout_;
  std::vector<std::byte> bytes_;
};

/// One call's arguments with memory of their own.
struct Case {
  Case(const SummaryStore& store, int kv_heads, int group, const PageTable& table, std::vector<float> query_values,
       float softmax_scale = 0.0F)
      : queries(std::move(query_values)),
        workspace(score_workspace_bytes({store.head_dim, kv_heads, kv_heads * group, 1.0F}, table.num_requests())) {
    args.geometry = {store.head_dim, kv_heads, kv_heads * group,
                     softmax_scale > 0.0F ? softmax_scale : 1.0F / std::sqrt(static_cast<float>(store.head_dim))};
    args.summaries = store;
    args.table = table;
    args.workspace = workspace.span();
    const int requests = table.num_requests();
    args.queries = contiguous<const float>(queries.data(), requests, kv_heads * group, store.head_dim);
    for (int request = 0; request < requests; ++request) longest = std::max(longest, table.filled_pages(request));
    // Wider rows than needed, one float apart, so that a store past a row's end shows.
    stride = longest + 5;
    out.assign(static_cast<std::size_t>(requests * kv_heads * group * stride), kUntouched);
    args.log_mass = {out.data(), {requests, kv_heads * group, longest}, {kv_heads * group * stride, stride, 1}};
  }
  std::vector<float> run(Target target, int threads = 1) {
    std::fill(out.begin(), out.end(), kUntouched);
    check_score(args);
    for (int i = 0; i < threads; ++i) prepare_queries(args, {i, threads, nullptr}, target);
    std::vector<std::thread> team;
    for (int i = 1; i < threads; ++i) team.emplace_back([&, i] { score(args, {i, threads, nullptr}, target); });
    score(args, {0, threads, nullptr}, target);
    for (std::thread& thread : team) thread.join();
    return out;
  }
  static constexpr float kUntouched = -12345.0F;
  ScoreArgs args;
  std::vector<float> queries;
  std::vector<float> out;
  test::Workspace workspace;
  int longest = 0;
  std::int64_t stride = 0;
};

struct Bounded {
  double value = 0.0;
  double bound = 0.0;
};
struct Logits {
  Bounded mean;
  std::array<Bounded, kPageTokens> deviation;
};

/// The definition in double from the record and the quantised query, with the bounds of float arithmetic. z has 2 roundings,
/// its constants 3, its product with a coefficient and the sum of `rank` of them rank + 1, a token's scale 1. The common
/// zero is added as a product of its own, rounded once. The mean's integer is rounded once and multiplied by 3 factors.
Logits logits_of(const ScoreArgs& args, int request, int query_head, std::int64_t page) {
  const SummaryFormat& format = *args.summaries.format;
  const int head_dim = args.geometry.head_dim;
  const std::byte* record = args.summaries.record(page, query_head / args.geometry.group_size());
  const DecodedSummary summary = decode_record(format, head_dim, record);
  std::vector<std::byte> block(QueryLayout::kBytes);
  prepare_query(args.queries.at(request, query_head), head_dim, format.rotated, 0, block.data());
  QueryScales scales;
  std::memcpy(&scales, block.data(), sizeof scales);
  const auto* q8 = reinterpret_cast<const std::int8_t*>(block.data() + QueryLayout::kQ8At);
  const auto* q16 = reinterpret_cast<const std::int16_t*>(block.data() + QueryLayout::kQ16At);
  Logits out;
  for (int dim = 0; dim < head_dim; ++dim) {
    out.mean.value += summary.mean[dim] * q16[dim] * scales.scale16 * args.geometry.softmax_scale;
  }
  // A factor below the normal range has an absolute error instead.
  out.mean.bound = 5 * kEps * std::abs(out.mean.value) + 1e-30;
  for (int rank = 0; rank < format.rank; ++rank) {
    double z = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) z += summary.basis[rank][dim] * q8[dim];
    const double unit = static_cast<double>(scales.scale8) * args.geometry.softmax_scale;
    z *= unit;
    const RecordLayout layout = record_layout(format, head_dim);
    const double step = format.basis_has_scales ? bf16_to_float(load_u16(record + layout.basis_scales_at + 2 * rank))
                                                : basis_step(format.quad_bits[rank / 4], head_dim);
    const double zero = format.basis_zero(rank / 4) * scales.sum8 * step * unit;
    for (int token = 0; token < kPageTokens; ++token) {
      const double term = z * summary.coefficients[token][rank];
      out.deviation[token].value += term;
      out.deviation[token].bound +=
          (8 + format.rank) * kEps * std::abs(term) + kEps * std::abs(zero * summary.coefficients[token][rank]) + 1e-30;
    }
  }
  return out;
}

/// The mass lies between those of the lowest and the highest deviations; then exp2, the sum of 16 and log.
Bounded log_mass_of(const Logits& logits) {
  constexpr double kLimit = kMaxDeviation;
  std::array<double, 3> mass{};
  for (const Bounded& deviation : logits.deviation) {
    for (int side = -1; side <= 1; ++side) {
      mass[side + 1] += std::exp(std::clamp(deviation.value + side * deviation.bound, -kLimit, kLimit));
    }
  }
  const double value = logits.mean.value + std::log(mass[1]);
  const double from_deviations = std::log(mass[2] / mass[0]);
  // The limit and the argument of exp2 are floats near 115: half an ulp of each is 4e-6 in the exponent.
  const double own = 2.9e-6 + 16 * kEps + 8e-6 * std::log(2.0) + 6e-8 + 3 * kEps * std::abs(std::log(mass[1]));
  return {value, logits.mean.bound + from_deviations + own + kEps * std::abs(value)};
}

void expect_right(Case& c, Target target, const std::vector<float>& got, bool (*flagged)(int page, int head) = nullptr) {
  const ScoreArgs& args = c.args;
  double worst = -1.0;
  std::string report;
  for (int request = 0; request < args.table.num_requests(); ++request) {
    for (int head = 0; head < args.geometry.query_heads; ++head) {
      const float* row = got.data() + (request * args.geometry.query_heads + head) * c.stride;
      for (int index = 0; index < c.stride; ++index) {
        if (index >= args.table.filled_pages(request)) {
          ASSERT_EQ(row[index], Case::kUntouched) << "written past the pages: " << request << ", " << head << ", " << index;
          continue;
        }
        const std::int64_t page = args.table.page(request, index);
        if (flagged != nullptr && flagged(static_cast<int>(page), head / args.geometry.group_size())) {
          ASSERT_EQ(row[index], std::numeric_limits<float>::infinity());
          continue;
        }
        const Bounded want = log_mass_of(logits_of(args, request, head, page));
        const double excess = std::abs(row[index] - want.value) / want.bound;
        if (!(excess <= worst)) {
          worst = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
          report = "request " + std::to_string(request) + ", head " + std::to_string(head) + ", page " +
                   std::to_string(index) + ": got " + std::to_string(row[index]) + ", want " + std::to_string(want.value) +
                   ", bound " + std::to_string(want.bound);
        }
      }
    }
  }
  EXPECT_LE(worst, 1.0) << target_name(target) << ": " << report;
}

std::vector<float> queries_for(int requests, int kv_heads, int group, int head_dim, std::uint64_t seed,
                               float deviation = 1.0F) {
  return test::normal_floats(static_cast<std::size_t>(requests * kv_heads * group * head_dim), seed, deviation);
}

struct Shape {
  const SummaryFormat* format;
  int head_dim;
};
std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) shapes.push_back({format, head_dim});
  }
  return shapes;
}
std::string shape_name(const testing::TestParamInfo<Shape>& info) {
  return std::string(info.param.format->name) + "_d" + std::to_string(info.param.head_dim);
}

class ScoreTest : public testing::TestWithParam<Shape> {};

TEST_P(ScoreTest, MatchesTheDefinitionOnRandomRecords) {
  const auto [format, head_dim] = GetParam();
  for (const int group : {1, 3, 4, 5, 8, 16}) {
    const int kv_heads = group == 1 ? 3 : 2;
    const RandomStore random(*format, head_dim, kv_heads, 64, group % 2 * 6, 7);
    const int block_tokens = group == 1 ? 64 : group == 3 ? 32 : 16;
    const test::TableData table({0, 15, 16, 333, 65}, 64, block_tokens, 3);
    Case c(random.store, kv_heads, group, table.table, queries_for(5, kv_heads, group, head_dim, 11));
    expect_right(c, Target::kReference, c.run(Target::kReference));
    for (const Target target : test::simd_targets()) expect_right(c, target, c.run(target));
  }
}

TEST_P(ScoreTest, TokenLogitsMatchTheDefinitionAndAddUpToTheMass) {
  const auto [format, head_dim] = GetParam();
  constexpr int kKvHeads = 2;
  constexpr int kGroup = 3;
  const RandomStore random(*format, head_dim, kKvHeads, 24, 2, 8);
  const test::TableData table({100, 210}, 24, 16, 4);
  Case c(random.store, kKvHeads, kGroup, table.table, queries_for(2, kKvHeads, kGroup, head_dim, 12));
  const std::vector<std::int32_t> pages{12, 0, 5, 6};
  std::vector<Target> targets = test::simd_targets();
  targets.push_back(Target::kReference);
  for (const Target target : targets) {
    const std::vector<float> log_mass = c.run(target);
    for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
      std::vector<float> memory(pages.size() * kGroup * kPageTokens);
      const auto logits = contiguous<float>(memory.data(), pages.size(), kGroup, kPageTokens);
      score_tokens(c.args, 1, kv_head, pages, logits, target);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        for (int head = 0; head < kGroup; ++head) {
          const int query_head = kv_head * kGroup + head;
          const Logits want = logits_of(c.args, 1, query_head, table.table.page(1, pages[i]));
          double mass = 0.0;
          double bound = 1e-5;
          for (int token = 0; token < kPageTokens; ++token) {
            const double value = want.mean.value + want.deviation[token].value;
            const double error = want.mean.bound + want.deviation[token].bound + kEps * std::abs(value);
            ASSERT_NEAR(logits(i, head, token), value, error)
                << target_name(target) << ", page " << pages[i] << ", head " << query_head << ", token " << token;
            mass += std::exp(logits(i, head, token) - want.mean.value);
            bound = std::max(bound, 1e-5 + 2 * error);
          }
          const float got =
              log_mass[static_cast<std::size_t>((c.args.geometry.query_heads + query_head) * c.stride + pages[i])];
          ASSERT_NEAR(got, want.mean.value + std::log(mass), bound) << target_name(target);
        }
      }
    }
  }
}

TEST_P(ScoreTest, VnniChangesNoBit) {
  const auto [format, head_dim] = GetParam();
  if (supported_targets().back() != Target::kAvx512 || !__builtin_cpu_supports("avx512vnni")) {
    GTEST_SKIP() << "this processor has no AVX512_VNNI";
  }
  const RandomStore random(*format, head_dim, 1, 40, 2, 9);
  const test::TableData table({640}, 40, 16, 5);
  for (const int group : {1, 2, 3, 4}) {
    Case c(random.store, 1, group, table.table, queries_for(1, 1, group, head_dim, 13));
    prepare_queries(c.args, Team{}, Target::kAvx512);
    score_pages_simd(c.args, 0, 0, 40, Target::kAvx512, true);
    const std::vector<float> with_vnni = c.out;
    std::fill(c.out.begin(), c.out.end(), Case::kUntouched);
    score_pages_simd(c.args, 0, 0, 40, Target::kAvx512, false);
    ASSERT_EQ(with_vnni, c.out);
    expect_right(c, Target::kAvx512, c.out);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ScoreTest, testing::ValuesIn(all_shapes()), shape_name);

TEST(ScoreIntegers, AreExactOnEveryTarget) {
  // Scales of one and integer queries: what comes out is the integer sum itself.
  const int head_dim = 128;
  RandomStore random(kPaper, head_dim, 1, 3, 0, 21);
  const RecordLayout& at = random.layout();
  for (int page = 0; page < 3; ++page) {
    std::byte* record = random.store.record(page, 0);
    for (int i = 0; i < kPaper.rank; ++i) store_u16(record + at.basis_scales_at + 2 * i, float_to_bf16(1.0F));
    for (int i = 0; i < kPageTokens; ++i) store_u16(record + at.coefficient_scales_at + 2 * i, float_to_bf16(1.0F));
    store_u16(record + at.mean_scale_at, float_to_bf16(0.0F));
    for (int i = 0; i < kPaper.rank * kPageTokens; ++i) {  // token t picks rank t % 8
      record[at.coefficients_at + i] = static_cast<std::byte>(i % kPageTokens % 8 == i / kPageTokens);
    }
    if (page == 1) std::memset(record, 0xFF, static_cast<std::size_t>(at.mean_at));  // every code 15
  }
  const test::TableData table({48}, 3, 16, 1);
  std::vector<float> query(head_dim);
  for (int dim = 0; dim < head_dim; ++dim) query[dim] = static_cast<float>(dim * 91 % 255 - 127);
  for (const bool all_equal : {false, true}) {  // the largest sums that the codes allow, of either sign
    if (all_equal) std::fill(query.begin(), query.end(), -127.0F);
    query[0] = 127.0F;
    Case c(random.store, 1, 1, table.table, query, 1.0F);
    std::vector<Target> targets = test::simd_targets();
    targets.push_back(Target::kReference);
    for (const Target target : targets) {
      prepare_queries(c.args, Team{}, target);
      std::array<float, 3 * kPageTokens> logits{};
      const std::vector<std::int32_t> pages{0, 1, 2};
      score_tokens(c.args, 0, 0, pages, contiguous<float>(logits.data(), 3, 1, kPageTokens), target);
      for (int index = 0; index < 3; ++index) {
        const DecodedSummary summary = decode_record(kPaper, head_dim, random.store.record(table.table.page(0, index), 0));
        for (int token = 0; token < kPageTokens; ++token) {
          double want = 0.0;
          for (int dim = 0; dim < head_dim; ++dim) want += summary.basis[token % 8][dim] * query[dim];
          ASSERT_EQ(logits[static_cast<std::size_t>(index * kPageTokens + token)], want)
              << target_name(target) << ", " << token;
        }
      }
    }
  }
}

TEST(ScoreIntegers, OfTheMeanAreExactOnEveryTarget) {
  for (const int head_dim : {64, 80, 256}) {
    RandomStore random(kPaper, head_dim, 1, 1, 0, 22);
    std::byte* record = random.store.record(0, 0);
    store_u16(record + random.layout().mean_scale_at, float_to_bf16(1.0F));
    std::memset(record + random.layout().coefficients_at, 0, kPaper.rank * kPageTokens);
    const test::TableData table({16}, 1, 16, 1);
    std::vector<float> query(static_cast<std::size_t>(head_dim));
    double want = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) {
      query[dim] = dim == 5 ? 32767.0F : static_cast<float>(dim * 37 % 201 - 100);
      want += static_cast<std::int8_t>(record[random.layout().mean_at + dim]) * static_cast<double>(query[dim]);
    }
    Case c(random.store, 1, 1, table.table, query, 1.0F);
    for (const Target target : test::simd_targets()) {
      prepare_queries(c.args, Team{}, target);
      std::array<float, kPageTokens> logits{};
      const std::vector<std::int32_t> pages{0};
      score_tokens(c.args, 0, 0, pages, contiguous<float>(logits.data(), 1, 1, kPageTokens), target);
      for (const float logit : logits) ASSERT_EQ(logit, want) << target_name(target) << ", head dim " << head_dim;
    }
  }
}

TEST(ScoreQueries, AreQuantisedByTheRule) {
  const int head_dim = 64;
  std::vector<float> query = test::normal_floats(head_dim, 5);
  query[7] = 127.0F;  // a / 127 = 1, so halves are ties
  query[8] = -126.5F;
  query[9] = 0.5F;
  query[10] = 1.5F;
  std::vector<std::byte> block(QueryLayout::kBytes);
  prepare_query(query.data(), head_dim, false, 0, block.data());
  const auto* q8 = reinterpret_cast<const std::int8_t*>(block.data() + QueryLayout::kQ8At);
  const auto* q16 = reinterpret_cast<const std::int16_t*>(block.data() + QueryLayout::kQ16At);
  QueryScales scales;
  std::memcpy(&scales, block.data(), sizeof scales);
  EXPECT_EQ(scales.scale8, 1.0F);
  EXPECT_EQ(scales.scale16, 127.0F / 32767.0F);
  std::int32_t sum = 0;
  for (int dim = 0; dim < head_dim; ++dim) {
    EXPECT_EQ(q8[dim], std::nearbyint(query[dim])) << dim;
    EXPECT_EQ(q16[dim], std::nearbyint(query[dim] * (32767.0F / 127.0F))) << dim;
    sum += q8[dim];
  }
  EXPECT_EQ(q8[8], -126);
  EXPECT_EQ(q8[9], 0);
  EXPECT_EQ(q8[10], 2);
  EXPECT_EQ(scales.sum8, sum);
}

TEST(ScoreQueries, WithoutInformationGiveEveryPageTheMassOfSixteenEqualTokens) {
  for (const SummaryFormat* format : summary_formats()) {
    const RandomStore random(*format, 64, 1, 20, 0, 9);
    const test::TableData table({320}, 20, 16, 5);
    for (const float poison : {0.0F, 1e-40F, 1e-36F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> query(3 * 64, poison < 1e-30F ? poison : 1.0F);
      for (int head = 0; head < 3; ++head) query[static_cast<std::size_t>(head * 64 + 10 * head)] = poison;
      Case c(random.store, 1, 3, table.table, query);
      std::vector<Target> targets = test::simd_targets();
      targets.push_back(Target::kReference);
      for (const Target target : targets) {
        const std::vector<float> got = c.run(target);
        for (int head = 0; head < 3; ++head) {
          for (int page = 0; page < 20; ++page) {
            ASSERT_NEAR(got[static_cast<std::size_t>(head * c.stride + page)], std::log(16.0), 4e-6)
                << target_name(target) << " " << format->name << " " << poison;
          }
        }
      }
    }
  }
}

TEST(ScoreExtremes, HugeAndTinyQueriesStayWithinTheBounds) {
  for (const SummaryFormat* format : summary_formats()) {
    const RandomStore random(*format, 80, 2, 30, 0, 10);
    const test::TableData table({480}, 30, 16, 6);
    for (const float size : {1e-33F, 1e-20F, 1e-3F, 30.0F, 1e4F, 1e15F, 1e33F}) {
      Case c(random.store, 2, 2, table.table, queries_for(1, 2, 2, 80, 13, size));
      for (const Target target : test::simd_targets()) expect_right(c, target, c.run(target));
    }
  }
}

TEST(ScoreExtremes, DeviationsAreClampedOnBothSides) {
  for (const SummaryFormat* format : summary_formats()) {
    RandomStore random(*format, 64, 1, 18, 0, 14, 50.0F);
    const RecordLayout& at = random.layout();
    for (int page = 0; page < 18; ++page) {  // all tokens alike, so that all are far above or far below the mean
      std::byte* record = random.store.record(page, 0);
      const int bytes = format->rank * kPageTokens * format->coefficient_bits / 8;
      std::memset(record + at.coefficients_at, page % 2 == 0 ? 0x77 : 0x88, static_cast<std::size_t>(bytes));
      if (page == 17) record[at.coefficients_at + 3] = std::byte{0x0F};
    }
    const test::TableData table({288}, 18, 16, 6);
    Case c(random.store, 1, 3, table.table, queries_for(1, 1, 3, 64, 15, 1000.0F));
    for (const Target target : test::simd_targets()) {
      const std::vector<float> got = c.run(target);
      expect_right(c, target, got);
      for (const float value : got) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(ScoreExtremes, NothingBecomesNotANumber) {
  for (const SummaryFormat* format : summary_formats()) {
    const RandomStore random(*format, 128, 1, 16, 0, 16, 1e30F);
    const test::TableData table({256}, 16, 16, 6);
    Case c(random.store, 1, 2, table.table, queries_for(1, 1, 2, 128, 15, 1e37F));
    for (const Target target : test::simd_targets()) {
      for (const float value : c.run(target)) ASSERT_FALSE(std::isnan(value)) << target_name(target) << " " << format->name;
    }
  }
}

TEST(ScoreFlags, PagesToAttendAlwaysHaveInfiniteMassForTheirHeadsOnly) {
  RandomStore random(kGraded8, 64, 3, 40, 4, 17);
  for (int page = 0; page < 40; page += 7) random.flag(page, 1);
  random.flag(13, 0);
  const test::TableData table({280, 340}, 40, 16, 7);
  Case c(random.store, 3, 5, table.table, queries_for(2, 3, 5, 64, 16));
  const auto flagged = [](int page, int head) { return (head == 1 && page % 7 == 0) || (head == 0 && page == 13); };
  std::vector<Target> targets = test::simd_targets();
  targets.push_back(Target::kReference);
  for (const Target target : targets) expect_right(c, target, c.run(target), flagged);
}

TEST(ScoreTeams, OfAnySizeGiveTheSameBits) {
  const RandomStore random(kGraded12, 96, 2, 100, 0, 18);
  const test::TableData table({17, 0, 900, 555}, 100, 32, 8);
  Case c(random.store, 2, 7, table.table, queries_for(4, 2, 7, 96, 17));
  std::vector<Target> targets = test::simd_targets();
  targets.push_back(Target::kReference);
  for (const Target target : targets) {
    const std::vector<float> alone = c.run(target);
    for (const int threads : {2, 3, 7}) {
      ASSERT_EQ(c.run(target, threads), alone) << target_name(target) << " with " << threads << " threads";
    }
  }
}

TEST(ScoreSummaries, OfRealPagesMatchTheDefinition) {
  for (const test::Content content : {test::Content::kLowRank, test::Content::kConstant, test::Content::kZero,
                                      test::Content::kHuge, test::Content::kDenormal, test::Content::kOneOutlier}) {
    const test::CacheData keys(DType::kF32, test::Layout::kGaps, 20, 2, 64, 16, content, 19);
    for (const SummaryFormat* format : summary_formats()) {
      const test::SummaryData summaries(*format, 64, 2, keys.view());
      const test::TableData table({320}, 20, 16, 9);
      Case c(summaries.store(), 2, 3, table.table, queries_for(1, 2, 3, 64, 20));
      for (const Target target : test::simd_targets()) expect_right(c, target, c.run(target));
    }
  }
}

class ScoreCheck : public testing::Test {
 protected:
  ScoreCheck()
      : random(kGraded8, 64, 2, 20, 0, 1),
        table({100, 40}, 20, 16, 1),
        c(random.store, 2, 2, table.table, queries_for(2, 2, 2, 64, 1)) {}
  void expect_refused(const std::string& start) {
    try {
      check_score(c.args);
      FAIL() << "accepted, though " << start;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).rfind(start, 0), 0U) << error.what();
    }
  }
  RandomStore random;
  test::TableData table;
  Case c;
};

TEST_F(ScoreCheck, AcceptsWhatIsRight) { EXPECT_NO_THROW(check_score(c.args)); }
TEST_F(ScoreCheck, RefusesAGeometry) {
  c.args.geometry.query_heads = 3;
  expect_refused("query_heads: expected a multiple of kv_heads (2), got 3");
}
TEST_F(ScoreCheck, RefusesAnotherHeadDimOfTheSummaries) {
  c.args.summaries.head_dim = 128;
  expect_refused("summaries.head_dim: expected 64, got 128");
}
TEST_F(ScoreCheck, RefusesQueriesOfAnotherShape) {
  c.args.queries.shape[1] = 2;
  expect_refused("queries: expected [requests, query_heads, head_dim] = [2, 4, 64]");
}
TEST_F(ScoreCheck, RefusesTooFewColumns) {
  c.args.log_mass.shape[2] = 5;
  expect_refused("log_mass: expected room for the 6 filled pages of the longest request, got 5");
}
TEST_F(ScoreCheck, RefusesPagesThatAreNotSideBySide) {
  c.args.log_mass.stride[2] = 2;
  expect_refused("log_mass: expected [requests, query_heads, pages]");
}
TEST_F(ScoreCheck, RefusesABlockThatTheStoreDoesNotHave) {
  c.args.summaries.num_pages = 3;
  expect_refused("table.blocks[");
}
TEST_F(ScoreCheck, RefusesASmallOrUnalignedWorkspace) {
  c.args.workspace = c.args.workspace.first(c.args.workspace.size() / 2);
  expect_refused("workspace: expected at least");
}

}  // namespace
}  // namespace locks
