// One decode step of one layer: score, select, attend and complete, composed. plan() sizes, run() computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/attend.h"
#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/select.h"
#include "locks/target.h"
#include "locks/team.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks {

struct DecodeConfig {
  const SummaryFormat* format = &kGraded8;
  SelectConfig select;
  int min_context_tokens = 1024;  // shorter contexts are attended whole

  /// The paper's method: whole pages of the `paper` format, 2048 tokens, nothing completed.
  [[nodiscard]] static DecodeConfig paper() noexcept;
};

struct DecodeLimits {
  int max_requests = 1;
  int max_context_tokens = 0;
  int max_threads = 1;
};

struct DecodeInputs {
  View<const float, 3> queries;  // [requests, query_heads, head_dim]
  PagedCache keys;
  PagedCache values;
  SummaryStore summaries;  // of every filled page; with the value part if anything is completed
  PageTable table;
};

/// What one request's step did. Bytes are those read from the cache and from the summaries.
struct DecodeReport {
  std::int32_t context_tokens = 0;
  float attended_tokens = 0.0F;  // mean over the lists
  float completed_pages = 0.0F;  // mean over the lists
  float coverage = 1.0F;         // estimated share of the attention mass that was attended, mean over query heads
  std::int64_t score_bytes = 0;
  std::int64_t attend_bytes = 0;
  std::int64_t complete_bytes = 0;
  std::int64_t dense_bytes = 0;  // what dense attention would have read
  bool dense = false;            // attended whole
};

class DecodePlan {
 public:
  /// Throws std::invalid_argument naming the setting.
  DecodePlan(const DecodeConfig& config, const Geometry& geometry, const DecodeLimits& limits);

  [[nodiscard]] const DecodeConfig& config() const noexcept { return config_; }
  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] const DecodeLimits& limits() const noexcept { return limits_; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }  // 64-byte aligned memory

 private:
  DecodeConfig config_;
  Geometry geometry_;
  DecodeLimits limits_;
  std::size_t workspace_bytes_ = 0;
};

/// Throws std::invalid_argument. Looks at every block number only if `check_tables`.
void check_decode(const DecodePlan& plan, const DecodeInputs& inputs, bool check_tables);

/// Called by every thread of the team with the same arguments. `out` [requests, query_heads, head_dim]; `reports` has one
/// entry per request, or none. `coverage` [requests, kv_heads], if there is any, is that of a report for each KV head alone.
/// The workspace is in use until every thread has returned. Allocates nothing and throws nothing that check_decode would not
/// have.
void run(const DecodePlan& plan, const DecodeInputs& inputs, View<float, 3> out, std::span<DecodeReport> reports,
         std::span<std::byte> workspace, Team team, Target target, View<float, 2> coverage = {});

/// What one list of a request chose in the last run(), read from its workspace, which must not have been used since. A list
/// is the query heads that choose together: those of a KV head, or each for itself (GroupCombine::kPerQueryHead).
struct DecodeChoice {
  AlwaysAttended always;  // if everything is attended, the rest is empty
  int kv_head = 0;
  int first_query_head = 0;
  int num_query_heads = 0;
  std::span<const SelectedPage> selected;   // beside what is always attended
  std::span<const SelectedPage> completed;  // with the tokens that the page's summary stood in for
  /// [query heads of the list, pages]: the share that each page was estimated to have; only of selectable pages, +infinity
  /// for pages that are marked to be attended.
  View<const float, 2> head_share;
  std::span<const float> log_norm;  // [query heads of the list]: of the whole mass, by that estimate
};
/// Of a request.
[[nodiscard]] int num_lists(const DecodePlan& plan) noexcept;
[[nodiscard]] DecodeChoice choice(const DecodePlan& plan, const DecodeInputs& inputs, std::span<std::byte> workspace,
                                  int request, int list) noexcept;

}  // namespace locks
