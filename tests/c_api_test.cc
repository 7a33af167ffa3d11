#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "c_api_step.h"
#include "support/step.h"

namespace locks {
namespace {

locks_cache c_cache(const PagedCache& cache) {
  return {cache.data,         static_cast<std::int32_t>(cache.dtype),
          cache.block_tokens, cache.num_pages,
          cache.block_stride, cache.token_stride,
          cache.head_stride,  cache.page_slots,
          cache.num_slots};
}

class CApiTest : public testing::Test {
 protected:
  CApiTest() {
    locks_default_settings(&settings);
    settings.head_dim = 64;
    settings.kv_heads = data.geometry.kv_heads;
    settings.query_heads = data.geometry.query_heads;
    settings.softmax_scale = data.geometry.softmax_scale;
    settings.max_requests = 2;
    settings.max_context_tokens = 1500;
    settings.max_threads = 3;
    settings.budget_tokens = config.select.budget_tokens = 200;
    settings.min_context_tokens = config.min_context_tokens = 100;
    std::iota(pages.begin(), pages.end(), 0);

    step.num_requests = 2;
    step.queries = data.queries.data();
    step.query_head_stride = step.out_head_stride = 64;
    step.query_request_stride = step.out_request_stride = 64 * data.geometry.query_heads;
    step.out = out.data();
    step.keys = c_cache(data.keys.view());
    step.values = c_cache(data.values.view());
    step.blocks = data.table.blocks.data();
    step.blocks_per_request = data.table.table.blocks.shape[1];
    step.block_row_stride = data.table.table.blocks.stride[0];
    step.context_tokens = data.table.context_tokens.data();
  }

  static test::StepSpec spec() {
    test::StepSpec spec;
    spec.lengths = {1500, 90};
    return spec;
  }

  test::StepData data{spec()};
  DecodeConfig config;
  locks_settings settings{};
  locks_step step{};
  std::vector<float> out = std::vector<float>(data.queries.size());
  std::vector<std::int32_t> pages = std::vector<std::int32_t>(static_cast<std::size_t>(data.keys.view().num_pages));
};

TEST_F(CApiTest, GivesTheBitsOfTheCppInterface) {
  EXPECT_STREQ(locks_version(), kVersion);
  EXPECT_EQ(c_api_defaults_are_set(), 1);
  locks_report reports[2];
  ASSERT_EQ(c_api_step(&settings, pages.data(), static_cast<std::int64_t>(pages.size()), &step, reports), LOCKS_OK)
      << locks_last_error();
  const test::StepResult want = test::run_step(config, data, active_target(), 1);
  EXPECT_EQ(out, want.out);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(reports[i].context_tokens, want.reports[i].context_tokens);
    EXPECT_EQ(reports[i].attended_tokens, want.reports[i].attended_tokens);
    EXPECT_EQ(reports[i].completed_pages, want.reports[i].completed_pages);
    EXPECT_EQ(reports[i].coverage, want.reports[i].coverage);
    EXPECT_EQ(reports[i].score_bytes, want.reports[i].score_bytes);
    EXPECT_EQ(reports[i].attend_bytes, want.reports[i].attend_bytes);
    EXPECT_EQ(reports[i].complete_bytes, want.reports[i].complete_bytes);
    EXPECT_EQ(reports[i].dense_bytes, want.reports[i].dense_bytes);
    EXPECT_EQ(reports[i].dense != 0, want.reports[i].dense);
  }
}

TEST_F(CApiTest, RunsOnATeam) {
  locks_plan* plan = nullptr;
  ASSERT_EQ(locks_plan_create(&settings, &plan), LOCKS_OK);
  EXPECT_EQ(locks_plan_target(plan), target_name(active_target()));
  test::Workspace workspace(locks_workspace_bytes(plan));
  std::vector<std::byte> summaries(locks_summary_bytes(plan, step.keys.num_pages));
  step.summaries = {summaries.data(), step.keys.num_pages};
  step.workspace = workspace.span().data();
  step.workspace_bytes = workspace.span().size();
  locks_barrier* barrier = locks_barrier_create();
  locks_report reports[2];
  std::vector<locks_status> status(6, LOCKS_FAILURE);
  {
    std::vector<std::jthread> threads;
    for (int index = 0; index < 3; ++index) {
      threads.emplace_back([&, index] {
        const locks_team team{index, 3, barrier};
        status[index] = locks_summarize(plan, &step.keys, &step.values, pages.data(),
                                        static_cast<std::int64_t>(pages.size()), &step.summaries, &team);
      });
    }
  }
  {
    std::vector<std::jthread> threads;
    for (int index = 0; index < 3; ++index) {
      threads.emplace_back([&, index] {
        const locks_team team{index, 3, barrier};
        status[3 + index] = locks_run(plan, &step, reports, &team);
      });
    }
  }
  EXPECT_EQ(status, std::vector<locks_status>(6, LOCKS_OK));
  EXPECT_EQ(out, test::run_step(config, data, active_target(), 3).out);
  EXPECT_EQ(reports[1].dense, 1);
  locks_barrier_destroy(barrier);
  locks_plan_destroy(plan);
}

TEST_F(CApiTest, ReportsMistakesAsText) {
  const auto message = [&](auto change) -> std::string {
    locks_settings changed = settings;
    change(changed);
    locks_plan* plan = reinterpret_cast<locks_plan*>(&changed);
    EXPECT_EQ(locks_plan_create(&changed, &plan), LOCKS_INVALID_ARGUMENT);
    EXPECT_EQ(plan, nullptr);
    return locks_last_error();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? testing::AssertionSuccess() : testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(has(message([](auto& s) { s.budget_tokens = 0; }), "budget_tokens"));
  EXPECT_TRUE(has(message([](auto& s) { s.format = "fancy"; }), "'fancy' is unknown; it may be paper"));
  EXPECT_TRUE(has(message([](auto& s) { s.format = nullptr; }), "format: expected a pointer"));
  EXPECT_TRUE(has(message([](auto& s) { s.target = "neon"; }), "'neon' is unknown"));
  EXPECT_TRUE(has(message([](auto& s) { s.combine = 7; }), "combine"));
  EXPECT_TRUE(has(message([](auto& s) { s.max_context_tokens = 0; }), "max_context_tokens"));
  EXPECT_EQ(locks_plan_create(nullptr, nullptr), LOCKS_INVALID_ARGUMENT);

  locks_plan* plan = nullptr;
  ASSERT_EQ(locks_plan_create(&settings, &plan), LOCKS_OK);
  const locks_team alone{0, 1, nullptr};
  EXPECT_EQ(locks_run(plan, &step, nullptr, &alone), LOCKS_INVALID_ARGUMENT);  // no summaries, no workspace
  EXPECT_TRUE(has(locks_last_error(), "summaries")) << locks_last_error();
  const auto team_message = [&](locks_team team) -> std::string {
    EXPECT_EQ(locks_run(plan, &step, nullptr, &team), LOCKS_INVALID_ARGUMENT);
    return locks_last_error();
  };
  EXPECT_TRUE(has(team_message({0, 4, nullptr}), "team.count: expected 1 to 3, got 4"));
  EXPECT_TRUE(has(team_message({2, 2, nullptr}), "team.index"));
  EXPECT_TRUE(has(team_message({0, 2, nullptr}), "team.barrier"));
  std::vector<std::byte> summaries(locks_summary_bytes(plan, step.keys.num_pages));
  step.summaries = {summaries.data(), step.keys.num_pages};
  EXPECT_TRUE(has(team_message(alone), "workspace: expected at least"));
  step.keys.dtype = 9;
  EXPECT_TRUE(has(team_message(alone), "step.keys.dtype"));
  locks_plan_destroy(plan);
  locks_plan_destroy(nullptr);
}

TEST_F(CApiTest, ErrorsAreEachThreadsOwn) {
  EXPECT_EQ(locks_plan_create(nullptr, nullptr), LOCKS_INVALID_ARGUMENT);
  EXPECT_STRNE(locks_last_error(), "");
  std::jthread([] { EXPECT_STREQ(locks_last_error(), ""); });
}

}  // namespace
}  // namespace locks
