// Quest and the oracle of locks/selector.h on an NVIDIA GPU, to be compared with LOCKS there: what chooses and attends is
// the same. They keep the rules of locks/cuda.h: every pointer is on the device, and what is queued can be captured in a
// graph.
//
// Compiled into locks::cuda. What the caller gets wrong is std::invalid_argument and names the argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "locks/cuda.h"
#include "locks/decode.h"
#include "locks/paged_cache.h"
#include "locks/selector.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks::cuda {

/// What Quest keeps of a page and a KV head: the largest and the smallest of its keys in each dimension, two rows [2,
/// head_dim] of the cache's own type, so that nothing is rounded. Of e4m3 they are elements, as they are without the scale.
struct PageBounds {
  std::byte* data = nullptr;  // 16-byte aligned
  DType dtype = DType::kF16;
  int head_dim = 0;
  std::int64_t num_pages = 0;
  std::int64_t page_stride = 0;  // in bytes, multiples of 16
  std::int64_t head_stride = 0;
};
/// A store without gaps, and its bytes.
[[nodiscard]] std::int64_t bounds_bytes(DType dtype, int head_dim, int kv_heads, std::int64_t num_pages) noexcept;
[[nodiscard]] PageBounds make_bounds(DType dtype, int head_dim, int kv_heads, std::int64_t num_pages,
                                     std::byte* memory) noexcept;

struct BoundArgs {
  int head_dim = 0;
  int kv_heads = 0;
  PagedCache keys;
  std::span<const std::int32_t> pages;  // numbers in the cache, all full
  PageBounds out;                       // with the type of the keys
};
/// In bulk, for a prompt: the bounds of `args.pages`.
void bound_pages(const BoundArgs& args, Stream stream);
/// In a step: of the pages whose last slot is among `slots`, as summarize_filled() takes them. `args.pages` is not read.
void bound_filled(const BoundArgs& args, std::span<const std::int64_t> slots, Stream stream);

struct BoundScoreArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [requests, query_heads, head_dim]; head_dim contiguous
  PageBounds bounds;
  const float* key_scale = nullptr;  // of e4m3, as PagedCache::scale
  PageTable table;
  GroupCombine combine = GroupCombine::kPerQueryHead;  // of the bounds of the query heads of a KV head
  View<float, 3> scores;  // out: [requests, query_heads or kv_heads, pages of the longest request]; pages contiguous
};
/// sum_d max(q_d max_d, q_d min_d) of every filled page. Keys are taken to be finite.
void score_bounds(const BoundScoreArgs& args, Stream stream);

struct KeyMassArgs {
  Geometry geometry;
  View<const float, 3> queries;  // [requests, query_heads, head_dim]; head_dim contiguous
  PagedCache keys;
  PageTable table;
  View<float, 3> log_mass;  // out: [requests, query_heads, pages of the longest request]; pages contiguous
  /// Out, if given: logits [requests, lists, pages, heads of a list, 16] of page `first_page` and those behind it; heads and
  /// tokens contiguous.
  View<float, 5> logits;
  int first_page = 0;
};
/// The true logarithm of a page's mass, log sum_t exp(softmax_scale q . k_t), of every filled page. A logit that is no
/// number has no mass.
void key_masses(const KeyMassArgs& args, Stream stream);

/// Decode steps by Quest or the oracle, by the rules of locks/selector.h: one list for each query head, or for each KV head.
class SelectorPlan {
 public:
  /// Throws std::invalid_argument naming the setting: other selectors are not on the GPU, and Quest's budget is 48 tokens at
  /// least there. Contexts within the budget, or shorter than `min_context_tokens`, are attended whole. `dense_layers`
  /// is the host's to mind.
  SelectorPlan(const SelectorConfig& config, const Geometry& geometry, const DecodeLimits& limits, int min_context_tokens);

  [[nodiscard]] const SelectorConfig& config() const noexcept { return config_; }
  /// By what it selects and attends.
  [[nodiscard]] const DecodePlan& step() const noexcept { return step_; }

 private:
  SelectorConfig config_;
  DecodePlan step_;
};
[[nodiscard]] std::size_t decode_workspace_bytes(const SelectorPlan& plan) noexcept;
/// As cuda::run() for LOCKS; the inputs' summaries play no part, and `bounds` only with Quest: of every filled page.
/// Quest has no estimate of its coverage, and reports 0.
void run(const SelectorPlan& plan, const DecodeInputs& inputs, const PageBounds& bounds, const HeadRows& out,
         std::span<DecodeReport> reports, std::span<std::byte> workspace, Stream stream);

}  // namespace locks::cuda
