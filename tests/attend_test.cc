#include "locks/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "support/data.h"

namespace locks {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kEps = 0x1p-24;  // one rounding of float

enum class Lists { kDense, kPerKvHead, kPerQueryHead };

/// One call with everything that it borrows.
struct Case {
  Geometry geometry;
  test::CacheData keys;
  test::CacheData values;
  test::TableData table;
  std::vector<float> queries;
  std::vector<SelectedPage> selected;
  std::vector<std::int32_t> num_selected;
  AttendArgs args;

  struct Shape {
    DType key_type = DType::kF16;
    DType value_type = DType::kF16;
    int head_dim = 64;
    int kv_heads = 2;
    int group = 3;
    int block_tokens = 16;
    test::Layout layout = test::Layout::kTokenMajor;
    test::Content content = test::Content::kNormal;
    std::vector<std::int32_t> lengths{0, 1, 15, 16, 17, 170};
    std::uint64_t seed = 1;
  };

  explicit Case(const Shape& shape, Lists lists = Lists::kDense)
      : geometry{shape.head_dim, shape.kv_heads, shape.kv_heads * shape.group,
                 1.0F / std::sqrt(static_cast<float>(shape.head_dim))},
        keys(shape.key_type, shape.layout, num_pages(shape), shape.kv_heads, shape.head_dim, block_tokens(shape),
             shape.content, shape.seed),
        values(shape.value_type, shape.layout, num_pages(shape), shape.kv_heads, shape.head_dim, block_tokens(shape),
               test::Content::kNormal, shape.seed + 1),
        table(shape.lengths, num_pages(shape), block_tokens(shape), shape.seed + 2),
        queries(test::normal_floats(
            shape.lengths.size() * static_cast<std::size_t>(geometry.query_heads * (shape.head_dim + 5)), shape.seed + 3)) {
    args.geometry = geometry;
    args.queries = contiguous<const float>(queries.data(), shape.lengths.size(), geometry.query_heads, shape.head_dim + 5);
    args.queries.shape[2] = shape.head_dim;  // rows with a gap behind them
    args.keys = keys.view();
    args.values = values.view();
    args.table = table.table;
    args.num_lists = lists == Lists::kPerQueryHead ? geometry.query_heads : geometry.kv_heads;
    if (lists != Lists::kDense) list_random(shape.seed + 4);
  }

  /// Some pages of each request, with masks of all kinds, never beyond the context.
  void list_random(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const int pages = longest() / kPageTokens + 1;
    selected.assign(static_cast<std::size_t>(args.table.num_requests() * args.num_lists * pages), {});
    num_selected.assign(static_cast<std::size_t>(args.table.num_requests() * args.num_lists), 0);
    for (std::size_t row = 0; row < num_selected.size(); ++row) {
      const int tokens = table.context_tokens[row / static_cast<std::size_t>(args.num_lists)];
      for (int page = 0; page * kPageTokens < tokens; ++page) {
        if (random() % 4 == 0) continue;
        std::uint16_t mask = kWholePage;
        if (random() % 2 == 0) mask = static_cast<std::uint16_t>(random() & (random() % 2 == 0 ? random() : 0xF0F0));
        const int left = tokens - page * kPageTokens;
        if (left < kPageTokens) mask &= static_cast<std::uint16_t>((1 << left) - 1);
        selected[row * static_cast<std::size_t>(pages) + static_cast<std::size_t>(num_selected[row]++)] = {page, mask};
      }
    }
    use_lists(pages);
  }

  void use_lists(int capacity) {
    args.selected = contiguous<const SelectedPage>(selected.data(), args.table.num_requests(), args.num_lists, capacity);
    args.num_selected = contiguous<const std::int32_t>(num_selected.data(), args.table.num_requests(), args.num_lists);
  }

  void list_everything() {
    const int pages = longest() / kPageTokens + 1;
    selected.clear();
    num_selected.clear();
    for (const std::int32_t tokens : table.context_tokens) {
      for (int list = 0; list < args.num_lists; ++list) {
        for (int page = 0; page < pages; ++page) {
          const int left = std::clamp(tokens - page * kPageTokens, 0, kPageTokens);
          selected.push_back({page, static_cast<std::uint16_t>((1 << left) - 1)});
        }
        num_selected.push_back((tokens + kPageTokens - 1) / kPageTokens);
      }
    }
    use_lists(pages);
  }

  [[nodiscard]] int longest() const { return *std::max_element(table.context_tokens.begin(), table.context_tokens.end()); }
  static int block_tokens(const Shape& shape) {
    return shape.layout == test::Layout::kScattered ? kPageTokens : shape.block_tokens;
  }
  static int num_pages(const Shape& shape) {
    int pages = 0;
    for (const int tokens : shape.lengths)
      pages += (tokens + shape.block_tokens - 1) / shape.block_tokens * (shape.block_tokens / 16);
    return pages + shape.block_tokens / 16;
  }
};

/// States of all heads after a team has run, one thread after the other, as [requests, query_heads, 2 + head_dim].
std::vector<float> run_states(Case& c, Target target, int threads) {
  test::Workspace workspace(attend_workspace_bytes(c.geometry, c.args.table.num_requests(), c.args.num_lists, threads));
  std::fill(workspace.span().begin(), workspace.span().end(), std::byte{0xFF});  // NaN wherever nothing is written
  c.args.workspace = workspace.span();
  check_attend(c.args);
  for (int thread = 0; thread < threads; ++thread) attend(c.args, Team{thread, threads}, target);
  const int requests = c.args.table.num_requests();
  const int state = 2 + c.geometry.head_dim;
  std::vector<float> states(static_cast<std::size_t>(requests * c.geometry.query_heads * state), 0.0F);
  for (std::size_t i = 0; i < states.size(); i += static_cast<std::size_t>(state)) states[i] = -kInfinity;
  const SoftmaxStates view = contiguous(states.data(), requests, c.geometry.query_heads, state);
  for (int request = 0; request < requests; ++request) {
    for (int list = 0; list < c.args.num_lists; ++list) merge_partials(c.args, request, list, threads, view);
  }
  return states;
}

std::vector<float> run_outputs(Case& c, Target target, int threads = 1) {
  std::vector<float> states = run_states(c, target, threads);
  const int head_dim = c.geometry.head_dim;
  const int requests = c.args.table.num_requests();
  const SoftmaxStates view = contiguous(states.data(), requests, c.geometry.query_heads, 2 + head_dim);
  std::vector<float> out(static_cast<std::size_t>(requests * c.geometry.query_heads * head_dim));
  for (int row = 0; row < requests * c.geometry.query_heads; ++row) {
    finish(view, row / c.geometry.query_heads, row % c.geometry.query_heads,
           std::span(out).subspan(static_cast<std::size_t>(row * head_dim), static_cast<std::size_t>(head_dim)));
  }
  return out;
}

struct Expected {
  std::vector<double> out;
  std::vector<double> bound;
};

/// Softmax attention by the textbook, and what float arithmetic may lose. With the logits' error
///     e_l = (head_dim + 4) eps scale sum |q k|       (products and sums in any order, scaling, q8_0 rounded to float)
/// a weight is off by 2 max e_l + |l - max| eps + 2e-7 relatively (both its logit and the max are off; the difference is
/// rounded; exp), and a sum of n tokens in chunks adds (n / 16 + 24) eps (chunk, merging, division; 1 for a q8_0 value).
Expected expected_outputs(const Case& c) {
  const Geometry& geometry = c.geometry;
  const int head_dim = geometry.head_dim;
  Expected result;
  for (int request = 0; request < c.args.table.num_requests(); ++request) {
    for (int head = 0; head < geometry.query_heads; ++head) {
      const int kv_head = head / geometry.group_size();
      const int list = head * c.args.num_lists / geometry.query_heads;
      std::vector<std::pair<std::int64_t, int>> tokens;
      const int pages = (c.table.context_tokens[request] + kPageTokens - 1) / kPageTokens;
      const bool dense = c.args.selected.data == nullptr;
      for (int i = 0; i < (dense ? pages : c.args.num_selected(request, list)); ++i) {
        const SelectedPage entry = dense ? SelectedPage{i, kWholePage} : c.args.selected(request, list, i);
        for (int token = 0; token < kPageTokens; ++token) {
          const bool exists = entry.page * kPageTokens + token < c.table.context_tokens[request];
          if (exists && (entry.mask >> token & 1) != 0) tokens.emplace_back(c.table.table.page(request, entry.page), token);
        }
      }
      std::vector<double> logits;
      double logit_error = 0.0;
      for (const auto& [page, token] : tokens) {
        double dot = 0.0;
        double size = 0.0;
        for (int dim = 0; dim < head_dim; ++dim) {
          const double product = double{c.args.queries(request, head, dim)} * c.keys.value(page, token, kv_head, dim);
          dot += product;
          size += std::abs(product);
        }
        logits.push_back(dot * geometry.softmax_scale);
        logit_error = std::max(logit_error, (head_dim + 4) * kEps * size * geometry.softmax_scale);
      }
      const double max = logits.empty() ? 0.0 : *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      double sum_error = 0.0;
      std::vector<double> out(static_cast<std::size_t>(head_dim));
      std::vector<double> error(static_cast<std::size_t>(head_dim));
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double weight = std::exp(logits[i] - max);
        const double relative =
            2 * logit_error + (max - logits[i]) * kEps + 2e-7 + (static_cast<double>(tokens.size()) / 16 + 24) * kEps;
        sum += weight;
        sum_error += weight * relative;
        for (int dim = 0; dim < head_dim; ++dim) {
          const double value = c.values.value(tokens[i].first, tokens[i].second, kv_head, dim);
          out[dim] += weight * value;
          error[dim] += weight * relative * std::abs(value);
        }
      }
      for (int dim = 0; dim < head_dim; ++dim) {
        result.out.push_back(tokens.empty() ? 0.0 : out[dim] / sum);
        // Denormal results may be flushed or lose bits: 1e-37 more.
        result.bound.push_back(tokens.empty() ? 0.0 : (error[dim] + std::abs(out[dim]) / sum * sum_error) / sum + 1e-37);
      }
    }
  }
  return result;
}

void expect_close(const std::vector<float>& got, const Expected& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.out.size()) << what;
  std::size_t worst = 0;
  double worst_ratio = -1.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - want.out[i]);
    const double ratio = off <= want.bound[i] ? (want.bound[i] > 0 ? off / want.bound[i] : 0.0)
                         : std::isnan(off)    ? 1e300
                                              : 1 + off / (want.bound[i] + 1e-300);
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  EXPECT_LE(worst_ratio, 1.0) << what << ": worst index " << worst << ", got " << got[worst] << ", want " << want.out[worst]
                              << ", bound " << want.bound[worst];
}

std::vector<Target> all_targets() {
  const auto targets = supported_targets();
  return {targets.begin(), targets.end()};
}

class AttendTest : public testing::TestWithParam<std::tuple<DType, int>> {};

TEST_P(AttendTest, MatchesTheDefinition) {
  const auto [dtype, head_dim] = GetParam();
  int variant = head_dim / 16;
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead, Lists::kPerQueryHead}) {
    for (const test::Layout layout :
         {test::Layout::kTokenMajor, test::Layout::kHeadMajor, test::Layout::kGaps, test::Layout::kScattered}) {
      ++variant;
      Case::Shape shape;
      shape.key_type = shape.value_type = dtype;
      if (variant % 3 == 0) shape.value_type = DType::kBF16;
      shape.head_dim = head_dim;
      shape.group = 1 + variant % 5;
      shape.block_tokens = 16 << variant % 3;
      if (layout == test::Layout::kScattered) shape.block_tokens = 16;
      shape.layout = layout;
      if (lists == Lists::kPerKvHead && layout == test::Layout::kTokenMajor) shape.lengths = {17, 0, 1000, 1, 0};
      shape.seed = static_cast<std::uint64_t>(variant);
      Case c(shape, lists);
      const Expected want = expected_outputs(c);
      for (const Target target : all_targets()) {
        for (const int threads : {1, 2 + variant % 6}) {
          const std::string what = std::string(target_name(target)) + ", lists " + std::to_string(static_cast<int>(lists)) +
                                   ", layout " + std::to_string(static_cast<int>(layout)) + ", group " +
                                   std::to_string(shape.group) + ", threads " + std::to_string(threads);
          expect_close(run_outputs(c, target, threads), want, what);
        }
      }
    }
  }
}

std::vector<std::tuple<DType, int>> row_kinds() {
  std::vector<std::tuple<DType, int>> kinds;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
      if (dtype != DType::kQ8_0 || head_dim % kQ8BlockElements == 0) kinds.emplace_back(dtype, head_dim);
    }
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Rows, AttendTest, testing::ValuesIn(row_kinds()), [](const auto& info) {
  return std::string(dtype_name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
});

class AttendTargetTest : public testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Targets, AttendTargetTest, testing::ValuesIn(test::simd_targets()),
                         [](const auto& info) { return std::string(target_name(info.param)); });

TEST_P(AttendTargetTest, TakesAnyGroupSize) {
  for (const int group : {1, 2, 5, 6, 7, 8, 9, 13, 16, 32, 63, 64, 65, 130}) {
    Case::Shape shape;
    shape.group = group;
    shape.lengths = {37};
    Case c(shape, group % 2 == 0 ? Lists::kDense : Lists::kPerKvHead);
    expect_close(run_outputs(c, GetParam(), 2), expected_outputs(c), "group " + std::to_string(group));
  }
}

TEST_P(AttendTargetTest, MatchesTheDefinitionOnOddContents) {
  for (const test::Content content : {test::Content::kLowRank, test::Content::kConstant, test::Content::kZero,
                                      test::Content::kDenormal, test::Content::kOneOutlier, test::Content::kHuge}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      if (dtype == DType::kF32 && content == test::Content::kHuge) continue;  // logits of 1e19 have no digits left
      Case::Shape shape;
      shape.key_type = shape.value_type = dtype;
      shape.content = content;
      Case c(shape);
      expect_close(run_outputs(c, GetParam()), expected_outputs(c), "content " + std::to_string(static_cast<int>(content)));
    }
  }
}

TEST_P(AttendTargetTest, HugeKeysStayFinite) {
  Case::Shape shape;
  shape.key_type = DType::kF32;
  shape.content = test::Content::kHuge;
  Case c(shape);
  for (const float value : run_outputs(c, GetParam())) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(AttendTargetTest, ATeamOfTheSameSizeGivesTheSameBits) {
  Case c({}, Lists::kPerKvHead);
  for (const int threads : {1, 2, 3, 7, 64}) {
    EXPECT_EQ(run_states(c, GetParam(), threads), run_states(c, GetParam(), threads)) << threads << " threads";
  }
}

TEST_P(AttendTargetTest, EveryPageListedIsDense) {
  for (const int group : {1, 3, 4}) {
    Case::Shape shape;
    shape.group = group;
    Case dense(shape);
    Case listed(shape);
    listed.list_everything();
    EXPECT_EQ(run_states(dense, GetParam(), 1), run_states(listed, GetParam(), 1));  // the same chunks: the same bits
    expect_close(run_outputs(listed, GetParam(), 3), expected_outputs(dense), "three threads");
  }
}

TEST_P(AttendTargetTest, NeverReadsATokenOutsideTheMask) {
  Case::Shape shape;
  shape.key_type = shape.value_type = DType::kF32;
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
    Case c(shape, lists);
    const std::vector<float> before = run_outputs(c, GetParam());
    std::vector<bool> listed(static_cast<std::size_t>(c.args.keys.num_pages * kPageTokens * c.geometry.kv_heads));
    for (int request = 0; request < c.args.table.num_requests(); ++request) {
      const int tokens = c.table.context_tokens[request];
      for (int list = 0; list < c.args.num_lists; ++list) {
        const auto mark = [&](int page, int token) {
          listed[static_cast<std::size_t>((c.table.table.page(request, page) * kPageTokens + token) * c.geometry.kv_heads +
                                          list)] = true;
        };
        if (lists == Lists::kDense) {
          for (int token = 0; token < tokens; ++token) mark(token / kPageTokens, token % kPageTokens);
        } else {
          for (int i = 0; i < c.args.num_selected(request, list); ++i) {
            const SelectedPage entry = c.args.selected(request, list, i);
            for (int token = 0; token < kPageTokens; ++token) {
              if ((entry.mask >> token & 1) != 0) mark(entry.page, token);
            }
          }
        }
      }
    }
    int poisoned = 0;
    for (std::size_t i = 0; i < listed.size(); ++i) {
      if (listed[i]) continue;
      const auto row = static_cast<std::int64_t>(i) / c.geometry.kv_heads;
      const auto head = static_cast<int>(static_cast<std::int64_t>(i) % c.geometry.kv_heads);
      for (int dim = 0; dim < 2; ++dim) {
        c.keys.set_value(row / kPageTokens, static_cast<int>(row % kPageTokens), head, dim, NAN);
        c.values.set_value(row / kPageTokens, static_cast<int>(row % kPageTokens), head, dim, NAN);
      }
      ++poisoned;
    }
    EXPECT_GT(poisoned, 16);
    EXPECT_EQ(run_outputs(c, GetParam()), before);
  }
}

TEST_P(AttendTargetTest, ConstantValuesComeBack) {
  Case::Shape shape;
  shape.value_type = DType::kF32;
  shape.key_type = DType::kF32;
  Case c(shape);
  for (std::int64_t page = 0; page < c.args.values.num_pages; ++page) {
    for (int row = 0; row < kPageTokens * shape.kv_heads; ++row) {
      for (int dim = 0; dim < shape.head_dim; ++dim)
        c.values.set_value(page, row / shape.kv_heads, row % shape.kv_heads, dim, 0.7F);
    }
  }
  const std::vector<float> out = run_outputs(c, GetParam(), 2);
  const auto per_request = out.size() / shape.lengths.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int tokens = shape.lengths[i / per_request];
    // Weights are the same numbers above and below: only the sums' roundings differ.
    EXPECT_NEAR(out[i], tokens == 0 ? 0.0F : 0.7F, 0.7 * kEps * 2 * (tokens / 16 + 24)) << "index " << i;
  }
}

/// Two pages of f32, one KV head, one query e_0 and softmax scale 1: logits are what the test wants them to be.
struct LogitCase : Case {
  explicit LogitCase(const std::vector<float>& logits) : Case(shape_for(logits.size())) {
    args.geometry.softmax_scale = geometry.softmax_scale = 1.0F;
    std::fill(queries.begin(), queries.end(), 0.0F);
    queries[0] = 1.0F;
    for (std::size_t token = 0; token < logits.size(); ++token) {
      const std::int64_t page = table.table.page(0, static_cast<int>(token) / kPageTokens);
      for (int dim = 0; dim < 64; ++dim) {
        keys.set_value(page, static_cast<int>(token) % kPageTokens, 0, dim, dim == 0 ? logits[token] : 0.0F);
        values.set_value(page, static_cast<int>(token) % kPageTokens, 0, dim, dim == static_cast<int>(token) ? 1.0F : 0.0F);
      }
    }
  }
  static Shape shape_for(std::size_t tokens) {
    Shape shape;
    shape.key_type = shape.value_type = DType::kF32;
    shape.kv_heads = shape.group = 1;
    shape.lengths = {static_cast<std::int32_t>(tokens)};
    return shape;
  }
};

TEST_P(AttendTargetTest, ExpIsGoodToTwoInTenMillion) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<float> low(-88.0F, 0.0F);
  std::uniform_real_distribution<float> high(-2.0F, 0.0F);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(kPageTokens);
    for (float& logit : logits) logit = round % 2 == 0 ? low(random) : high(random);
    logits[0] = 0.0F;
    if (round == 0)
      logits = {0.0F, -87.3F, -87.33F, -87.4F, -90.0F, -103.0F, -104.0F, -1e30F, -0.0F, -1e-30F, -0.34657F, -0.34658F};
    LogitCase c(logits);
    const std::vector<float> states = run_states(c, GetParam(), 1);
    ASSERT_EQ(states[0], 0.0F);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double want = std::exp(double{logits[i]});
      EXPECT_NEAR(states[2 + i], want, std::max(2e-7 * want, want < 1.2e-38 ? want : 0.0)) << "exp(" << logits[i] << ")";
    }
  }
}

TEST_P(AttendTargetTest, LogitsOfTenThousandAreFine) {
  LogitCase c({1e4F, -1e4F, 1e4F, 9999.0F});
  const std::vector<float> out = run_outputs(c, GetParam());
  const double sum = 2.0 + std::exp(-1.0);
  EXPECT_NEAR(out[0], 1.0 / sum, 3e-7);
  EXPECT_EQ(out[1], 0.0F);
  EXPECT_NEAR(out[3], std::exp(-1.0) / sum, 3e-7);
}

TEST_P(AttendTargetTest, LogitsThatAreNotFinite) {
  std::vector<float> logits(20, 0.5F);
  for (const std::size_t at : {0U, 3U, 19U}) {
    for (const float bad : {NAN, kInfinity}) {
      auto with_bad = logits;
      with_bad[at] = bad;
      LogitCase c(with_bad);
      for (const float value : run_outputs(c, GetParam(), 2)) EXPECT_TRUE(std::isnan(value)) << bad << " at " << at;
    }
    auto masked = logits;
    masked[at] = -kInfinity;  // weighs nothing
    LogitCase c(masked);
    const std::vector<float> out = run_outputs(c, GetParam(), 2);
    for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(out[i], i == at ? 0.0F : 1.0F / 19.0F, 1e-7F);
  }
  LogitCase nothing(std::vector<float>(20, -kInfinity));
  const std::vector<float> states = run_states(nothing, GetParam(), 2);
  EXPECT_EQ(states[0], -kInfinity);
  for (std::size_t i = 1; i < states.size(); ++i) EXPECT_EQ(states[i], 0.0F);
  auto late = std::vector<float>(20, -kInfinity);
  late[18] = 3.0F;
  LogitCase one(late);
  EXPECT_EQ(run_outputs(one, GetParam())[18], 1.0F);
}

using State = std::vector<float>;

State random_state(std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  State state(2 + 64);
  for (float& value : state) value = normal(random);
  state[0] *= 20.0F;
  state[1] = 1.0F + std::abs(state[1]);
  return state;
}

State merged(State a, const State& b) {
  merge_state(a, b);
  return a;
}

TEST(MergeStateTest, IsCommutativeAndAssociativeAndHasAnIdentity) {
  State empty(2 + 64, 0.0F);
  empty[0] = -kInfinity;
  EXPECT_EQ(merged(empty, empty), empty);
  std::mt19937_64 random(6);
  for (int round = 0; round < 500; ++round) {
    const State a = random_state(random);
    const State b = random_state(random);
    const State c = random_state(random);
    EXPECT_EQ(merged(a, empty), a);
    EXPECT_EQ(merged(empty, a), a);
    EXPECT_EQ(merged(a, b), merged(b, a));
    const State left = merged(merged(a, b), c);
    const State right = merged(a, merged(b, c));
    EXPECT_EQ(left[0], right[0]);
    for (std::size_t i = 1; i < left.size(); ++i) {
      // Each of three terms meets two scalings and two additions; exp of a difference up to 100 is off by 100 eps.
      const double size = std::abs(a[i]) * std::exp(a[0] - left[0]) + std::abs(b[i]) * std::exp(b[0] - left[0]) +
                          std::abs(c[i]) * std::exp(c[0] - left[0]);
      EXPECT_NEAR(left[i], right[i], 250 * kEps * size);
    }
  }
}

TEST(MergeStateTest, KeepsNaN) {
  State broken(2 + 64, NAN);
  broken[0] = -kInfinity;
  std::mt19937_64 random(7);
  EXPECT_TRUE(std::isnan(merged(random_state(random), broken)[1]));
  EXPECT_TRUE(std::isnan(merged(broken, random_state(random))[1]));
}

std::string message(const AttendArgs& args) {
  try {
    check_attend(args);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckAttendTest, NamesTheArgument) {
  Case c({}, Lists::kPerKvHead);
  test::Workspace workspace(attend_workspace_bytes(c.geometry, 6, 2, 1));
  c.args.workspace = workspace.span();
  ASSERT_EQ(message(c.args), "accepted");
  const auto with = [&](auto&& change) {
    AttendArgs args = c.args;
    change(args);
    return message(args);
  };
  EXPECT_EQ(with([](auto& a) { a.geometry.head_dim = 72; }), "head_dim: expected 64, 80, 96, 128, 192 or 256, got 72");
  EXPECT_EQ(with([](auto& a) { a.keys.data = nullptr; }), "keys: expected data, got a null pointer");
  EXPECT_EQ(with([](auto& a) { a.values.dtype = DType::kE4M3; }),
            "values.dtype: expected f32, f16, bf16 or q8_0 on the CPU, got e4m3");
  EXPECT_EQ(with([](auto& a) { a.values.token_stride = 4; }),
            "values.token_stride: expected at least 128 bytes (a row), either way, got 4");
  EXPECT_EQ(with([](auto& a) { a.keys.block_tokens = 32; }), "keys.block_tokens: expected table.block_tokens (16), got 32");
  EXPECT_EQ(with([](auto& a) { a.num_lists = 3; }), "num_lists: expected kv_heads (2) or query_heads (6), got 3");
  EXPECT_EQ(with([](auto& a) { a.selected.data = nullptr, a.num_lists = 6; }),
            "num_lists: expected kv_heads (2) if nothing is listed, got 6");
  EXPECT_EQ(
      with([](auto& a) { a.selected.shape[1] = 1; }),
      "selected: expected [requests, lists, capacity] = [6, 2, any] with a contiguous last axis, got [6, 1, 11] with last "
      "stride 1");
  EXPECT_EQ(with([](auto& a) { a.num_selected.data = nullptr; }),
            "num_selected: expected [requests, lists] = [6, 2], got no data");
  EXPECT_EQ(
      with([](auto& a) { a.queries.stride[2] = 2; }),
      "queries: expected [requests, query_heads, head_dim] = [6, 6, 64] with a contiguous last axis, got [6, 6, 64] with "
      "last stride 2");
  EXPECT_EQ(
      with([](auto& a) { a.workspace = a.workspace.first(64); }),
      "workspace: expected at least " + std::to_string(attend_workspace_bytes(c.geometry, 6, 2, 1)) + " bytes, got 64");
  c.num_selected[10] = 20;
  EXPECT_EQ(message(c.args), "num_selected[5, 0]: expected 0 to 11, got 20");
  c.num_selected[10] = 1;
  c.selected[10 * 11].page = 11;
  EXPECT_EQ(message(c.args), "selected[5, 0, 0].page: expected a page below 11, got 11");
}

}  // namespace
}  // namespace locks
