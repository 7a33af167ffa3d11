// The stages on an NVIDIA GPU. They take the arguments of the CPU stages with every pointer on the device, queue their
// work on a stream, and read lengths and tables there: what they queue can be captured in a CUDA graph and replayed
// with other lengths. Grids come from the shapes of the views, which are maxima.
//
// Compiled into locks::cuda, if the library was built with CUDA. Needs compute capability 8.0 or later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "locks/attend.h"
#include "locks/decode.h"
#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/score.h"
#include "locks/select.h"
#include "locks/summarize.h"
#include "locks/types.h"
#include "locks/view.h"

struct CUstream_st;

namespace locks::cuda {

using Stream = CUstream_st*;  // a cudaStream_t; null is the default stream

/// A call of CUDA's failed: which one, where, and what CUDA says. The context's error state was cleared.
class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& what, int code) : std::runtime_error(what), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }  // a cudaError_t

 private:
  int code_;
};

struct Device {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
};
/// The current device. Throws CudaError if there is none, the driver is too old, or the device is.
[[nodiscard]] Device current_device();
/// Why current_device() would throw; empty if it would not.
[[nodiscard]] std::string why_unavailable();
/// Why the current device cannot run these kernels, which may have been compiled for others; empty if it can.
[[nodiscard]] std::string why_no_code();

/// Rows of queries or outputs in the type of an engine's: [rows, heads, head_dim]; strides count elements.
struct HeadRows {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;  // f16, bf16; queries e4m3 too
  std::array<std::int64_t, 3> shape{};
  std::array<std::int64_t, 3> stride{};
  const float* scale = nullptr;  // of e4m3, on the device, as in PagedCache

  constexpr HeadRows() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): wherever rows are taken, those of floats are
  HeadRows(View<float, 3> rows) noexcept
      : data(reinterpret_cast<std::byte*>(rows.data)), shape(rows.shape), stride(rows.stride) {}
};
/// From one type to another, f32 among them; e4m3 takes 448 for what is larger. A step's queries are float32.
void copy_rows(const HeadRows& from, const HeadRows& to, Stream stream);

/// A record's bytes with the padding that lets the GPU read it 16 bytes at a time.
[[nodiscard]] std::int64_t summary_bytes(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                                         bool with_values) noexcept;
/// Lays a store over `memory` (summary_bytes of it, 16-byte aligned).
[[nodiscard]] SummaryStore make_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                                      bool with_values, std::byte* memory) noexcept;

/// Stage 1 in bulk: the records of `args.pages`. What was done is added to `report`, if it is given.
void summarize(const SummarizeArgs& args, SummarizeReport* report, Stream stream);
/// Stage 1 in a step: `slots` holds the cache slot (page * 16 + token) of every token that was written, or something
/// negative. Pages whose last slot is among them are summarised; `args.pages` is not read.
void summarize_filled(const SummarizeArgs& args, std::span<const std::int64_t> slots, SummarizeReport* report,
                      Stream stream);

/// Stage 2: log_mass of every filled page. `args.workspace` is not used.
void score(const ScoreArgs& args, Stream stream);

/// Logits of the 16 tokens of listed pages, for the query heads that share a list.
struct TokenScoreArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [requests, query_heads, head_dim]; head_dim contiguous
  SummaryStore summaries;
  PageTable table;
  int num_lists = 0;
  View<const std::int32_t, 3> pages;      // [requests, lists, capacity]: indices within the request; contiguous entries
  View<const std::int32_t, 2> num_pages;  // [requests, lists]
  View<float, 5> logits;                  // out: [requests, lists, capacity, heads, 16]; heads and tokens contiguous
};
void score_tokens(const TokenScoreArgs& args, Stream stream);

/// Stage 3 for all lists at once, with the bits of the CPU's selection. Lengths are read on the device; contexts that fit
/// `config.budget_tokens`, or are shorter than `min_context_tokens`, are attended whole and select nothing.
struct SelectArgs {
  SelectConfig config;
  int min_context_tokens = 0;
  std::span<const std::int32_t> context_tokens;  // [requests]
  int num_lists = 0;
  View<const float, 3> log_mass;         // [requests, query_heads, pages of the longest request]; pages contiguous
  SoftmaxStates states;                  // of what is always attended
  View<const float, 5> logits;           // [requests, lists, candidates, heads, 16], of score_tokens; not for whole pages
  View<std::int32_t, 3> candidates;      // out: [requests, lists, capacity]
  View<std::int32_t, 2> num_candidates;  // out: [requests, lists]
  View<SelectedPage, 3> selected;        // out: [requests, lists, capacity]
  View<std::int32_t, 2> num_selected;    // out
  View<std::int32_t, 2> num_attended;    // out, if given: num_selected (or none) and `always_entries`
  int always_entries = 0;                // of what is always attended, in front of `selected` in the caller's memory
  View<SelectedPage, 3> completed;       // out; a capacity of 0 if nothing is completed
  View<std::int32_t, 2> num_completed;   // out
  View<float, 2> skipped_log_mass;       // out: [requests, query_heads]
  View<float, 2> coverage;               // out: [requests, query_heads]: share of the mass that is attended
  std::span<std::byte> workspace;        // select_workspace_bytes
};
[[nodiscard]] std::size_t select_workspace_bytes(const SelectConfig& config, const Geometry& geometry, int num_requests,
                                                 int num_lists, int max_context_tokens) noexcept;
/// Step 1: the candidates. With whole pages all steps: select_tokens() has nothing left to do.
void select_pages(const SelectArgs& args, Stream stream);
/// Steps 2 to 4: the selection, what is skipped, and the pages that stand in for it.
void select_tokens(const SelectArgs& args, Stream stream);

/// Stage 4: exact attention over lists, or over every token if `args.selected` is null. The result merges into `states`
/// (which hold others already if `accumulate`, and are written otherwise). `args.workspace`: attend_workspace_bytes.
[[nodiscard]] std::size_t attend_workspace_bytes(const Geometry& geometry, int num_requests, int num_lists) noexcept;
void attend(const AttendArgs& args, SoftmaxStates states, bool accumulate, Stream stream);
/// out [requests, query_heads, head_dim] = sum of values / sum of weights; zeros for a state that saw nothing.
void finish(SoftmaxStates states, const HeadRows& out, Stream stream);
/// attend() and finish() with the same bits and a launch less: `out` is written, `states` only read, if `accumulate`.
void attend(const AttendArgs& args, SoftmaxStates states, bool accumulate, const HeadRows& out, Stream stream);

/// Completion of what is skipped, for all lists at once: see locks/attend.h.
struct CompletionArgs {
  Geometry geometry;
  View<const float, 3> queries;  // as for score
  SummaryStore summaries;        // with value part
  PageTable table;
  int num_lists = 0;
  View<const SelectedPage, 3> completed;      // [requests, lists, capacity]: masks of the tokens that were not attended
  View<const std::int32_t, 2> num_completed;  // [requests, lists]
  View<const float, 2> skipped_log_mass;      // [requests, query_heads]
  std::span<std::byte> workspace;             // completion_workspace_bytes
};
[[nodiscard]] std::size_t completion_workspace_bytes(const Geometry& geometry, int num_requests, int num_lists) noexcept;
void complete(const CompletionArgs& args, SoftmaxStates states, Stream stream);
/// complete() and finish() with the same bits and a launch less: `states` are read, `out` is written.
void complete(const CompletionArgs& args, SoftmaxStates states, const HeadRows& out, Stream stream);
/// The end of a step, with the bits of attend(..., false, ...), complete() and finish(): the tokens and the records are read
/// at the same time, and one launch merges both. `states` may be left with anything; the workspaces must be apart.
void attend_and_complete(const AttendArgs& args, const CompletionArgs& completion, SoftmaxStates states, const HeadRows& out,
                         Stream stream);

/// One decode step of one layer, composed of the stages. `plan.limits().max_threads` plays no part.
[[nodiscard]] std::size_t decode_workspace_bytes(const DecodePlan& plan) noexcept;
/// Queues the step. The tables' shapes are at most the plan's limits; lengths are read on the device, and what exceeds
/// `plan.limits().max_context_tokens` there is a caller's fault that nobody sees. `out` [requests, query_heads, head_dim]
/// in f32, f16 or bf16; `reports` has one entry per request, or none; `workspace` is 64-byte aligned.
void run(const DecodePlan& plan, const DecodeInputs& inputs, const HeadRows& out, std::span<DecodeReport> reports,
         std::span<std::byte> workspace, Stream stream);

}  // namespace locks::cuda
