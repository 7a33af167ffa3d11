#include "attend/attend_cuda.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "attend/complete_launch.h"
#include "cpu/check.h"
#include "cuda/step.h"

namespace locks::cuda {
namespace {

namespace stage = attend_stage;

constexpr std::int64_t kAlignment = 16;   // of rows, which are copied 16 bytes at a time
constexpr std::int64_t kMaxGrid = 65535;  // of a grid's second and third axis

void check_cache(const std::string& name, const PagedCache& cache, const AttendArgs& args) {
  const Geometry& geometry = args.geometry;
  check::cache(name, cache, geometry.head_dim, geometry.kv_heads);
  if (cache.dtype == DType::kQ8_0) check::fail(name + ".dtype", "f32, f16, bf16 or e4m3 on the GPU", "q8_0");
  if (reinterpret_cast<std::uintptr_t>(cache.data) % kAlignment != 0) {
    check::fail(name, "data aligned to 16 bytes", "an address that is not");
  }
  const auto aligned = [&](const char* what, std::int64_t stride, bool used) {
    if (used && stride % kAlignment != 0) check::fail(name + "." + what, "a multiple of 16 bytes", std::to_string(stride));
  };
  aligned("token_stride", cache.token_stride, true);
  aligned("head_stride", cache.head_stride, geometry.kv_heads > 1);
  aligned("block_stride", cache.block_stride, cache.page_slots == nullptr);
  if (cache.num_pages > std::numeric_limits<std::int32_t>::max() / kPageTokens) {
    check::fail(name + ".num_pages", "fewer than 2^27 pages", std::to_string(cache.num_pages));
  }
  if (cache.block_tokens != args.table.block_tokens) {
    check::fail(name + ".block_tokens", "table.block_tokens (" + std::to_string(args.table.block_tokens) + ")",
                std::to_string(cache.block_tokens));
  }
}

/// What can be said of arguments whose contents lie on the device.
void check_args(const AttendArgs& args) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  check_cache("keys", args.keys, args);
  check_cache("values", args.values, args);
  if (args.values.dtype != args.keys.dtype) {
    check::fail("values.dtype", "that of the keys (" + std::string(dtype_name(args.keys.dtype)) + ") on the GPU",
                std::string(dtype_name(args.values.dtype)));
  }
  const std::int64_t requests = args.table.num_requests();
  if (requests > kMaxGrid) check::fail("table.context_tokens", "at most 65535 requests", std::to_string(requests));
  if (requests > 0 && args.table.context_tokens.data() == nullptr) {
    check::fail("table.context_tokens", "data", "a null pointer");
  }
  const auto& blocks = args.table.blocks;
  if (blocks.shape[0] != requests) {
    check::fail("table.blocks", std::to_string(requests) + " rows (one per context length)",
                std::to_string(blocks.shape[0]));
  }
  if (blocks.data == nullptr && requests > 0 && blocks.shape[1] > 0) check::fail("table.blocks", "data", "a null pointer");
  if (blocks.shape[1] * args.table.block_tokens > std::numeric_limits<std::int32_t>::max() / 2) {
    check::fail("table.blocks", "contexts of at most 2^30 tokens",
                std::to_string(blocks.shape[1] * args.table.block_tokens) + " tokens");
  }
  check::view<const float, 3>("queries", args.queries, {requests, geometry.query_heads, geometry.head_dim},
                              "[requests, query_heads, head_dim]");
  if (args.num_lists > kMaxGrid) check::fail("num_lists", "at most 65535", std::to_string(args.num_lists));
  if (args.selected.data == nullptr) {
    if (args.num_lists != geometry.kv_heads) {
      check::fail("num_lists", "kv_heads (" + std::to_string(geometry.kv_heads) + ") if nothing is listed",
                  std::to_string(args.num_lists));
    }
    return;
  }
  if (args.num_lists != geometry.kv_heads && args.num_lists != geometry.query_heads) {
    check::fail(
        "num_lists",
        "kv_heads (" + std::to_string(geometry.kv_heads) + ") or query_heads (" + std::to_string(geometry.query_heads) + ")",
        std::to_string(args.num_lists));
  }
  check::view<const SelectedPage, 3>("selected", args.selected, {requests, args.num_lists, -1},
                                     "[requests, lists, capacity]");
  if (args.selected.shape[2] > std::numeric_limits<std::int32_t>::max() / (2 * kPageTokens)) {
    check::fail("selected", "a capacity below 2^26", std::to_string(args.selected.shape[2]));
  }
  const auto& counts = args.num_selected;
  if (counts.data == nullptr || counts.shape[0] != requests || counts.shape[1] != args.num_lists) {
    check::fail("num_selected",
                "[requests, lists] = " + check::shape_text(std::array<std::int64_t, 2>{requests, args.num_lists}),
                counts.data == nullptr ? "no data" : check::shape_text(counts.shape));
  }
}

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Lays the partial states over a workspace, whose bytes it returns.
std::size_t lay_out(const Geometry& geometry, std::int64_t requests, int lists, std::byte* workspace,
                    stage::Partials& partials) {
  const std::int64_t rows = requests * lists;
  partials.cut = stage::make_cut(lists);
  partials.leaves_per_part = stage::leaves_per_part(rows);
  partials.parts_per_row = partials.cut.short_leaves / partials.leaves_per_part;
  const auto states = static_cast<std::size_t>(requests * geometry.query_heads * partials.parts_per_row);
  const std::size_t leaves_bytes = padded(static_cast<std::size_t>(rows) * sizeof(std::int32_t));
  const std::size_t sums_bytes = padded(states * 2 * sizeof(float));
  if (workspace != nullptr) {
    partials.leaves = reinterpret_cast<std::int32_t*>(workspace);
    partials.max_and_sum = reinterpret_cast<float*>(workspace + leaves_bytes);
    partials.out = reinterpret_cast<float*>(workspace + leaves_bytes + sums_bytes);
  }
  return leaves_bytes + sums_bytes + states * static_cast<std::size_t>(geometry.head_dim) * sizeof(float);
}

stage::Rows rows(const PagedCache& cache) {
  return {cache.data, cache.page_slots, cache.block_stride, cache.token_stride, cache.head_stride};
}

}  // namespace

std::size_t attend_workspace_bytes(const Geometry& geometry, int num_requests, int num_lists) noexcept {
  stage::Partials partials;
  return lay_out(geometry, num_requests, num_lists, nullptr, partials);
}

namespace {

/// Of at least one request. Contexts of at most `whole_tokens` tokens are attended whole.
stage::AttendParams attend_params(const AttendArgs& args, int whole_tokens = 0) {
  const bool dense = args.selected.data == nullptr;
  const auto& selected = args.selected;
  const auto& counts = args.num_selected;
  const auto& blocks = args.table.blocks;
  const Geometry& geometry = args.geometry;
  const int requests = args.table.num_requests();
  const int list_heads = geometry.query_heads / args.num_lists;
  const int heads_per_pass = stage::heads_per_pass(args.keys.dtype, geometry.head_dim, list_heads);
  stage::AttendParams params;
  params.queries = args.queries.data;
  params.query_request_stride = args.queries.stride[0];
  params.query_head_stride = args.queries.stride[1];
  params.keys = rows(args.keys);
  params.values = rows(args.values);
  params.blocks = blocks.data;
  params.block_request_stride = blocks.stride[0];
  params.block_entry_stride = blocks.stride[1];
  params.block_pages = stage::make_divider(static_cast<std::uint32_t>(args.table.block_tokens / kPageTokens));
  params.context_tokens = args.table.context_tokens.data();
  if (!dense) {
    params.selected = selected.data;
    params.selected_request_stride = selected.stride[0];
    params.selected_list_stride = selected.stride[1];
    params.capacity = static_cast<int>(selected.shape[2]);
    params.num_selected = counts.data;
    params.count_request_stride = counts.stride[0];
    params.count_list_stride = counts.stride[1];
  }
  params.num_requests = requests;
  params.num_lists = args.num_lists;
  params.lists_per_kv_head = stage::make_divider(static_cast<std::uint32_t>(args.num_lists / geometry.kv_heads));
  params.list_heads = list_heads;
  params.query_heads = geometry.query_heads;
  params.passes = stage::make_divider(static_cast<std::uint32_t>((list_heads + heads_per_pass - 1) / heads_per_pass));
  params.softmax_scale = geometry.softmax_scale;
  params.key_scale = args.keys.scale;
  params.value_scale = args.values.scale;
  lay_out(geometry, requests, args.num_lists, args.workspace.data(), params.partials);
  const std::int64_t table_tokens = blocks.shape[1] * args.table.block_tokens;
  const std::int64_t listed = args.most_row_tokens > 0 ? args.most_row_tokens : selected.shape[2] * kPageTokens;
  const std::int64_t row_tokens =
      dense ? table_tokens : std::min(table_tokens, std::max<std::int64_t>(listed, whole_tokens));
  params.most_tokens = static_cast<int>(row_tokens);
  params.listed_tokens = static_cast<int>(dense ? row_tokens : std::min(table_tokens, listed));
  params.whole_tokens = whole_tokens;
  params.leaf_blocks = std::int64_t{requests} * args.num_lists <= stage::kVeryFewRows &&
                       params.partials.leaves_per_part == 1 &&
                       row_tokens <= std::int64_t{stage::kLeafTokens} * params.partials.cut.short_leaves;
  // One part at least: it says that the row is empty.
  params.partials.parts =
      (std::max(1, stage::most_leaves(row_tokens, params.partials.cut)) + params.partials.leaves_per_part - 1) /
      params.partials.leaves_per_part;
  return params;
}

}  // namespace

void check_attend(const AttendArgs& args, SoftmaxStates states) {
  check_args(args);
  const Geometry& geometry = args.geometry;
  const int requests = args.table.num_requests();
  check::view<float, 3>("states", states, {requests, geometry.query_heads, 2 + geometry.head_dim},
                        "[requests, query_heads, 2 + head_dim]");
  check::workspace(args.workspace, attend_workspace_bytes(geometry, requests, args.num_lists));
}

void attend(const AttendArgs& args, SoftmaxStates states, bool accumulate, Stream stream) {
  check_attend(args, states);
  if (args.table.num_requests() == 0) return;
  const stage::AttendParams params = attend_params(args);
  stage::launch_attend(params, args.keys.dtype, args.geometry.head_dim, stream);
  stage::launch_merge(params, args.geometry.head_dim, {states, accumulate, {}}, {}, stream);
}

void attend(const AttendArgs& args, SoftmaxStates states, bool accumulate, const HeadRows& out, Stream stream) {
  check_attend(args, states);
  stage::check_out(states, out);
  if (args.table.num_requests() == 0) return;
  const stage::AttendParams params = attend_params(args);
  stage::launch_attend(params, args.keys.dtype, args.geometry.head_dim, stream);
  stage::launch_merge(params, args.geometry.head_dim, {states, accumulate, out}, {}, stream);
}

namespace {

void attend_into(const AttendArgs& args, const CompletionArgs* completion, int whole_tokens, SoftmaxStates states,
                 const HeadRows& out, Stream stream) {
  check_attend(args, states);
  stage::check_out(states, out);
  complete_kernels::Launches completes;
  if (completion != nullptr) completes = complete_kernels::launches(*completion, states);
  if (args.table.num_requests() == 0) return;
  const stage::AttendParams params = attend_params(args, whole_tokens);
  stage::launch_attend(params, args.keys.dtype, args.geometry.head_dim, stream);
  if (completes.merge.parts.values == nullptr) {
    return stage::launch_merge(params, args.geometry.head_dim, {states, false, out}, {}, stream);
  }
  completes.sums.beside_attention = true;
  completes.sums.whole_tokens = whole_tokens;
  complete_kernels::launch(completes.format, completes.sums, stream);
  if (params.partials.leaves_per_part == 1) {
    stage::launch_merge(params, args.geometry.head_dim, {states, false, out}, completes.merge, stream);
    return;
  }
  stage::launch_merge(params, args.geometry.head_dim, {states, false, {}}, {}, stream);
  complete_kernels::launch(completes.merge, states, out, stream);
}

}  // namespace

void attend_and_complete(const AttendArgs& args, const CompletionArgs& completion, SoftmaxStates states, const HeadRows& out,
                         Stream stream) {
  attend_into(args, &completion, 0, states, out, stream);
}
void attend_in_step(const AttendArgs& args, int whole_tokens, const CompletionArgs* completion, SoftmaxStates states,
                    const HeadRows& out, Stream stream) {
  attend_into(args, completion, whole_tokens, states, out, stream);
}

void finish(SoftmaxStates states, const HeadRows& out, Stream stream) {
  stage::check_out(states, out);
  if (out.shape[0] == 0 || out.shape[1] == 0) return;
  stage::launch_finish(states, out, stream);
}

void check_out(const std::array<std::int64_t, 3>& shape, const HeadRows& out) {
  if (out.data == nullptr || out.shape != shape) {
    check::fail("out", "[requests, query_heads, head_dim] = " + check::shape_text(shape),
                out.data == nullptr ? "no data" : check::shape_text(out.shape));
  }
  if (out.dtype == DType::kQ8_0 || out.dtype == DType::kE4M3) {
    check::fail("out.dtype", "f32, f16 or bf16", out.dtype == DType::kQ8_0 ? "q8_0" : "e4m3");
  }
}

namespace attend_stage {

void check_out(SoftmaxStates states, const HeadRows& out) {
  check::view<float, 3>("states", states, {-1, -1, -1}, "[requests, query_heads, 2 + head_dim]");
  cuda::check_out({states.shape[0], states.shape[1], states.shape[2] - 2}, out);
  if (out.shape[0] > kMaxGrid) check::fail("states", "at most 65535 requests", std::to_string(out.shape[0]));
}

void launch_attend(const AttendParams& params, DType dtype, int head_dim, Stream stream) {
  switch (head_dim) {
    case 64:
      return launch_instance<64>(params, dtype, stream);
    case 80:
      return launch_instance<80>(params, dtype, stream);
    case 96:
      return launch_instance<96>(params, dtype, stream);
    case 128:
      return launch_instance<128>(params, dtype, stream);
    case 192:
      return launch_instance<192>(params, dtype, stream);
    case 256:
      return launch_instance<256>(params, dtype, stream);
    default:
      check::head_dim(head_dim);
  }
}

}  // namespace attend_stage
}  // namespace locks::cuda
