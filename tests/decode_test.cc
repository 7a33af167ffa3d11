#include "locks/decode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include <gtest/gtest.h>

#include "support/step.h"

namespace {
std::atomic<std::int64_t> num_allocations{0};
}

// The counting allocator of AllocatesNothing. Not inlined, or the compiler sees free() meet what it knows came from new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace locks {
namespace {

using test::StepData;
using test::StepSpec;

DecodeConfig small_config(const SummaryFormat& format = kGraded8) {
  DecodeConfig config;
  config.format = &format;
  config.select.budget_tokens = 200;
  config.min_context_tokens = 300;
  return config;
}

void expect_matches(const test::StepResult& got, const test::ExpectedStep& want) {
  ASSERT_EQ(got.out.size(), want.out.size());
  std::size_t worst = 0;
  double worst_ratio = -1.0;
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const double error = std::abs(got.out[i] - want.out[i]);
    const double ratio = want.bound[i] == 0.0 ? (error == 0.0 ? 0.0 : 1e30) : error / want.bound[i];
    if (!(ratio <= worst_ratio)) {
      worst = i;
      worst_ratio = ratio;
    }
  }
  EXPECT_LE(worst_ratio, 1.0) << "at " << worst << ": got " << got.out[worst] << ", want " << want.out[worst] << ", bound "
                              << want.bound[worst];
  ASSERT_EQ(got.coverage.size(), want.coverage.size());
  for (std::size_t i = 0; i < got.coverage.size(); ++i) EXPECT_NEAR(got.coverage[i], want.coverage[i], 1e-5) << i;
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (std::size_t i = 0; i < got.reports.size(); ++i) {
    SCOPED_TRACE("report " + std::to_string(i));
    const DecodeReport& a = got.reports[i];
    const DecodeReport& b = want.reports[i];
    EXPECT_EQ(a.context_tokens, b.context_tokens);
    EXPECT_EQ(a.dense, b.dense);
    EXPECT_FLOAT_EQ(a.attended_tokens, b.attended_tokens);
    EXPECT_FLOAT_EQ(a.completed_pages, b.completed_pages);
    EXPECT_NEAR(a.coverage, b.coverage, 1e-5);
    EXPECT_EQ(a.score_bytes, b.score_bytes);
    EXPECT_EQ(a.attend_bytes, b.attend_bytes);
    EXPECT_EQ(a.complete_bytes, b.complete_bytes);
    EXPECT_EQ(a.dense_bytes, b.dense_bytes);
  }
}

struct Case {
  const char* name;
  StepSpec spec;
  DecodeConfig config;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, auto change) {
    Case c{name, {}, small_config()};
    c.spec.lengths = {897, 0, 1403, 5, 250, 336};  // tails of 1, 11 and no token
    change(c.spec, c.config);
    c.config.format = c.spec.format;
    all.push_back(c);
  };
  add("Default", [](auto&, auto&) {});
  for (const auto& [name, head_dim] : {std::pair{"Dim80", 80}, std::pair{"Dim96", 96}, std::pair{"Dim128", 128},
                                       std::pair{"Dim192", 192}, std::pair{"Dim256", 256}}) {
    add(name, [head_dim = head_dim](auto& spec, auto&) {
      spec.head_dim = head_dim;
      spec.lengths = {700, 345};
    });
  }
  add("F32HeadMajor", [](auto& spec, auto&) {
    spec.dtype = DType::kF32;
    spec.layout = test::Layout::kHeadMajor;
    spec.block_tokens = 64;
  });
  add("Bf16Gaps", [](auto& spec, auto&) {
    spec.dtype = DType::kBF16;
    spec.layout = test::Layout::kGaps;
    spec.block_tokens = 32;
  });
  add("Q8Scattered", [](auto& spec, auto&) {
    spec.dtype = DType::kQ8_0;
    spec.layout = test::Layout::kScattered;
  });
  add("Paper", [](auto& spec, auto& config) {
    spec.format = &kPaper;
    config.select.part_tokens = 16;
    config.select.completion_fraction = 0;
  });
  add("PaperCompleted", [](auto& spec, auto&) { spec.format = &kPaper; });
  add("Graded12", [](auto& spec, auto&) { spec.format = &kGraded12; });
  add("Graded4Tokens", [](auto& spec, auto& config) {
    spec.format = &kGraded4;
    config.select.part_tokens = 1;
  });
  add("Parts2", [](auto&, auto& config) { config.select.part_tokens = 2; });
  add("Parts8NoCompletion", [](auto&, auto& config) {
    config.select.part_tokens = 8;
    config.select.completion_fraction = 0;
  });
  add("CompleteAll", [](auto&, auto& config) { config.select.completion_fraction = 1.0F; });
  add("WholePagesCompleted", [](auto&, auto& config) { config.select.part_tokens = 16; });
  add("Maximum", [](auto&, auto& config) { config.select.combine = GroupCombine::kMax; });
  add("PerQueryHead", [](auto&, auto& config) { config.select.combine = GroupCombine::kPerQueryHead; });
  add("OneHead", [](auto& spec, auto&) {
    spec.kv_heads = 1;
    spec.group = 1;
  });
  add("NoSinkNoRecent", [](auto&, auto& config) {
    config.select.sink_tokens = 0;
    config.select.recent_tokens = 0;
  });
  add("SmallestBudget", [](auto&, auto& config) { config.select.budget_tokens = 112; });
  add("Constant", [](auto& spec, auto&) { spec.content = test::Content::kConstant; });
  add("Zero", [](auto& spec, auto&) { spec.content = test::Content::kZero; });
  add("Denormal", [](auto& spec, auto&) {
    spec.content = test::Content::kDenormal;
    spec.dtype = DType::kF32;
  });
  add("OnlyShort", [](auto& spec, auto&) { spec.lengths = {12, 0, 299}; });
  add("NoRequests", [](auto& spec, auto&) { spec.lengths = {}; });
  return all;
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class DecodeTest : public testing::TestWithParam<Case> {};

TEST_P(DecodeTest, GivesWhatTheFormulasGive) {
  const StepData data(GetParam().spec);
  for (const Target target : supported_targets()) {
    SCOPED_TRACE(target_name(target));
    const test::ExpectedStep want = test::expected_step(GetParam().config, data, target);
    for (const int threads : {1, 2, 3, 7}) {
      if (target == Target::kReference && threads == 2) continue;
      SCOPED_TRACE(threads);
      expect_matches(test::run_step(GetParam().config, data, target, threads), want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeTest, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(Decode, WholeBudgetIsDenseAttentionBitForBit) {
  StepSpec spec;
  spec.lengths = {900, 37, 1403};
  const StepData data(spec);
  DecodeConfig config = small_config();
  config.select.budget_tokens = 1403;
  for (const Target target : supported_targets()) {
    const test::StepResult got = test::run_step(config, data, target, 1);
    const DecodeInputs inputs = data.inputs();
    test::Workspace workspace(attend_workspace_bytes(data.geometry, 3, spec.kv_heads, 1));
    AttendArgs args{data.geometry, inputs.queries, inputs.keys, inputs.values, inputs.table, spec.kv_heads, {}, {}, {}};
    args.workspace = workspace.span();
    attend(args, Team{}, target);
    std::vector<float> memory(3U * data.geometry.query_heads * (2 + spec.head_dim));
    const SoftmaxStates states = contiguous(memory.data(), 3, data.geometry.query_heads, 2 + spec.head_dim);
    for (int request = 0; request < 3; ++request) {
      for (int head = 0; head < data.geometry.query_heads; ++head)
        states(request, head, 0) = -std::numeric_limits<float>::infinity();
      for (int list = 0; list < spec.kv_heads; ++list) merge_partials(args, request, list, 1, states);
      for (int head = 0; head < data.geometry.query_heads; ++head) {
        std::vector<float> want(spec.head_dim);
        finish(states, request, head, want);
        for (int dim = 0; dim < spec.head_dim; ++dim) {
          ASSERT_EQ(got.out[(static_cast<std::size_t>(request) * data.geometry.query_heads + head) * spec.head_dim + dim],
                    want[dim]);
        }
      }
      EXPECT_TRUE(got.reports[request].dense);
      EXPECT_EQ(got.reports[request].coverage, 1.0F);
      EXPECT_EQ(got.reports[request].attend_bytes, got.reports[request].dense_bytes);
      EXPECT_EQ(got.reports[request].score_bytes, 0);
    }
  }
}

TEST(Decode, MinimumContextDecidesWhatIsAttendedWhole) {
  StepSpec spec;
  spec.lengths = {699, 700};
  const StepData data(spec);
  DecodeConfig config = small_config();
  config.min_context_tokens = 700;
  const test::StepResult got = test::run_step(config, data, supported_targets().back(), 2);
  EXPECT_TRUE(got.reports[0].dense);
  EXPECT_FALSE(got.reports[1].dense);
  EXPECT_LE(got.reports[1].attended_tokens, 200.0F);
  EXPECT_GT(got.reports[1].attended_tokens, 184.0F);
  EXPECT_LT(got.reports[1].coverage, 1.0F);
}

TEST(Decode, ChoiceIsWhatTheStepAttended) {
  StepSpec spec;
  spec.lengths = {897, 250, 1403};  // the second is attended whole
  const StepData data(spec);
  for (const GroupCombine combine : {GroupCombine::kSum, GroupCombine::kPerQueryHead}) {
    DecodeConfig config = small_config();
    config.select.combine = combine;
    const Target target = supported_targets().back();
    const test::ExpectedStep want = test::expected_step(config, data, target);
    const DecodePlan plan(config, data.geometry, {3, 1403, 1});
    test::Workspace workspace(plan.workspace_bytes());
    const int heads = data.geometry.query_heads;
    std::vector<float> memory(static_cast<std::size_t>(3 * heads * spec.head_dim));
    std::vector<DecodeReport> reports(3);
    run(plan, data.inputs(), contiguous(memory.data(), 3, heads, spec.head_dim), reports, workspace.span(), {}, target);
    const int lists = num_lists(plan);
    ASSERT_EQ(lists, combine == GroupCombine::kSum ? spec.kv_heads : heads);
    for (int request = 0; request < 3; ++request) {
      double completed = 0.0;
      double selectable = 0.0;
      for (int list = 0; list < lists; ++list) {
        const DecodeChoice got = choice(plan, data.inputs(), workspace.span(), request, list);
        EXPECT_EQ(got.kv_head, got.first_query_head / spec.group);
        EXPECT_EQ(got.num_query_heads, heads / lists);
        EXPECT_EQ(got.always.everything, request == 1);
        const auto& selected = want.selected[static_cast<std::size_t>(request * lists + list)];
        EXPECT_TRUE(std::ranges::equal(got.selected, selected)) << request << ", " << list;
        completed += static_cast<double>(got.completed.size());
        if (got.always.everything) continue;
        for (int page = got.always.sink_pages; page < got.always.first_recent_page; ++page) {
          selectable += got.head_share(0, page);
        }
        EXPECT_TRUE(std::isfinite(got.log_norm[0]));
      }
      EXPECT_FLOAT_EQ(static_cast<float>(completed / lists), reports[request].completed_pages);
      EXPECT_EQ(selectable > 0.0, request != 1);
      EXPECT_LT(selectable, lists);
    }
  }
}

TEST(Decode, MarkedPagesAreAttendedWhole) {
  StepSpec spec;
  spec.lengths = {1000};
  StepData data(spec);
  const DecodeConfig config = small_config();
  const int flags_at = record_layout(kGraded8, spec.head_dim).flags_at;
  const std::vector<int> marked{7, 30, 41};
  for (const int page : marked) {
    data.summaries.record(data.table.table.page(0, page), 1)[flags_at] = std::byte{kFlagAlwaysAttend};
  }
  for (const Target target : supported_targets()) {
    SCOPED_TRACE(target_name(target));
    const test::ExpectedStep want = test::expected_step(config, data, target);
    for (const int page : marked) {
      const auto& list = want.selected[1];
      EXPECT_NE(std::find(list.begin(), list.end(), SelectedPage{page, kWholePage}), list.end()) << page;
    }
    expect_matches(test::run_step(config, data, target, 2), want);
  }
}

/// A key that is not finite reaches the heads that read it, as in dense attention, and no others.
TEST(Decode, BrokenKeyStaysWithItsHead) {
  StepSpec spec;
  spec.lengths = {1000, 1000};
  StepData data(spec);
  data.keys.set_value(data.table.table.page(0, 20), 3, 1, 5, std::numeric_limits<float>::quiet_NaN());
  data.summarize_all();
  for (const Target target : supported_targets()) {
    const test::StepResult got = test::run_step(small_config(), data, target, 2);
    for (int head = 0; head < 2 * data.geometry.query_heads; ++head) {
      const bool broken = head >= spec.group && head < 2 * spec.group;
      EXPECT_EQ(std::isnan(got.out[static_cast<std::size_t>(head) * spec.head_dim]), broken)
          << target_name(target) << " " << head;
    }
  }
}

TEST(Decode, AllocatesNothing) {
  StepSpec spec;
  spec.lengths = {900, 20, 1403};
  const StepData data(spec);
  for (const GroupCombine combine : {GroupCombine::kSum, GroupCombine::kPerQueryHead}) {
    DecodeConfig config = small_config();
    config.select.combine = combine;
    const DecodePlan plan(config, data.geometry, {3, 1403, 1});
    test::Workspace workspace(plan.workspace_bytes());
    const DecodeInputs inputs = data.inputs();
    std::vector<float> memory(data.queries.size());
    std::vector<DecodeReport> reports(3);
    const auto out = contiguous(memory.data(), 3, data.geometry.query_heads, spec.head_dim);
    for (const Target target : test::simd_targets()) {
      const std::int64_t before = num_allocations;
      run(plan, inputs, out, reports, workspace.span(), Team{}, target);
      EXPECT_EQ(num_allocations, before) << target_name(target);
    }
  }
}

/// A plan for more than comes: other strides inside the workspace, the same result.
TEST(Decode, WorkspaceMayBeOfALargerPlan) {
  StepSpec spec;
  spec.lengths = {900, 700};
  const StepData data(spec);
  const DecodePlan plan(small_config(), data.geometry, {9, 100000, 5});
  test::Workspace workspace(plan.workspace_bytes());
  std::vector<float> memory(data.queries.size());
  const DecodeInputs inputs = data.inputs();
  check_decode(plan, inputs, true);
  const Target target = supported_targets().back();
  ThreadPool pool(2);
  for (int step = 0; step < 3; ++step) {
    pool.run([&](Team team) {
      run(plan, inputs, contiguous(memory.data(), 2, data.geometry.query_heads, spec.head_dim), {}, workspace.span(), team,
          target);
    });
  }
  EXPECT_EQ(memory, test::run_step(small_config(), data, target, 2).out);
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DecodePlan, NamesTheSettingThatIsWrong) {
  const auto message = [](auto change) {
    DecodeConfig config;
    Geometry geometry{64, 2, 6, 0.125F};
    DecodeLimits limits{1, 4096, 1};
    change(config, geometry, limits);
    return message_of([&] { DecodePlan(config, geometry, limits); });
  };
  EXPECT_EQ(message([](auto&, auto&, auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& c, auto&, auto&) { c.format = nullptr; }),
            "format: expected a summary format, got a null pointer");
  EXPECT_NE(message([](auto& c, auto&, auto&) { c.select.budget_tokens = 0; }).find("budget_tokens: expected at least 112"),
            std::string::npos);
  EXPECT_EQ(message([](auto& c, auto&, auto&) { c.min_context_tokens = -1; }),
            "min_context_tokens: expected at least 0, got -1");
  EXPECT_NE(message([](auto&, auto& g, auto&) { g.head_dim = 100; }).find("head_dim"), std::string::npos);
  EXPECT_NE(message([](auto&, auto& g, auto&) { g.query_heads = 5; }).find("query_heads"), std::string::npos);
  EXPECT_EQ(message([](auto&, auto&, auto& l) { l.max_requests = 0; }), "max_requests: expected at least 1, got 0");
  EXPECT_EQ(message([](auto&, auto&, auto& l) { l.max_context_tokens = 0; }),
            "max_context_tokens: expected at least 1, got 0");
  EXPECT_EQ(message([](auto&, auto&, auto& l) { l.max_threads = 0; }), "max_threads: expected at least 1, got 0");
}

TEST(CheckDecode, NamesTheArgumentThatIsWrong) {
  StepSpec spec;
  spec.lengths = {900, 20};
  const StepData data(spec);
  const DecodePlan plan(small_config(), data.geometry, {2, 900, 1});
  const auto message = [&](auto change) {
    DecodeInputs inputs = data.inputs();
    change(inputs);
    return message_of([&] { check_decode(plan, inputs, true); });
  };
  const auto starts = [](const std::string& text, const std::string& with) {
    return text.rfind(with, 0) == 0 ? testing::AssertionSuccess() : testing::AssertionFailure() << text;
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_TRUE(starts(message([](auto& in) { in.queries.shape[1] = 5; }), "queries: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.queries.stride[2] = 2; }), "queries: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.keys.data = nullptr; }), "keys: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.keys.dtype = DType::kE4M3; }), "keys.dtype: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.values.block_tokens = 32; }), "values.block_tokens: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.summaries.format = &kPaper; }), "summaries"));
  EXPECT_TRUE(starts(message([](auto& in) { in.summaries.format = nullptr; }), "summaries.format: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.summaries.num_pages = 3; }), "summaries.num_pages: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.summaries.value_data = nullptr; }), "summaries.value_data: "));
  EXPECT_TRUE(starts(message([](auto& in) { in.keys.num_pages = 5; }), "table.blocks[0, "));
  const std::vector<std::int32_t> longer{901, 20};
  EXPECT_EQ(message([&](auto& in) { in.table.context_tokens = longer; }),
            "table.context_tokens[0]: expected at most max_context_tokens = 900, got 901");
  const std::vector<std::int32_t> more{9, 9, 9};
  EXPECT_TRUE(starts(message([&](auto& in) { in.table.context_tokens = more; }),
                     "table.context_tokens.size(): expected at most max_requests"));
  auto blocks = data.table.blocks;
  blocks[4] = 4000;
  EXPECT_TRUE(starts(message([&](auto& in) { in.table.blocks.data = blocks.data(); }), "table.blocks[0, 4]: "));
}

}  // namespace
}  // namespace locks
