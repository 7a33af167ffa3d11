/* The same from C, with one thread: 4096 tokens, one of which the query looks for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <locks/locks_c.h>

enum { TOKENS = 4096, HEAD_DIM = 64, PAGES = TOKENS / 16, NEEDLE = 1234 };

static int failed(locks_status status) {
  if (status != LOCKS_OK) fprintf(stderr, "%s\n", locks_last_error());
  return status != LOCKS_OK;
}

/* Uniform in [-1.7, 1.7]: about as wide as a normal distribution. */
static float uniform(void) { return 3.4f * (float)rand() / (float)RAND_MAX - 1.7f; }

int main(void) {
  static float keys[TOKENS][HEAD_DIM], values[TOKENS][HEAD_DIM], query[HEAD_DIM], out[HEAD_DIM];
  static int32_t blocks[PAGES];
  const int32_t context_tokens = TOKENS;
  for (int i = 0; i < HEAD_DIM; ++i) query[i] = uniform();
  for (int token = 0; token < TOKENS; ++token) {
    for (int i = 0; i < HEAD_DIM; ++i) {
      keys[token][i] = token == NEEDLE ? 2.0f * query[i] : uniform();
      values[token][i] = token == NEEDLE ? 3.0f : uniform();
    }
  }
  for (int i = 0; i < PAGES; ++i) blocks[i] = i;

  locks_settings settings;
  locks_default_settings(&settings);
  settings.head_dim = HEAD_DIM;
  settings.kv_heads = settings.query_heads = 1;
  settings.softmax_scale = 1.0f / sqrtf((float)HEAD_DIM);
  settings.max_context_tokens = TOKENS;
  locks_plan* plan = NULL;
  if (failed(locks_plan_create(&settings, &plan))) return 1;

  const locks_cache k = {keys, LOCKS_F32, 16, PAGES, 16 * sizeof keys[0], sizeof keys[0], sizeof keys[0], NULL, 0};
  locks_cache v = k;
  v.data = values;
  const locks_team alone = {0, 1, NULL};
  const locks_summaries summaries = {malloc(locks_summary_bytes(plan, PAGES)), PAGES};
  if (failed(locks_summarize(plan, &k, &v, blocks, PAGES, &summaries, &alone))) return 1;

  const size_t bytes = (locks_workspace_bytes(plan) + 63) / 64 * 64;
  const locks_step step = {1,
                           query,
                           HEAD_DIM,
                           HEAD_DIM,
                           out,
                           HEAD_DIM,
                           HEAD_DIM,
                           k,
                           v,
                           summaries,
                           blocks,
                           PAGES,
                           PAGES,
                           &context_tokens,
                           aligned_alloc(64, bytes),
                           bytes};
  locks_report report;
  if (failed(locks_check_step(plan, &step)) || failed(locks_run(plan, &step, &report, &alone))) return 1;
  printf("locks %s on %s: attended %.0f of %d tokens, found %.2f\n", locks_version(), locks_plan_target(plan),
         report.attended_tokens, report.context_tokens, out[0]);
  free(step.workspace);
  free(summaries.data);
  locks_plan_destroy(plan);
  return fabsf(out[0] - 3.0f) < 0.1f ? 0 : 1;
}
