#include "locks/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <gtest/gtest.h>

#include "select/largest.h"
#include "select/share.h"
#include "support/data.h"

namespace locks {
namespace {

constexpr float kInfinity = select::kInfinity;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// One list's buffers, and the steps in a row.
struct List {
  SelectConfig config;
  AlwaysAttended always;
  Target target = Target::kReference;
  int heads;
  int pages;
  std::vector<float> log_mass;
  std::vector<float> always_log_mass;
  std::vector<float> head_share, log_norm, share, selectable, skipped;
  std::vector<std::int32_t> order, candidates;
  std::vector<float> part_shares;
  std::vector<SelectedPage> selected, completed;

  List(const SelectConfig& settings, int context, int num_heads)
      : config(settings), always(always_attended(settings, context)), heads(num_heads), pages(context / kPageTokens) {
    const auto total = static_cast<std::size_t>(heads) * pages;
    log_mass.resize(total);
    always_log_mass.assign(heads, 0.0F);
    head_share.resize(total);
    log_norm.resize(heads);
    share.resize(pages);
    selectable.resize(heads);
    skipped.resize(heads);
  }

  ListShares shares() { return {contiguous(head_share.data(), heads, pages), log_norm, share, selectable}; }

  void pick_pages() {
    const SelectLimits limits = select_limits(config, std::max(pages * kPageTokens + 15, config.budget_tokens + 16));
    order.assign(std::max<std::size_t>(pages, limits.candidate_pages * 16), -1);
    candidates.assign(limits.candidate_pages, -1);
    completed.assign(limits.completed_pages, {});
    const ListScores scores{contiguous<const float>(log_mass.data(), heads, pages), always_log_mass};
    candidates.resize(select_pages(config, always, scores, shares(), order, candidates, target));
  }

  void pick_parts(View<const float, 3> logits) {
    part_shares.assign(candidates.size() * (1 + heads) * 16, kNaN);
    selected.assign(candidates.size(), {});
    selected.resize(select_parts(config, always, candidates, logits, shares(), part_shares, order, selected, target));
  }

  void complete() {
    if (config.part_tokens == kPageTokens) part_shares.clear();
    sum_skipped(config, always, candidates, part_shares, selected, shares(), skipped);
    completed.resize(select_completion(config, always, selected, share, order, completed));
  }
};

/// Indices of the `count` largest values by a full sort, equal ones by index, in ascending order.
std::vector<int> sorted_largest(const std::vector<float>& values, int count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

SelectConfig config_of(int budget, int part, float completion) {
  SelectConfig config;
  config.budget_tokens = budget;
  config.sink_tokens = 16;
  config.recent_tokens = 40;
  config.part_tokens = part;
  config.completion_fraction = completion;
  return config;
}

TEST(Largest, AgreesWithASort) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const int size = 1 + static_cast<int>(random() % 400);
    std::vector<float> values(size);
    for (float& value : values) {
      switch (round % 4) {
        case 0:
          value = std::ldexp(static_cast<float>(random() % 1000), -static_cast<int>(random() % 140));
          break;
        case 1:
          value = static_cast<float>(random() % 4);
          break;  // many ties
        case 2:
          value = std::bit_cast<float>(static_cast<std::uint32_t>(0x3F800000U + random() % 700));
          break;  // low bits
        default:
          value = random() % 5 == 0 ? kInfinity : 0.0F;
      }
    }
    const int count = 1 + static_cast<int>(random() % size);
    std::vector<std::int32_t> scratch(size);
    select::Threshold threshold = select::largest(values, count, scratch);
    std::vector<int> got;
    for (int i = 0; i < size; ++i) {
      if (threshold.takes(values[i])) got.push_back(i);
    }
    ASSERT_EQ(got, sorted_largest(values, count)) << "round " << round;
  }
}

TEST(ShareExp, IsExpWithinItsBound) {
  for (float x = -43.0F; x <= 64.0F; x += 0.00317F) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(select::share_exp(x), exact, (3e-7 + 8e-8 * std::abs(x)) * exact) << x;
  }
  EXPECT_EQ(select::share_exp(0.0F), 1.0F);
  EXPECT_EQ(select::share_exp(-43.01F), 0.0F);
  EXPECT_EQ(select::share_exp(-kInfinity), 0.0F);
  EXPECT_EQ(select::share_exp(kNaN), 0.0F);
  EXPECT_EQ(select::share_exp(kInfinity), select::share_exp(64.0F));
}

TEST(ShareLog, IsLogWithinItsBound) {
  for (float x = 0x1p-126F; x < 0x1p120F; x *= 1.00317F) {
    const double exact = std::log(static_cast<double>(x));
    ASSERT_NEAR(select::share_log(x), exact, 1.3e-7 + 1.2e-7 * std::abs(exact)) << x;
  }
  EXPECT_EQ(select::share_log(1.0F), 0.0F);
}

TEST(AlwaysAttended, CountsSinkRecentAndTail) {
  const SelectConfig config = config_of(128, 4, 0.1F);
  for (int context = 0; context < 700; ++context) {
    const AlwaysAttended always = always_attended(config, context);
    ASSERT_EQ(always.filled_pages, context / 16);
    ASSERT_EQ(always.tail_tokens, context % 16);
    ASSERT_EQ(always.everything, context <= 128);
    ASSERT_EQ(always.tokens + 16 * always.selectable_pages(), context);
    if (always.everything) continue;
    ASSERT_EQ(always.sink_pages, 1);
    const int recent = context - 16 * always.first_recent_page;
    ASSERT_GE(recent, 40);
    ASSERT_LE(recent, 55);
    ASSERT_GE(config.budget_tokens - always.tokens, 16);
  }
}

TEST(SelectLimits, TakeTheLongestContextThereCanBe) {
  const SelectLimits limits = select_limits({}, std::numeric_limits<int>::max());
  EXPECT_GT(limits.completed_pages, 10000000);
  EXPECT_GT(limits.candidate_pages, 0);
}

TEST(SelectLimits, AreReachedAndNeverExceeded) {
  for (const int budget : {88, 100, 512}) {
    for (const float factor : {1.0F, 4.0F, 5.3F}) {
      SelectConfig config = config_of(budget, 4, 0.13F);
      config.candidate_factor = factor;
      int candidates = 0;
      int completed = 0;
      for (int context = 0; context <= 3000; ++context) {
        const AlwaysAttended always = always_attended(config, context);
        if (!always.everything) {
          const int remaining = budget - always.tokens;
          const double wide = remaining <= 32 ? std::max(8.0F, factor) : factor;
          candidates =
              std::max(candidates, std::min(always.selectable_pages(), static_cast<int>(std::ceil(wide * remaining / 16))));
          const auto asked_for = static_cast<int>(std::lround(double{0.13F} * always.selectable_pages()));
          completed = std::max(completed, std::min(always.selectable_pages(), std::max(1, asked_for) + remaining / 16));
        }
        const SelectLimits limits = select_limits(config, context);
        ASSERT_EQ(limits.candidate_pages, candidates) << context;
        ASSERT_EQ(limits.completed_pages, completed) << context;
      }
    }
  }
}

TEST(CheckSelectConfig, NamesWhatIsWrong) {
  const auto message = [](auto change) -> std::string {
    SelectConfig config = config_of(128, 4, 0.1F);
    change(config);
    try {
      check_select_config(config);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](SelectConfig&) {}), "accepted");
  EXPECT_EQ(message([](SelectConfig& c) { c.budget_tokens = 88; }), "accepted");
  const std::string budget = message([](SelectConfig& c) { c.budget_tokens = 87; });
  EXPECT_NE(budget.find("budget_tokens: expected at least 88"), std::string::npos) << budget;
  EXPECT_NE(budget.find("got 87"), std::string::npos) << budget;
  EXPECT_NE(message([](SelectConfig& c) { c.budget_tokens = 0; }).find("budget_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.part_tokens = 3; }).find("part_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.part_tokens = 0; }).find("part_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.candidate_factor = 0.5F; }).find("candidate_factor"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.candidate_factor = kNaN; }).find("candidate_factor"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.completion_fraction = 1.1F; }).find("completion_fraction"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.completion_fraction = kNaN; }).find("completion_fraction"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.sink_tokens = -1; }).find("sink_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.recent_tokens = -1; }).find("recent_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.recent_tokens = 2000000000; }).find("recent_tokens"), std::string::npos);
  EXPECT_NE(message([](SelectConfig& c) { c.combine = static_cast<GroupCombine>(9); }).find("combine"), std::string::npos);
}

struct Case {
  int budget;
  int part;
  float completion;
  int heads;
  int context;
  GroupCombine combine;
  int special;  // 0 plain, 1 coarse scores (ties), 2 marked pages and NaN, 3 everything marked, 4 no mass at all
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "budget " << c.budget << " part " << c.part << " completion " << c.completion << " heads " << c.heads
       << " context " << c.context << " combine " << static_cast<int>(c.combine) << " special " << c.special;
}

class SelectTest : public testing::TestWithParam<Case> {
 protected:
  List list{config(), GetParam().context, GetParam().heads};
  std::mt19937_64 random{99};

  static SelectConfig config() {
    SelectConfig config = config_of(GetParam().budget, GetParam().part, GetParam().completion);
    config.combine = GetParam().combine;
    return config;
  }

  void SetUp() override {
    std::normal_distribution<float> normal(3.0F, 2.5F);
    for (float& value : list.log_mass) value = GetParam().special == 1 ? std::round(normal(random) / 3) : normal(random);
    for (float& value : list.always_log_mass) value = normal(random);
    if (GetParam().special == 4) std::fill(list.always_log_mass.begin(), list.always_log_mass.end(), -kInfinity);
    for (int page = 0; page < list.pages; ++page) {
      const bool marked = GetParam().special == 3 || (GetParam().special == 2 && random() % 20 == 0);
      const bool broken = GetParam().special == 2 && random() % 7 == 0;
      for (int head = 0; head < list.heads; ++head) {
        float& value = list.log_mass[static_cast<std::size_t>(head) * list.pages + page];
        if (broken) value = kNaN;
        if (marked) value = kInfinity;
        if (GetParam().special == 4) value = -kInfinity;
      }
    }
  }

  /// What each step must give, by the formula and by sorting.
  std::vector<float> combined(const std::vector<std::vector<float>>& per_head) const {
    std::vector<float> out = per_head[0];
    for (std::size_t head = 1; head < per_head.size(); ++head) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = GetParam().combine == GroupCombine::kMax ? std::max(out[i], per_head[head][i]) : out[i] + per_head[head][i];
      }
    }
    return out;
  }
};

TEST_P(SelectTest, AgreesWithSortingBitForBit) {
  const int heads = list.heads;
  const int first = list.always.sink_pages;
  const int pages = list.always.selectable_pages();
  list.pick_pages();
  ASSERT_GT(pages, 0);

  // Shares: close to the formula in double; from there on, what is chosen must be exact.
  std::vector<std::vector<float>> head_share(heads, std::vector<float>(pages));
  for (int head = 0; head < heads; ++head) {
    double peak = list.always_log_mass[head];
    const auto mass = [&](int i) { return list.log_mass[static_cast<std::size_t>(head) * list.pages + first + i]; };
    for (int i = 0; i < pages; ++i) peak = std::isfinite(mass(i)) ? std::max<double>(peak, mass(i)) : peak;
    double whole = std::exp(list.always_log_mass[head] - peak);
    for (int i = 0; i < pages; ++i) whole += std::isfinite(mass(i)) ? std::exp(mass(i) - peak) : 0.0;
    for (int i = 0; i < pages; ++i) {
      const float got = list.head_share[static_cast<std::size_t>(head) * list.pages + first + i];
      head_share[head][i] = got;
      if (mass(i) == kInfinity) {
        ASSERT_EQ(got, kInfinity);
        continue;
      }
      if (!std::isfinite(mass(i))) {
        ASSERT_EQ(got, 0.0F);
        continue;
      }
      const double want = std::exp(mass(i) - peak) / whole;
      // exp: 2e-7, and the rounding of its argument; the norm: the same again, and a sum with at most pages / 16 + 4 steps.
      ASSERT_NEAR(got, want, (4e-7 + 6e-8 * (2 * std::abs(peak) + 16 + pages / 16 + 4)) * want)
          << "head " << head << " page " << i;
    }
    if (GetParam().special != 4 && GetParam().special != 3) {
      ASSERT_NEAR(list.log_norm[head], peak + std::log(whole), 2e-6 * (1 + std::abs(peak)));
    }
  }
  const std::vector<float> share = combined(head_share);
  for (int i = 0; i < pages; ++i) ASSERT_EQ(share[i], list.share[first + i]);

  const int remaining = list.config.budget_tokens - list.always.tokens;
  const double factor = remaining <= 32 ? 8.0 : 4.0;
  const int count =
      std::min(pages, GetParam().part == 16 ? remaining / 16 : static_cast<int>(std::ceil(factor * remaining / 16)));
  std::vector<int> want = sorted_largest(share, count);
  for (int& page : want) page += first;
  ASSERT_EQ(std::vector<int>(list.candidates.begin(), list.candidates.end()), want);

  // Parts.
  const auto n = static_cast<int>(list.candidates.size());
  std::vector<float> logits(static_cast<std::size_t>(n) * heads * 16);
  std::normal_distribution<float> normal(-1.0F, 2.0F);
  for (float& value : logits) value = GetParam().special == 1 ? std::round(normal(random)) : normal(random);
  const auto view = contiguous<const float>(logits.data(), n, heads, 16);
  list.pick_parts(view);
  const int part = GetParam().part;
  const int num_parts = 16 / part;
  /// A part's tokens are summed in pairs, then the pairs in pairs.
  const auto part_of = [&](int head, std::int64_t candidate, int index) {
    std::vector<float> sums;
    for (int t = 0; t < part; ++t) {
      sums.push_back(select::share_exp(view(candidate, head, index * part + t) - list.log_norm[head]));
    }
    for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
      for (std::size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    }
    return sums[0];
  };
  std::vector<std::uint16_t> masks(n, part == 16 ? kWholePage : 0);
  if (part < 16) {
    std::vector<std::vector<float>> of_heads(heads, std::vector<float>(static_cast<std::size_t>(n) * num_parts));
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < n * num_parts; ++i) of_heads[head][i] = part_of(head, i / num_parts, i % num_parts);
    }
    std::vector<float> part_share = combined(of_heads);
    for (int i = 0; i < n * num_parts; ++i) {
      if (list.share[list.candidates[i / num_parts]] == kInfinity) part_share[i] = kInfinity;
    }
    for (const int i : sorted_largest(part_share, std::min(n * num_parts, remaining / part))) {
      masks[i / num_parts] |= static_cast<std::uint16_t>(((1U << part) - 1U) << (i % num_parts * part));
    }
  }
  std::vector<SelectedPage> want_selected;
  for (int i = 0; i < n; ++i) {
    if (masks[i] != 0) want_selected.push_back({list.candidates[i], masks[i]});
  }
  ASSERT_EQ(list.selected, want_selected);
  int tokens = 0;
  for (const SelectedPage& entry : list.selected) tokens += std::popcount(entry.mask);
  ASSERT_LE(tokens, remaining);
  ASSERT_GT(tokens, remaining - 16);

  // What remains, and completion.
  std::vector<std::uint16_t> attended(pages, 0);
  for (const SelectedPage& entry : list.selected) attended[entry.page - first] = entry.mask;
  std::vector<std::vector<float>> rest = head_share;
  std::vector<double> skipped(heads);
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < pages; ++i) {
      float& own = rest[head][i];
      const auto at = std::find(list.candidates.begin(), list.candidates.end(), first + i) - list.candidates.begin();
      if (own == kInfinity || attended[i] == kWholePage) {
        own = 0.0F;
      } else if (attended[i] != 0) {
        own = 0.0F;
        for (int p = 0; p < num_parts; ++p) own += (attended[i] >> (p * part) & 1) != 0 ? 0.0F : part_of(head, at, p);
      }
      skipped[head] += own;
    }
  }
  list.complete();
  for (int head = 0; head < heads; ++head) {
    // A difference from the whole: what it loses to rounding, it loses of the whole.
    const double got = std::exp(double{list.skipped[head]} - list.log_norm[head]);
    EXPECT_NEAR(skipped[head] == 0.0 && list.log_norm[head] == kInfinity ? 0.0 : got, std::min(1.0, skipped[head]),
                1e-6 * (1 + std::abs(list.log_norm[head])) + 6e-8 * (n / 16 + 4));
    if (static_cast<int>(list.selected.size()) == pages && skipped[head] == 0.0) {
      EXPECT_EQ(list.skipped[head], -kInfinity);
    }
  }
  const float fraction = GetParam().completion;
  const int asked_for = std::max(1, static_cast<int>(std::lround(double{fraction} * pages)));
  std::vector<SelectedPage> want_completed;
  for (const int i : sorted_largest(share, fraction > 0 ? std::min(pages, asked_for + remaining / 16) : 0)) {
    if (attended[i] != kWholePage && share[i] > 0.0F && share[i] < kInfinity) {
      want_completed.push_back({first + i, static_cast<std::uint16_t>(~attended[i])});
    }
  }
  ASSERT_EQ(list.completed, want_completed);
}

/// Every target must give the reference's bits, so one comparison of all outputs is enough.
TEST_P(SelectTest, EveryTargetGivesTheSameBits) {
  std::normal_distribution<float> normal(-1.0F, 2.0F);
  std::vector<float> logits(static_cast<std::size_t>(list.pages) * list.heads * 16);
  for (float& value : logits) value = normal(random);
  const auto bits = [](const std::vector<float>& values) {
    std::vector<std::uint32_t> out;
    for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
    return out;
  };
  const auto steps = [&](Target target) {
    List run = list;
    run.target = target;
    run.pick_pages();
    const auto view = contiguous<const float>(logits.data(), run.candidates.size(), run.heads, 16);
    run.pick_parts(view);
    run.complete();
    return run;
  };
  const List want = steps(Target::kReference);
  for (const Target target : test::simd_targets()) {
    const List got = steps(target);
    SCOPED_TRACE(target_name(target));
    ASSERT_EQ(got.candidates, want.candidates);
    ASSERT_EQ(got.selected, want.selected);
    ASSERT_EQ(got.completed, want.completed);
    ASSERT_EQ(bits(got.log_norm), bits(want.log_norm));
    ASSERT_EQ(bits(got.share), bits(want.share));
    ASSERT_EQ(bits(got.head_share), bits(want.head_share));
    ASSERT_EQ(bits(got.skipped), bits(want.skipped));
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int part : {1, 2, 4, 8, 16}) {
    for (const int special : {0, 1, 2, 3, 4}) {
      all.push_back({128, part, 0.1F, 3, 1500, GroupCombine::kSum, special});
      all.push_back({88, part, 1.0F, 1, 1037, GroupCombine::kSum, special});
      all.push_back({400, part, 0.0F, 4, 2000, GroupCombine::kMax, special});
      all.push_back({1000, part, 0.001F, 8, 1003, GroupCombine::kMax, special});
    }
  }
  all.push_back({2048, 4, 0.1F, 2, 131072, GroupCombine::kSum, 0});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, SelectTest, testing::ValuesIn(cases()));

TEST(Select, MayOverwriteTheScores) {
  List apart(config_of(160, 4, 0.1F), 900, 3);
  apart.log_mass = test::normal_floats(apart.log_mass.size(), 5, 3.0F);
  List in_place = apart;
  apart.pick_pages();
  in_place.order = apart.order;
  in_place.candidates.resize(apart.candidates.size());
  const auto view = contiguous(in_place.log_mass.data(), in_place.heads, in_place.pages);
  select_pages(in_place.config, in_place.always, {view, in_place.always_log_mass},
               {view, in_place.log_norm, in_place.share, in_place.selectable}, in_place.order, in_place.candidates,
               Target::kReference);
  EXPECT_EQ(in_place.candidates, apart.candidates);
  EXPECT_EQ(in_place.log_norm, apart.log_norm);
  EXPECT_TRUE(
      std::equal(apart.share.begin() + 1, apart.share.begin() + apart.always.first_recent_page, in_place.share.begin() + 1));
}

TEST(Select, NoMoreThanTheWholeIsSkipped) {
  // Tokens above their page's mass: so are those of huge keys, whose logits have no digits left for a difference.
  List list(config_of(404, 4, 0.1F), 4000, 2);
  list.pick_pages();
  const std::vector<float> logits(list.candidates.size() * 2 * kPageTokens, 1000.0F);
  list.pick_parts(contiguous(logits.data(), list.candidates.size(), 2, kPageTokens));
  ASSERT_FALSE(list.selected.empty());
  list.complete();
  for (int head = 0; head < 2; ++head) EXPECT_EQ(list.skipped[head], list.log_norm[head]);
}

TEST(Select, ShortContextSelectsNothing) {
  List list(config_of(160, 4, 0.1F), 160, 2);
  list.pick_pages();
  EXPECT_TRUE(list.candidates.empty());
  list.pick_parts({});
  EXPECT_TRUE(list.selected.empty());
  list.complete();
  EXPECT_TRUE(list.completed.empty());
  EXPECT_EQ(list.skipped[0], -kInfinity);
}

}  // namespace
}  // namespace locks
