#ifndef LOCKS_TESTS_C_API_STEP_H_
#define LOCKS_TESTS_C_API_STEP_H_

#include "locks/locks_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if the default settings look like defaults. */
int c_api_defaults_are_set(void);
/* Plans, summarises the pages and runs one step with memory of its own; fills the step's summaries and workspace. */
locks_status c_api_step(const locks_settings* settings, const int32_t* pages, int64_t num_pages, locks_step* step,
                        locks_report* reports);

#ifdef __cplusplus
}
#endif

#endif
