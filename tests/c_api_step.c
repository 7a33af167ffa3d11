/* A decode step in C: what tests/c_api_test.cc compares with the C++ interface. Also proof that the header is C. */
#include "c_api_step.h"

#include <stdlib.h>

int c_api_defaults_are_set(void) {
  locks_settings settings;
  locks_default_settings(&settings);
  return settings.head_dim == 0 && settings.max_threads == 1 && settings.budget_tokens > 0 && settings.format != NULL &&
         settings.target == NULL;
}

locks_status c_api_step(const locks_settings* settings, const int32_t* pages, int64_t num_pages, locks_step* step,
                        locks_report* reports) {
  locks_plan* plan = NULL;
  void* workspace = NULL;
  locks_team team = {0, 1, NULL};
  locks_status status = locks_plan_create(settings, &plan);
  if (status != LOCKS_OK) return status;
  step->summaries.num_pages = step->keys.num_pages;
  step->summaries.data = malloc(locks_summary_bytes(plan, step->keys.num_pages));
  step->workspace_bytes = locks_workspace_bytes(plan);
  workspace = aligned_alloc(64, (step->workspace_bytes + 63) / 64 * 64);
  step->workspace = workspace;
  status = LOCKS_FAILURE;
  if (step->summaries.data != NULL && workspace != NULL) {
    status = locks_summarize(plan, &step->keys, &step->values, pages, num_pages, &step->summaries, &team);
  }
  if (status == LOCKS_OK) status = locks_check_step(plan, step);
  if (status == LOCKS_OK) status = locks_run(plan, step, reports, &team);
  free(workspace);
  free(step->summaries.data);
  locks_plan_destroy(plan);
  return status;
}
