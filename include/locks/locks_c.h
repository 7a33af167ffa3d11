/* The library for other languages: plain structs, pointers and strides. No exception leaves a function; those that can
 * fail return a locks_status, and locks_last_error() has the text. Terms are those of the C++ headers. */
#ifndef LOCKS_LOCKS_C_H_
#define LOCKS_LOCKS_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LOCKS_C_API __attribute__((visibility("default")))
#else
#define LOCKS_C_API
#endif

typedef enum locks_status { LOCKS_OK = 0, LOCKS_INVALID_ARGUMENT = 1, LOCKS_FAILURE = 2 } locks_status;
typedef enum locks_dtype { LOCKS_F32 = 0, LOCKS_F16 = 1, LOCKS_BF16 = 2, LOCKS_Q8_0 = 3 } locks_dtype;
typedef enum locks_combine { LOCKS_SUM = 0, LOCKS_MAX = 1, LOCKS_PER_QUERY_HEAD = 2 } locks_combine;

LOCKS_C_API const char* locks_version(void);
/* What this thread's last failed call had to say; never null. */
LOCKS_C_API const char* locks_last_error(void);

typedef struct locks_settings {
  /* The model's. No defaults. */
  int32_t head_dim;
  int32_t kv_heads;
  int32_t query_heads;
  float softmax_scale;
  /* Limits of the calls to come: what the workspace is sized for. No defaults but one request and one thread. */
  int32_t max_requests;
  int32_t max_context_tokens;
  int32_t max_threads;
  /* The method's. */
  const char* format;
  int32_t budget_tokens;
  int32_t sink_tokens;
  int32_t recent_tokens;
  int32_t part_tokens;
  float candidate_factor;
  float completion_fraction;
  int32_t combine; /* locks_combine */
  int32_t min_context_tokens;
  const char* target; /* null: the fastest, or what LOCKS_CPU_TARGET names */
} locks_settings;

/* Zeros for what has no default. */
LOCKS_C_API void locks_default_settings(locks_settings* settings);

typedef struct locks_plan locks_plan;
LOCKS_C_API locks_status locks_plan_create(const locks_settings* settings, locks_plan** plan);
LOCKS_C_API void locks_plan_destroy(locks_plan* plan); /* null is fine */
LOCKS_C_API const char* locks_plan_target(const locks_plan* plan);
/* Of one step; 64-byte aligned memory. */
LOCKS_C_API size_t locks_workspace_bytes(const locks_plan* plan);
/* Of the summaries of a cache's pages, the value part included if the plan completes. */
LOCKS_C_API size_t locks_summary_bytes(const locks_plan* plan, int64_t num_pages);

/* Threads of one team meet here. One per team; any number of calls. */
typedef struct locks_barrier locks_barrier;
LOCKS_C_API locks_barrier* locks_barrier_create(void); /* null if there is no memory */
LOCKS_C_API void locks_barrier_destroy(locks_barrier* barrier);

/* A thread's place in its team. `barrier` may be null for a team of one. */
typedef struct locks_team {
  int32_t index;
  int32_t count;
  locks_barrier* barrier;
} locks_team;

/* Keys or values of one layer. Strides in bytes. */
typedef struct locks_cache {
  const void* data;
  int32_t dtype; /* locks_dtype */
  int32_t block_tokens;
  int64_t num_pages;
  int64_t block_stride;
  int64_t token_stride;
  int64_t head_stride;
  const int32_t* page_slots; /* [num_pages, 16] or null */
  int64_t num_slots;
} locks_cache;

/* Summaries of a cache of `num_pages` pages, locks_summary_bytes of memory. */
typedef struct locks_summaries {
  void* data;
  int64_t num_pages;
} locks_summaries;

/* Writes the summaries of this thread's share of the listed pages, each filled with 16 tokens. `values` may be null if the
 * plan completes nothing. */
LOCKS_C_API locks_status locks_summarize(const locks_plan* plan, const locks_cache* keys, const locks_cache* values,
                                         const int32_t* pages, int64_t num_pages, const locks_summaries* summaries,
                                         const locks_team* team);

typedef struct locks_step {
  int32_t num_requests;
  const float* queries; /* [requests, query_heads, head_dim]; strides in floats, head_dim contiguous */
  int64_t query_request_stride;
  int64_t query_head_stride;
  float* out; /* like queries */
  int64_t out_request_stride;
  int64_t out_head_stride;
  locks_cache keys;
  locks_cache values;
  locks_summaries summaries;
  const int32_t* blocks; /* [requests, blocks_per_request] */
  int64_t blocks_per_request;
  int64_t block_row_stride;      /* in entries */
  const int32_t* context_tokens; /* [requests] */
  void* workspace;
  size_t workspace_bytes;
} locks_step;

typedef struct locks_report {
  int32_t context_tokens;
  float attended_tokens;
  float completed_pages;
  float coverage;
  int64_t score_bytes;
  int64_t attend_bytes;
  int64_t complete_bytes;
  int64_t dense_bytes;
  int32_t dense; /* 1: attended whole */
} locks_report;

/* Looks at everything locks_run looks at, and at every block number. */
LOCKS_C_API locks_status locks_check_step(const locks_plan* plan, const locks_step* step);
/* One decode step; called by every thread of the team with the same arguments. The output is complete, and the workspace
 * free again, when all have returned. `reports` [requests] may be null. Block numbers are not checked. */
LOCKS_C_API locks_status locks_run(const locks_plan* plan, const locks_step* step, locks_report* reports,
                                   const locks_team* team);

#ifdef __cplusplus
}
#endif

#endif /* LOCKS_LOCKS_C_H_ */
