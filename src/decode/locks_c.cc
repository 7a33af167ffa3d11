#include "locks/locks_c.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "cpu/check.h"
#include "locks/locks.h"

struct locks_plan {
  locks::DecodePlan plan;
  locks::Target target;

  /// The plan's own, and behind it the reports of one step.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept {
    return plan.workspace_bytes() + static_cast<std::size_t>(plan.limits().max_requests) * sizeof(locks::DecodeReport);
  }
  [[nodiscard]] bool completes() const noexcept { return plan.config().select.completion_fraction > 0.0F; }
};

struct locks_barrier {
  locks::Barrier barrier;
};

namespace locks {
namespace {

thread_local std::array<char, 1024> last_error{};  // fixed: a failure to allocate must be reportable

locks_status failed(locks_status status, const char* text) noexcept {
  std::strncpy(last_error.data(), text, last_error.size() - 1);
  return status;
}

/// Calls `work` and turns what it throws into a status.
template <class Work>
locks_status guarded(const Work& work) noexcept {
  try {
    work();
    return LOCKS_OK;
  } catch (const std::invalid_argument& error) {
    return failed(LOCKS_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return failed(LOCKS_FAILURE, error.what());
  } catch (...) {
    return failed(LOCKS_FAILURE, "an unknown exception");
  }
}

void not_null(std::string_view argument, const void* pointer) {
  if (pointer == nullptr) check::fail(argument, "a pointer", "null");
}

Team team_of(const locks_plan& plan, const locks_team& team) {
  const int most = plan.plan.limits().max_threads;
  if (team.count < 1 || team.count > most)
    check::fail("team.count", "1 to " + std::to_string(most), std::to_string(team.count));
  if (team.index < 0 || team.index >= team.count) {
    check::fail("team.index", "0 to " + std::to_string(team.count - 1), std::to_string(team.index));
  }
  if (team.count > 1) not_null("team.barrier", team.barrier);
  return {team.index, team.count, team.barrier == nullptr ? nullptr : &team.barrier->barrier};
}

PagedCache cache_of(std::string_view argument, const locks_cache& cache) {
  if (cache.dtype < LOCKS_F32 || cache.dtype > LOCKS_Q8_0) {
    check::fail(std::string(argument) + ".dtype", "LOCKS_F32, LOCKS_F16, LOCKS_BF16 or LOCKS_Q8_0",
                std::to_string(cache.dtype));
  }
  PagedCache out;
  out.data = static_cast<const std::byte*>(cache.data);
  out.dtype = static_cast<DType>(cache.dtype);
  out.num_pages = cache.num_pages;
  out.block_tokens = cache.block_tokens;
  out.block_stride = cache.block_stride;
  out.token_stride = cache.token_stride;
  out.head_stride = cache.head_stride;
  out.page_slots = cache.page_slots;
  out.num_slots = cache.num_slots;
  return out;
}

SummaryStore store_of(const locks_plan& plan, const locks_summaries& summaries) noexcept {
  const Geometry& geometry = plan.plan.geometry();
  return make_store(*plan.plan.config().format, geometry.head_dim, geometry.kv_heads, summaries.num_pages, plan.completes(),
                    static_cast<std::byte*>(summaries.data));
}

DecodeConfig config_of(const locks_settings& settings) {
  not_null("settings.format", settings.format);
  DecodeConfig config;
  config.format = &find_format(settings.format);
  config.select = {settings.budget_tokens,    settings.sink_tokens,         settings.recent_tokens, settings.part_tokens,
                   settings.candidate_factor, settings.completion_fraction, GroupCombine::kSum};
  if (settings.combine < LOCKS_SUM || settings.combine > LOCKS_PER_QUERY_HEAD) {
    check::fail("combine", "LOCKS_SUM, LOCKS_MAX or LOCKS_PER_QUERY_HEAD", std::to_string(settings.combine));
  }
  config.select.combine = static_cast<GroupCombine>(settings.combine);
  config.min_context_tokens = settings.min_context_tokens;
  return config;
}

struct StepViews {
  DecodeInputs inputs;
  View<float, 3> out;
};

/// Checks the whole step.
StepViews views_of(const locks_plan& plan, const locks_step& step, bool check_tables) {
  if (step.num_requests < 0) check::fail("step.num_requests", "0 or more", std::to_string(step.num_requests));
  if (step.num_requests > 0) {
    not_null("step.context_tokens", step.context_tokens);
    not_null("step.blocks", step.blocks);
    not_null("step.out", step.out);
  }
  const Geometry& geometry = plan.plan.geometry();
  const std::array<std::int64_t, 3> shape{step.num_requests, geometry.query_heads, geometry.head_dim};
  StepViews views;
  DecodeInputs& inputs = views.inputs;
  inputs.queries = {step.queries, shape, {step.query_request_stride, step.query_head_stride, 1}};
  inputs.keys = cache_of("step.keys", step.keys);
  inputs.values = cache_of("step.values", step.values);
  inputs.summaries = store_of(plan, step.summaries);
  inputs.table.blocks = {step.blocks, {step.num_requests, step.blocks_per_request}, {step.block_row_stride, 1}};
  inputs.table.block_tokens = step.keys.block_tokens;
  inputs.table.context_tokens = {step.context_tokens, static_cast<std::size_t>(step.num_requests)};
  views.out = {step.out, shape, {step.out_request_stride, step.out_head_stride, 1}};
  check_decode(plan.plan, inputs, check_tables);
  check::workspace({static_cast<const std::byte*>(step.workspace), step.workspace_bytes}, plan.workspace_bytes());
  return views;
}

}  // namespace
}  // namespace locks

using namespace locks;

const char* locks_version(void) { return kVersion; }
const char* locks_last_error(void) { return last_error.data(); }

void locks_default_settings(locks_settings* settings) {
  const DecodeConfig config;
  *settings = locks_settings{};
  settings->max_requests = 1;
  settings->max_threads = 1;
  settings->format = config.format->name.data();
  settings->budget_tokens = config.select.budget_tokens;
  settings->sink_tokens = config.select.sink_tokens;
  settings->recent_tokens = config.select.recent_tokens;
  settings->part_tokens = config.select.part_tokens;
  settings->candidate_factor = config.select.candidate_factor;
  settings->completion_fraction = config.select.completion_fraction;
  settings->combine = LOCKS_SUM;
  settings->min_context_tokens = config.min_context_tokens;
}

locks_status locks_plan_create(const locks_settings* settings, locks_plan** plan) {
  return guarded([&] {
    not_null("settings", settings);
    not_null("plan", plan);
    *plan = nullptr;
    const Geometry geometry{settings->head_dim, settings->kv_heads, settings->query_heads, settings->softmax_scale};
    const DecodeLimits limits{settings->max_requests, settings->max_context_tokens, settings->max_threads};
    Target target = settings->target == nullptr ? active_target() : parse_target(settings->target);
    const auto supported = supported_targets();
    if (std::find(supported.begin(), supported.end(), target) == supported.end()) {
      check::fail("target", "one that this machine runs", settings->target);
    }
    *plan = new locks_plan{DecodePlan(config_of(*settings), geometry, limits), target};
  });
}

void locks_plan_destroy(locks_plan* plan) { delete plan; }
const char* locks_plan_target(const locks_plan* plan) { return target_name(plan->target).data(); }
size_t locks_workspace_bytes(const locks_plan* plan) { return plan->workspace_bytes(); }

size_t locks_summary_bytes(const locks_plan* plan, int64_t num_pages) {
  const Geometry& geometry = plan->plan.geometry();
  return static_cast<size_t>(
      summary_bytes(*plan->plan.config().format, geometry.head_dim, geometry.kv_heads, num_pages, plan->completes()));
}

locks_barrier* locks_barrier_create(void) { return new (std::nothrow) locks_barrier; }
void locks_barrier_destroy(locks_barrier* barrier) { delete barrier; }

locks_status locks_summarize(const locks_plan* plan, const locks_cache* keys, const locks_cache* values,
                             const int32_t* pages, int64_t num_pages, const locks_summaries* summaries,
                             const locks_team* team) {
  return guarded([&] {
    not_null("plan", plan);
    not_null("keys", keys);
    not_null("summaries", summaries);
    not_null("team", team);
    if (num_pages < 0) check::fail("num_pages", "0 or more", std::to_string(num_pages));
    if (num_pages > 0) not_null("pages", pages);
    if (plan->completes()) not_null("values", values);
    const PagedCache value_cache = plan->completes() ? cache_of("values", *values) : PagedCache{};
    SummarizeArgs args;
    args.head_dim = plan->plan.geometry().head_dim;
    args.kv_heads = plan->plan.geometry().kv_heads;
    args.keys = cache_of("keys", *keys);
    args.values = plan->completes() ? &value_cache : nullptr;
    args.pages = {pages, static_cast<std::size_t>(num_pages)};
    args.out = store_of(*plan, *summaries);
    const Team place = team_of(*plan, *team);
    check_summarize(args);
    summarize(args, place, plan->target);
  });
}

locks_status locks_check_step(const locks_plan* plan, const locks_step* step) {
  return guarded([&] {
    not_null("plan", plan);
    not_null("step", step);
    views_of(*plan, *step, true);
  });
}

locks_status locks_run(const locks_plan* plan, const locks_step* step, locks_report* reports, const locks_team* team) {
  return guarded([&] {
    not_null("plan", plan);
    not_null("step", step);
    not_null("team", team);
    const Team place = team_of(*plan, *team);
    const StepViews views = views_of(*plan, *step, false);
    const auto num_requests = static_cast<std::size_t>(step->num_requests);
    auto* const own = static_cast<std::byte*>(step->workspace);
    const std::span<DecodeReport> written(reinterpret_cast<DecodeReport*>(own + plan->plan.workspace_bytes()), num_requests);
    run(plan->plan, views.inputs, views.out, written, {own, plan->plan.workspace_bytes()}, place, plan->target);
    if (reports == nullptr) return;
    const auto [first, last] = place.share(step->num_requests);  // those that this thread's run() wrote
    for (std::int64_t i = first; i < last; ++i) {
      const DecodeReport& from = written[static_cast<std::size_t>(i)];
      reports[i] = {from.context_tokens, from.attended_tokens, from.completed_pages, from.coverage,     from.score_bytes,
                    from.attend_bytes,   from.complete_bytes,  from.dense_bytes,     from.dense ? 1 : 0};
    }
  });
}
