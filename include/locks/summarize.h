// Stage 1: one small record for every filled page.
#pragma once

#include <cstdint>
#include <span>

#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/target.h"
#include "locks/team.h"

namespace locks {

struct SummarizeArgs {
  int head_dim = 0;
  int kv_heads = 0;
  PagedCache keys;
  const PagedCache* values = nullptr;   // needed if out.value_data is set
  std::span<const std::int32_t> pages;  // page numbers in the cache, each filled
  SummaryStore out;
};

struct SummarizeReport {
  std::int64_t records = 0;             // written by this thread
  std::int64_t not_finite_records = 0;  // of these, marked always-attend: a key or value is not finite
};

/// Throws std::invalid_argument, naming the argument, before anything is written.
void check_summarize(const SummarizeArgs& args);
/// Writes the records of this thread's share of (page, KV head). Allocates nothing.
SummarizeReport summarize(const SummarizeArgs& args, Team team, Target target);

}  // namespace locks
