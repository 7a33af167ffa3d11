// The rivals: each against its formula, worked out anew in double precision, and what must hold of any selector.
#include "support/selectors.h"

#include <array>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "locks/rotation.h"

namespace locks::test {
namespace {

// ---- the formulas

class SelectorFormula : public testing::TestWithParam<int> {
 protected:
  SelectorFormula() : data({.head_dim = 64, .kv_heads = 2, .group = 3, .lengths = {GetParam()}}) {}
  StepData data;
};
INSTANTIATE_TEST_SUITE_P(Lengths, SelectorFormula, testing::Values(640, 1000, 1001, 1007, 1008));

/// Quest and UNIQUE: pages by their scores, the page being filled always.
void expect_page_scores(const StepData& data, std::string_view name, GroupCombine combine,
                        double (*score)(const Plain&, int head, int page, int head_dim)) {
  SelectorConfig config = config_of(name, 256);
  config.combine = combine;
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    const Plain plain(data, 0, kv_head);
    const int current = plain.pages() - 1;
    std::vector<Vector> scores;
    for (int head = 0; head < 3; ++head) {
      Vector& of_head = scores.emplace_back();
      for (int page = 0; page < current; ++page) of_head.push_back(score(plain, head, page, data.geometry.head_dim));
    }
    if (combine != GroupCombine::kPerQueryHead) {
      for (std::size_t page = 0; page < scores[0].size(); ++page) {
        for (int head = 1; head < 3; ++head) {
          scores[0][page] = combine == GroupCombine::kMax ? std::max(scores[0][page], scores[head][page])
                                                          : scores[0][page] + scores[head][page];
        }
      }
      scores.resize(1);
    }
    const Selection got = select_once(config, data, kv_head);
    ASSERT_EQ(got.lists.size(), scores.size());
    for (std::size_t list = 0; list < scores.size(); ++list) {
      std::vector<int> pages = best(scores[list], 256 / 16 - 1);
      pages.push_back(current);
      EXPECT_EQ(tokens_in(got.lists[list]), tokens_of_pages(pages, plain.tokens())) << "KV head " << kv_head;
    }
  }
}

double quest_bound(const Plain& plain, int head, int page, int head_dim) {
  double bound = 0.0;
  for (int dim = 0; dim < head_dim; ++dim) {
    double most = -std::numeric_limits<double>::infinity();
    for (int token = page * 16; token < page * 16 + 16; ++token) {
      most = std::max(most, plain.query(head, dim) * plain.key(token, dim));
    }
    bound += most;
  }
  return bound;
}

TEST_P(SelectorFormula, QuestTakesThePagesWithTheLargestBounds) {
  for (const GroupCombine combine : {GroupCombine::kPerQueryHead, GroupCombine::kMax, GroupCombine::kSum}) {
    expect_page_scores(data, "quest", combine, quest_bound);
  }
  const Plain plain(data, 0, 1);
  for (int page = 0; page + 1 < plain.pages(); ++page) {
    for (int token = page * 16; token < page * 16 + 16; ++token) {
      EXPECT_GE(quest_bound(plain, 2, page, 64) * static_cast<double>(data.geometry.softmax_scale) + 1e-9,
                plain.logit(2, token));
    }
  }
}

TEST_P(SelectorFormula, UniqueTakesThePagesByMeanAndDeviation) {
  const auto score = [](const Plain& plain, int head, int page, int head_dim) {
    double sum = 0.0;
    for (int dim = 0; dim < head_dim; ++dim) {
      double mean = 0.0;
      double squares = 0.0;
      for (int token = page * 16; token < page * 16 + 16; ++token) mean += plain.key(token, dim) / 16.0;
      for (int token = page * 16; token < page * 16 + 16; ++token) squares += std::pow(plain.key(token, dim) - mean, 2.0);
      sum += plain.query(head, dim) * mean + std::abs(plain.query(head, dim)) * std::sqrt(squares / 16.0);
    }
    return sum;
  };
  expect_page_scores(data, "unique", GroupCombine::kPerQueryHead, score);
}

TEST_P(SelectorFormula, TheOracleTakesTheMostMassAndKnowsIt) {
  for (const int part : {16, 4, 1}) {
    for (const GroupCombine combine : {GroupCombine::kSum, GroupCombine::kMax, GroupCombine::kPerQueryHead}) {
      SelectorConfig config = config_of("oracle", 256);
      config.part_tokens = part;
      config.combine = combine;
      const Plain plain(data, 0, 1);
      const Selection got = select_once(config, data, 1);
      const int first_recent = (plain.tokens() - 64) / 16 * 16;
      const int forced = 16 + plain.tokens() - first_recent;
      std::vector<Vector> weights;
      for (int head = 0; head < 3; ++head) weights.push_back(plain.weights(head));
      double coverage = 0.0;
      for (std::size_t list = 0; list < got.lists.size(); ++list) {
        Vector shares;
        for (int token = 16; token < first_recent; token += part) {
          double share = 0.0;
          for (std::size_t head = 0; head < 3; ++head) {
            if (combine == GroupCombine::kPerQueryHead && head != list) continue;
            const double own = std::accumulate(weights[head].begin() + token, weights[head].begin() + token + part, 0.0);
            share = combine == GroupCombine::kMax ? std::max(share, own) : share + own;
          }
          shares.push_back(share);
        }
        std::vector<int> expected(16);
        std::iota(expected.begin(), expected.end(), 0);
        for (const int i : best(shares, (256 - forced) / part)) {
          for (int token = 16 + i * part; token < 16 + (i + 1) * part; ++token) expected.push_back(token);
        }
        for (int token = first_recent; token < plain.tokens(); ++token) expected.push_back(token);
        EXPECT_EQ(tokens_in(got.lists[list]), expected) << "parts of " << part;
        for (std::size_t head = 0; head < 3; ++head) {
          if (combine == GroupCombine::kPerQueryHead && head != list) continue;
          for (const int token : expected) coverage += weights[head][static_cast<std::size_t>(token)] / 3.0;
        }
      }
      EXPECT_NEAR(got.coverage, coverage, 1e-5);  // sums of up to a thousand floats below 1
    }
  }
}

/// To the nearest number with 8 leading bits.
double bf16(double value) {
  if (value == 0.0) return 0.0;
  const double unit = std::ldexp(1.0, std::ilogb(value) - 7);
  return std::nearbyint(value / unit) * unit;
}

class CompkvFormula : public SelectorFormula {
 protected:
  void expect_formula(bool interleaved) const;
};
INSTANTIATE_TEST_SUITE_P(Lengths, CompkvFormula, testing::Values(640, 1007, 1008));

TEST_P(CompkvFormula, TakesWhatMeansCannotStandForAndCompletesTheRest) { expect_formula(true); }
TEST_P(CompkvFormula, GroupsPairsAsTheModelTurnsThem) { expect_formula(false); }

void CompkvFormula::expect_formula(bool interleaved) const {
  SelectorConfig config = config_of("compkv", 256);
  config.rope.interleaved = interleaved;
  const auto scale = static_cast<double>(data.geometry.softmax_scale);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    const Plain plain(data, 0, kv_head);
    const int pages = plain.pages();
    const auto mean_of = [&](int page, auto number) {
      double sum = 0.0;
      for (int i = 0; i < plain.tokens_of(page); ++i) sum += number(page * 16 + i);
      return sum / plain.tokens_of(page);
    };
    Vector worth(static_cast<std::size_t>(pages));
    std::array<Vector, 3> logits;
    for (int head = 0; head < 3; ++head) {
      Vector mass;
      Vector variances;
      for (int page = 0; page < pages; ++page) {
        double z = 0.0;
        std::array<double, 4> squares{};
        std::array<double, 4> spread{};
        for (int dim = 0; dim < 64; ++dim) {
          const double mean = bf16(mean_of(page, [&](int token) { return plain.key(token, dim); }));
          const auto group = static_cast<std::size_t>(interleaved ? dim / 16 : dim % 32 / 8);
          z += scale * plain.query(head, dim) * mean;
          squares[group] += std::pow(plain.query(head, dim), 2.0);
          spread[group] += mean_of(page, [&](int token) { return std::pow(plain.key(token, dim) - mean, 2.0); }) / 16.0;
        }
        double variance = 0.0;
        for (std::size_t group = 0; group < 4; ++group) variance += scale * scale * squares[group] * bf16(spread[group]);
        logits[static_cast<std::size_t>(head)].push_back(z);
        variances.push_back(variance);
        mass.push_back(plain.tokens_of(page) * std::exp(z + variance / 2));
      }
      const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
      for (std::size_t page = 0; page < worth.size(); ++page) worth[page] += mass[page] / total * variances[page];
    }
    std::vector<int> expected{0};
    for (const int i : best(Vector(worth.begin() + 1, worth.end() - 2), 256 / 16 - 3)) expected.push_back(i + 1);
    expected.push_back(pages - 2);
    expected.push_back(pages - 1);
    const Selection got = select_once(config, data, kv_head);
    ASSERT_EQ(got.lists.size(), 1U);
    EXPECT_EQ(tokens_in(got.lists[0]), tokens_of_pages(expected, plain.tokens())) << "KV head " << kv_head;

    ASSERT_EQ(got.stand_in.size(), 3U);
    for (std::size_t head = 0; head < 3; ++head) {
      double total = 0.0;
      Vector values(64);
      for (int page = 0; page < pages; ++page) {
        if (std::find(expected.begin(), expected.end(), page) != expected.end()) continue;
        const double weight = 16.0 * std::exp(logits[head][static_cast<std::size_t>(page)]);
        total += weight;
        for (int dim = 0; dim < 64; ++dim) {
          values[static_cast<std::size_t>(dim)] +=
              weight * bf16(mean_of(page, [&](int token) { return plain.value(token, dim); }));
        }
      }
      // Logits of at most a few tens, in float.
      const std::vector<float>& state = got.stand_in[head];
      EXPECT_NEAR(std::log(state[1]) + state[0], std::log(total), 1e-4);
      for (std::size_t dim = 0; dim < 64; ++dim) EXPECT_NEAR(state[2 + dim] / state[1], values[dim] / total, 1e-4) << dim;
    }
  }
}

/// Parts of 4 by the attention masses that these keys give.
void expect_parts_by_keys(const StepData& data, std::string_view name, int kv_head, const std::vector<Vector>& keys,
                          const std::vector<Vector>& queries) {
  SelectorConfig config = config_of(name, 256);
  config.part_tokens = 4;
  const Plain plain(data, 0, kv_head);
  const int first_recent = (plain.tokens() - 64) / 16 * 16;
  Vector shares(static_cast<std::size_t>((first_recent - 16) / 4));
  for (const Vector& query : queries) {
    Vector weights;
    for (const Vector& key : keys) {
      weights.push_back(std::exp(std::inner_product(key.begin(), key.end(), query.begin(), 0.0) *
                                 static_cast<double>(data.geometry.softmax_scale)));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      for (std::size_t token = 16 + 4 * i; token < 20 + 4 * i; ++token) shares[i] += weights[token] / total;
    }
  }
  std::vector<int> expected(16);
  std::iota(expected.begin(), expected.end(), 0);
  for (const int i : best(shares, (256 - 16 - (plain.tokens() - first_recent)) / 4)) {
    for (int token = 16 + 4 * i; token < 20 + 4 * i; ++token) expected.push_back(token);
  }
  for (int token = first_recent; token < plain.tokens(); ++token) expected.push_back(token);
  EXPECT_EQ(tokens_in(select_once(config, data, kv_head).lists[0]), expected) << name << ", KV head " << kv_head;
}

TEST_P(SelectorFormula, TwoBitKeysAreCodesOfTheRotatedKeys) {
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    const Plain plain(data, 0, kv_head);
    const auto rotated = [](auto number) {
      std::vector<float> row;
      for (int dim = 0; dim < 64; ++dim) row.push_back(static_cast<float>(number(dim)));
      rotate(row);
      return Vector(row.begin(), row.end());
    };
    std::vector<Vector> keys;
    std::vector<Vector> queries;
    for (int head = 0; head < 3; ++head) queries.push_back(rotated([&](int dim) { return plain.query(head, dim); }));
    for (int token = 0; token < plain.tokens(); ++token) {
      keys.push_back(rotated([&](int dim) { return plain.key(token, dim); }));
    }
    for (std::size_t page = 0; page < keys.size() / 16; ++page) {
      Vector mean(64);
      for (std::size_t dim = 0; dim < 64; ++dim) {
        for (std::size_t i = 0; i < 16; ++i) mean[dim] += keys[16 * page + i][dim] / 16.0;
      }
      double most = 0.0;
      for (const double component : mean) most = std::max(most, std::abs(component));
      const double unit = bf16(most / 127.0);
      for (double& component : mean) component = unit * std::nearbyint(component / unit);
      for (std::size_t i = 0; i < 16; ++i) {
        Vector& key = keys[16 * page + i];
        double squares = 0.0;
        for (std::size_t dim = 0; dim < 64; ++dim) squares += std::pow(key[dim] - mean[dim], 2.0);
        const double step = bf16(0.9957 * std::sqrt(squares / 64.0));
        for (std::size_t dim = 0; dim < 64; ++dim) {
          key[dim] = mean[dim] + (std::clamp(std::floor((key[dim] - mean[dim]) / step), -2.0, 1.0) + 0.5) * step;
        }
      }
    }
    expect_parts_by_keys(data, "two_bit", kv_head, keys, queries);
  }
}

TEST(SharedBasis, KnowsKeysThatLieInOneSubspaceAndNoOthers) {
  // Page means anywhere, and what differs from them in six directions: rank 8 has all of it, up to bf16.
  StepData data({.kv_heads = 1, .group = 2, .dtype = DType::kF32, .lengths = {960}});
  const auto set_keys = [&](bool one_subspace) {
    const auto directions = normal_floats(60 * 6 * 64, 3, 0.4F);
    const auto factors = normal_floats(960 * 6, 4, 0.4F);
    const auto means = normal_floats(60 * 64, 5, 0.4F);
    for (int token = 0; token < 960; ++token) {
      const int page = token / 16;
      for (int dim = 0; dim < 64; ++dim) {
        double key = static_cast<double>(means[static_cast<std::size_t>(page * 64 + dim)]);
        for (int r = 0; r < 6; ++r) {
          const int of_page = one_subspace ? 0 : page;
          key += static_cast<double>(factors[static_cast<std::size_t>(token * 6 + r)]) *
                 static_cast<double>(directions[static_cast<std::size_t>((of_page * 6 + r) * 64 + dim)]);
        }
        data.keys.set_value(data.table.table.page(0, page), token % 16, 0, dim, static_cast<float>(key));
      }
    }
  };
  const auto coverage_beside = [&](std::string_view name) {
    SelectorConfig config = config_of(name, 160);
    config.part_tokens = 1;
    const std::vector<int> tokens = tokens_in(select_once(config, data, 0).lists[0]);
    const Plain plain(data, 0, 0);
    double coverage = 0.0;
    for (int head = 0; head < 2; ++head) {
      const Vector weights = plain.weights(head);
      for (const int token : tokens) coverage += weights[static_cast<std::size_t>(token)] / 2.0;
    }
    return coverage;
  };
  set_keys(true);
  EXPECT_NEAR(coverage_beside("shared_basis"), coverage_beside("oracle"), 0.003);
  set_keys(false);
  EXPECT_LT(coverage_beside("shared_basis"), coverage_beside("oracle") - 0.01);
}

TEST_P(SelectorFormula, RecencyTakesTheSinkAndTheLastTokens) {
  const Selection got = select_once(config_of("recency", 200), data, 0);
  std::vector<int> expected(16);
  std::iota(expected.begin(), expected.end(), 0);
  for (int token = GetParam() - 184; token < GetParam(); ++token) expected.push_back(token);
  EXPECT_EQ(tokens_in(got.lists[0]), expected);
}

TEST_P(SelectorFormula, RandomDrawsAnewAtEveryStepAndWithEverySeed) {
  SelectorConfig config = config_of("random", 256);
  config.part_tokens = 4;
  const Selection first = select_once(config, data, 0);
  const std::vector<int> tokens = tokens_in(first.lists[0]);
  EXPECT_LE(tokens.size(), 256U);
  EXPECT_GT(tokens.size(), 256U - 4U);
  EXPECT_EQ(select_once(config, data, 0).lists, first.lists);
  EXPECT_NE(select_once(config, data, 1).lists, first.lists);
  config.seed = 1;
  EXPECT_NE(select_once(config, data, 0).lists, first.lists);
}

// ---- what holds of all

class AnySelector : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(All, AnySelector,
                         testing::Values("oracle", "random", "recency", "quest", "unique", "compkv", "rocketkv", "shadowkv",
                                         "shared_basis", "two_bit"),
                         [](const auto& info) { return std::string(info.param); });

void expect_dense(const StepData& data, int request, const std::vector<float>& out) {
  const int head_dim = data.geometry.head_dim;
  for (int kv_head = 0; kv_head < data.geometry.kv_heads; ++kv_head) {
    const Plain plain(data, request, kv_head);
    for (int head = 0; head < data.geometry.group_size(); ++head) {
      const Vector weights = plain.weights(head);
      const int query_head = kv_head * data.geometry.group_size() + head;
      for (int dim = 0; dim < head_dim; ++dim) {
        double sum = 0.0;
        double size = 0.0;
        for (int token = 0; token < plain.tokens(); ++token) {
          const double product = weights[static_cast<std::size_t>(token)] * plain.value(token, dim);
          sum += product;
          size += std::abs(product);
        }
        // Logits of at most a few tens: their float errors, relative to the weights, stay below 1e-5.
        EXPECT_NEAR(out[static_cast<std::size_t>((request * data.geometry.query_heads + query_head) * head_dim + dim)], sum,
                    2e-5 * size + 1e-7);
      }
    }
  }
}

TEST_P(AnySelector, ABudgetForEverythingIsDenseAttention) {
  const StepData data({.kv_heads = 2, .group = 2, .dtype = DType::kF32, .block_tokens = 32, .lengths = {300, 17, 256}});
  const StepResult got = run_selectors(config_of(GetParam(), 300), data, 2);
  for (int request = 0; request < 3; ++request) {
    expect_dense(data, request, got.out);
    EXPECT_TRUE(got.reports[static_cast<std::size_t>(request)].dense);
    EXPECT_EQ(got.reports[static_cast<std::size_t>(request)].attend_bytes,
              got.reports[static_cast<std::size_t>(request)].dense_bytes);
    EXPECT_EQ(got.reports[static_cast<std::size_t>(request)].score_bytes, 0);
  }
}

TEST_P(AnySelector, ChoosesEverythingIfTheBudgetHasRoomForIt) {
  const StepData data({.lengths = {333}});
  const View1 view(data, 0, 333);
  const auto selector = make_selector(config_of(GetParam(), 4096), data.geometry);
  selector->begin_step(view.sequence);
  selector->append(view.sequence, 1);
  const Selection got = selector->select(view.sequence, 1, queries_of(data, 0, 1));
  for (const SelectedList& list : got.lists) {
    EXPECT_EQ(static_cast<std::int64_t>(tokens_in(list).size()) + got.stand_in_tokens, 333);
  }
}

TEST_P(AnySelector, ShortContextsAreAttendedWhole) {
  const StepData data({.kv_heads = 1, .group = 2, .dtype = DType::kF32, .lengths = {999, 1000}});
  const StepResult got = run_selectors(config_of(GetParam(), 128), data, 1, 1000);
  expect_dense(data, 0, got.out);
  EXPECT_TRUE(got.reports[0].dense);
  EXPECT_FALSE(got.reports[1].dense);
  // Half of RocketKV's pays for scoring; 48 outlier chunks and the tail of 40 tokens are none of ShadowKV's.
  const float attended = GetParam() == "rocketkv" ? 64.0F : GetParam() == "shadowkv" ? 128.0F + 48 * 8 + 40 : 128.0F;
  EXPECT_LE(got.reports[1].attended_tokens, attended);
  EXPECT_GT(got.reports[1].attended_tokens, attended - 16.0F);
}

TEST_P(AnySelector, TokensOneByOneAreTokensInTwoGoes) {
  const StepData data({.lengths = {700}});
  const SelectorConfig config = config_of(GetParam(), 160);
  const auto grown = make_selector(config, data.geometry);
  const auto at_once = make_selector(config, data.geometry);
  for (int tokens = 600; tokens <= 700; ++tokens) {
    const View1 view(data, 0, tokens);
    grown->begin_step(view.sequence);
    for (int kv_head = 0; kv_head < 2; ++kv_head) grown->append(view.sequence, kv_head);
    if (tokens == 650) {  // drafted tokens are taken back
      const View1 shorter(data, 0, 641);
      grown->begin_step(shorter.sequence);
      for (int kv_head = 0; kv_head < 2; ++kv_head) grown->append(shorter.sequence, kv_head);
    }
  }
  const View1 start(data, 0, 600);
  const View1 view(data, 0, 700);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    at_once->begin_step(start.sequence);
    at_once->append(start.sequence, kv_head);
    at_once->begin_step(view.sequence);
    at_once->append(view.sequence, kv_head);
    const auto queries = queries_of(data, 0, kv_head);
    const Selection a = grown->select(view.sequence, kv_head, queries);
    const Selection b = at_once->select(view.sequence, kv_head, queries);
    EXPECT_EQ(a.lists, b.lists);
    EXPECT_EQ(a.stand_in, b.stand_in);
    EXPECT_EQ(a.coverage, b.coverage);
  }
  EXPECT_GE(at_once->score_bytes(view.sequence), 0);
  EXPECT_LE(at_once->score_bytes(view.sequence), 700 * row_bytes(DType::kF16, 64));
}

TEST_P(AnySelector, TheResultDoesNotDependOnTheBatchNorMuchOnTheThreads) {
  const StepData data({.kv_heads = 3, .group = 2, .lengths = {900, 40, 1300, 640}});
  const SelectorConfig config = config_of(GetParam(), 160);
  const StepResult one = run_selectors(config, data, 1);
  const StepResult three = run_selectors(config, data, 3);
  ASSERT_EQ(one.out.size(), three.out.size());
  for (std::size_t i = 0; i < one.out.size(); ++i) {
    EXPECT_TRUE(std::isfinite(one.out[i]));
    EXPECT_NEAR(one.out[i], three.out[i], 1e-5F);
  }
  for (std::size_t request = 0; request < 4; ++request) {
    EXPECT_EQ(one.reports[request].attended_tokens, three.reports[request].attended_tokens);
    EXPECT_EQ(one.reports[request].attend_bytes, three.reports[request].attend_bytes);
  }
}

TEST_P(AnySelector, TheCoverageOfEachHeadIsThatOfItsSelection) {
  const StepData data({.kv_heads = 2, .group = 2, .lengths = {700, 90}});
  const SelectorConfig config = config_of(GetParam(), 160);
  const StepResult got = run_selectors(config, data, 2);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    EXPECT_EQ(got.coverage[static_cast<std::size_t>(kv_head)],
              static_cast<float>(select_once(config, data, kv_head).coverage));
    EXPECT_EQ(got.coverage[2 + static_cast<std::size_t>(kv_head)], 1.0F) << "attended whole";
  }
  if (GetParam() == "oracle") {
    EXPECT_NE(got.coverage[0], got.coverage[1]);
  }
  EXPECT_FLOAT_EQ(got.reports[0].coverage, (got.coverage[0] + got.coverage[1]) / 2.0F);
}

TEST_P(AnySelector, DraftedTokensShareWhatIsKnownOfTheirSequence) {
  const StepData data({.kv_heads = 2, .group = 2, .lengths = {700}});
  const SelectorConfig config = config_of(GetParam(), 160);
  const std::vector<float> queries = normal_floats(3 * 4 * 64, 5, 2.0F);
  const std::vector<std::int32_t> tokens{698, 699, 700};
  const auto run_rows = [&](int first, int rows, std::vector<Selector*> selectors) {
    std::vector<float> out(static_cast<std::size_t>(rows) * 4 * 64);
    DecodeInputs inputs = data.inputs();
    inputs.queries = contiguous(queries.data() + first * 4 * 64, rows, 4, 64);
    inputs.table.blocks.shape[0] = rows;
    inputs.table.blocks.stride[0] = 0;
    inputs.table.context_tokens = std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows));
    SelectorStep step(config, data.geometry, 0);
    ThreadPool pool(2);
    pool.run([&](Team team) {
      EXPECT_TRUE(step.run(inputs, selectors, contiguous(out.data(), rows, 4, 64), {}, team, active_target()));
    });
    return out;
  };
  const auto shared = make_selector(config, data.geometry);
  const std::vector<float> together = run_rows(0, 3, {shared.get(), shared.get(), shared.get()});
  EXPECT_EQ(run_rows(0, 3, {shared.get(), shared.get(), shared.get()}), together) << "the second time";
  for (int row = 0; row < 3; ++row) {
    const auto own = make_selector(config, data.geometry);
    static_cast<void>(run_rows(0, 1, {own.get()}));
    const std::vector<float> alone = run_rows(row, 1, {own.get()});
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_NEAR(together[static_cast<std::size_t>(row) * alone.size() + i], alone[i], 1e-5F) << "row " << row;
    }
  }
}

TEST_P(AnySelector, KeysThatAreNotFiniteStopNothing) {
  StepData data({.lengths = {800}});
  for (const int token : {0, 100, 101, 799}) {
    data.keys.set_value(data.table.table.page(0, token / 16), token % 16, 0, 3,
                        token == 100 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN());
  }
  const StepResult got = run_selectors(config_of(GetParam(), 160), data, 2);
  EXPECT_LE(got.reports[0].attended_tokens, GetParam() == "shadowkv" ? 160.0F + 48 * 8 + 40 : 160.0F);
  EXPECT_GT(got.reports[0].attended_tokens, 0.0F);
}

TEST(Compkv, CompletesPagesOfEqualTokensExactly) {
  // Every token of a page alike: its mean says all, and nothing is lost by attending to ten pages of sixty.
  StepData data({.kv_heads = 1, .group = 2, .dtype = DType::kBF16, .lengths = {960}});
  for (int page = 0; page < 60; ++page) {
    const auto number = data.table.table.page(0, page);
    for (int token = 1; token < 16; ++token) {
      for (int dim = 0; dim < 64; ++dim) {
        data.keys.set_value(number, token, 0, dim, data.keys.value(number, 0, 0, dim));
        data.values.set_value(number, token, 0, dim, data.values.value(number, 0, 0, dim));
      }
    }
  }
  const StepResult got = run_selectors(config_of("compkv", 160), data, 1);
  EXPECT_EQ(got.reports[0].attended_tokens, 160.0F);
  expect_dense(data, 0, got.out);
}

// ---- settings

TEST(SelectorConfigs, NamesAndPublishedSettings) {
  EXPECT_EQ(selector_infos().size(), 10U);
  for (const SelectorInfo& info : selector_infos()) {
    const SelectorConfig config = selector_config(info.name);
    EXPECT_EQ(config.id, info.id);
    EXPECT_NO_THROW(check_selector_config(config)) << info.name;
  }
  EXPECT_EQ(selector_config("quest").dense_layers, 2);
  EXPECT_EQ(selector_config("quest").combine, GroupCombine::kPerQueryHead);
  try {
    static_cast<void>(selector_config("best"));
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "selector 'best' is unknown; it may be oracle, random, recency, quest, unique, compkv, rocketkv, "
                 "shadowkv, shared_basis, two_bit");
  }
}

TEST(SelectorConfigs, WhatAMethodHasARuleOfItsOwnForIsRefused) {
  const auto refused = [](std::string_view name, auto change) {
    SelectorConfig config = selector_config(name);
    change(config);
    try {
      static_cast<void>(make_selector(config, {64, 1, 1, 0.125F}));
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using C = SelectorConfig;
  EXPECT_EQ(refused("quest", [](C& c) { c.part_tokens = 4; }).find("part_tokens"), 0U);
  EXPECT_EQ(refused("quest", [](C& c) { c.sink_tokens = 16; }).find("sink_tokens"), 0U);
  EXPECT_EQ(refused("unique", [](C& c) { c.deviation_weight = -1.0F; }).find("deviation_weight"), 0U);
  EXPECT_EQ(refused("compkv", [](C& c) { c.recent_tokens = 64; }).find("recent_tokens"), 0U);
  EXPECT_EQ(refused("compkv", [](C& c) { c.combine = GroupCombine::kMax; }).find("combine"), 0U);
  EXPECT_EQ(refused("recency", [](C& c) { c.recent_tokens = 64; }).find("recent_tokens"), 0U);
  EXPECT_EQ(refused("random", [](C& c) { c.part_tokens = 3; }).find("part_tokens"), 0U);
  EXPECT_EQ(refused("shadowkv", [](C& c) { c.rank = 0; }).find("rank"), 0U);
  EXPECT_EQ(refused("shadowkv", [](C& c) { c.rope.base = 1.0; }).find("rope.base"), 0U);
  EXPECT_EQ(refused("shadowkv", [](C& c) { c.rope.dims = 66; }).find("rope.dims"), 0U);
  EXPECT_EQ(refused("oracle", [](C& c) { c.budget_tokens = 100; }).find("budget_tokens"), 0U);
  EXPECT_EQ(refused("oracle", [](C& c) { c.dense_layers = -1; }).find("dense_layers"), 0U);
}

}  // namespace
}  // namespace locks::test
