// The door of the selection on the GPU: checks, and the workspace.
#include <algorithm>
#include <string>

#include "cpu/check.h"
#include "cpu/cutter.h"
#include "cuda/rank.h"
#include "cuda/step.h"
#include "locks/cuda.h"
#include "select/select_launch.h"

namespace locks::cuda {
namespace {

using select_kernels::Buffers;
using select_kernels::Lists;

struct Sizes {
  std::int64_t requests, lists, query_heads, parts;
  int max_pages, capacity;
};

std::size_t cut(const Sizes& sizes, std::byte* memory, Buffers& buffers) noexcept {
  buffers.max_blocks = std::max(1, (sizes.max_pages + select::kBlockPages - 1) / select::kBlockPages);
  buffers.max_pages = buffers.max_blocks * select::kBlockPages;
  buffers.capacity = sizes.capacity;
  const std::int64_t lists = sizes.requests * sizes.lists;
  const std::int64_t heads = sizes.requests * sizes.query_heads;
  Cutter cutter(memory);
  buffers.masses = cutter.take<select::BlockMass>(heads * buffers.max_blocks);
  buffers.whole_masses = cutter.take<select::WholeMass>(heads);
  buffers.share = cutter.take<float>(lists * buffers.max_pages);
  buffers.completed = cutter.take<std::uint32_t>(lists * buffers.max_pages / 32);
  buffers.candidate_words =
      cutter.take<std::uint32_t>(lists * select_kernels::candidate_words(sizes.capacity, static_cast<int>(sizes.parts),
                                                                         static_cast<int>(sizes.query_heads / sizes.lists)));
  return cutter.used();
}

int parts_of(const SelectConfig& config) noexcept { return kPageTokens / config.part_tokens; }

void require(bool fits, const std::string& argument, const std::string& expected, const std::string& got) {
  if (!fits) check::fail(argument, expected, got);
}

template <class T, int N>
void check_shape(const std::string& argument, const View<T, N>& view, std::int64_t requests, std::int64_t rows) {
  require(view.data != nullptr, argument, "device memory", "a null pointer");
  require(view.shape[0] >= requests, argument + ".shape[0]", "at least " + std::to_string(requests) + " requests",
          std::to_string(view.shape[0]));
  require(view.shape[1] >= rows, argument + ".shape[1]", "at least " + std::to_string(rows), std::to_string(view.shape[1]));
  require(view.stride[N - 1] == 1, argument + ".stride", "1 in the last axis", std::to_string(view.stride[N - 1]));
}

}  // namespace

std::size_t select_workspace_bytes(const SelectConfig& config, const Geometry& geometry, int num_requests, int num_lists,
                                   int max_context_tokens) noexcept {
  Buffers buffers;
  return cut({num_requests, num_lists, geometry.query_heads, parts_of(config), max_context_tokens / kPageTokens,
              select_limits(config, max_context_tokens).candidate_pages},
             nullptr, buffers);
}

namespace select_kernels {

Lists checked(const SelectArgs& args) {
  check_select_config(args.config);
  Lists lists;
  lists.args = args;
  const auto requests = static_cast<std::int64_t>(args.context_tokens.size());
  require(args.num_lists > 0, "num_lists", "at least 1", std::to_string(args.num_lists));
  check_shape("log_mass", args.log_mass, requests, args.num_lists);
  lists.query_heads = static_cast<int>(args.log_mass.shape[1]);
  require(lists.query_heads % args.num_lists == 0, "num_lists",
          "a divisor of query_heads = " + std::to_string(lists.query_heads), std::to_string(args.num_lists));
  lists.heads = lists.query_heads / args.num_lists;
  lists.heads_inverse = ~0U / static_cast<std::uint32_t>(lists.heads) + 1U;
  check_shape("states", args.states, requests, lists.query_heads);
  check_shape("candidates", args.candidates, requests, args.num_lists);
  check_shape("num_candidates", args.num_candidates, requests, args.num_lists);
  check_shape("selected", args.selected, requests, args.num_lists);
  check_shape("num_selected", args.num_selected, requests, args.num_lists);
  check_shape("num_completed", args.num_completed, requests, args.num_lists);
  check_shape("skipped_log_mass", args.skipped_log_mass, requests, lists.query_heads);
  check_shape("coverage", args.coverage, requests, lists.query_heads);
  if (args.completed.shape[2] > 0) check_shape("completed", args.completed, requests, args.num_lists);
  if (args.config.part_tokens < kPageTokens) check_shape("logits", args.logits, requests, args.num_lists);
  require(args.selected.shape[2] >= args.candidates.shape[2], "selected.shape[2]",
          "at least candidates.shape[2] = " + std::to_string(args.candidates.shape[2]),
          std::to_string(args.selected.shape[2]));
  const Sizes sizes{requests,
                    args.num_lists,
                    lists.query_heads,
                    parts_of(args.config),
                    static_cast<int>(args.log_mass.shape[2]),
                    static_cast<int>(args.candidates.shape[2])};
  const std::size_t needed = cut(sizes, args.workspace.data(), lists.buffers);
  require(args.workspace.data() != nullptr && args.workspace.size() >= needed, "workspace",
          std::to_string(needed) + " bytes", std::to_string(args.workspace.size()));
  return lists;
}

}  // namespace select_kernels

void select_pages(const SelectArgs& args, Stream stream) {
  if (args.context_tokens.empty()) return;
  select_kernels::launch_pages(select_kernels::checked(args), true, Start::kAfterPrevious, stream);
}
void select_pages_in_step(const SelectArgs& args, bool wants_rest, Stream stream) {
  select_kernels::launch_pages(select_kernels::checked(args), wants_rest, Start::kEarly, stream);
}

void rank_pages(const SelectArgs& args, Start start, Stream stream) {
  if (args.context_tokens.empty()) return;
  require(args.config.part_tokens == kPageTokens && args.completed.shape[2] == 0, "config",
          "whole pages and no completion, to select by ranks", std::to_string(args.config.part_tokens) + " tokens a part");
  require(args.log_mass.shape[1] == args.num_lists, "log_mass.shape[1]",
          std::to_string(args.num_lists) + " (a row of scores for each list)", std::to_string(args.log_mass.shape[1]));
  select_kernels::launch_ranks(select_kernels::checked(args), start, stream);
}

void select_tokens(const SelectArgs& args, Stream stream) {
  if (args.context_tokens.empty()) return;
  const Lists lists = select_kernels::checked(args);
  select_kernels::launch_tokens(lists, true, Start::kAfterPrevious, stream);
}

void select_tokens_in_step(const SelectArgs& args, bool wants_rest, Stream stream) {
  select_kernels::launch_tokens(select_kernels::checked(args), wants_rest, Start::kEarly, stream);
}

}  // namespace locks::cuda
