// The door of the stage on the GPU: checks, and the arguments of the kernel made of the caller's.
#include <algorithm>
#include <string>

#include "cpu/check.h"
#include "locks/cuda.h"
#include "locks/rotation.h"
#include "summarize/records.h"
#include "summarize/summarize_launch.h"

namespace locks::cuda {
namespace {

using summarize_stage::Args;
using summarize_stage::CacheRows;

/// Page numbers have 32 bits, slots of the pages behind them do not count.
constexpr std::int64_t kMostPages = std::int64_t{1} << 31;

CacheRows cache_rows(const std::string& argument, const PagedCache& cache) {
  if (cache.dtype == DType::kQ8_0) check::fail(argument + ".dtype", "f32, f16, bf16 or e4m3 (on the GPU)", "q8_0");
  CacheRows rows;
  rows.data = cache.data;
  rows.block_stride = cache.block_stride;
  rows.token_stride = cache.token_stride;
  rows.head_stride = cache.head_stride;
  rows.page_slots = cache.page_slots;
  rows.pages_per_block = static_cast<unsigned>(cache.block_tokens / kPageTokens);
  rows.dtype = cache.dtype;
  rows.scale = cache.scale;
  constexpr int kLoadBytes = 16;
  const auto is_aligned = [](std::int64_t stride) { return stride % kLoadBytes == 0; };
  rows.aligned = reinterpret_cast<std::uintptr_t>(cache.data) % kLoadBytes == 0 && is_aligned(cache.token_stride) &&
                 is_aligned(cache.head_stride) && (cache.page_slots != nullptr || is_aligned(cache.block_stride));
  return rows;
}

/// Everything but what is summarised. `args.pages` lies on the device and is not read here.
Args checked(const SummarizeArgs& args) {
  SummarizeArgs without_pages = args;
  without_pages.pages = {};
  locks::summarize_stage::check_gpu_args(without_pages);
  const SummaryFormat& format = *args.out.format;
  Args out;
  out.caches[0] = cache_rows("keys", args.keys);
  if (args.out.value_data != nullptr) out.caches[1] = cache_rows("values", *args.values);
  out.num_pages = std::min({args.keys.num_pages, args.out.num_pages, kMostPages});
  out.kv_heads = args.kv_heads;
  out.format_id = static_cast<int>(format.id);
  out.rank = format.rank;
  out.rotated = format.rotated;
  out.basis_has_scales = format.basis_has_scales;
  out.refit = format.refit;
  out.coefficient_bits = format.coefficient_bits;
  for (int quad = 0; quad < format.num_quads(); ++quad) {
    if (format.quad_bits[static_cast<std::size_t>(quad)] == 4) out.four_bit_quads |= 1U << quad;
  }
  out.step4 = basis_step(4, args.head_dim);
  out.step2 = basis_step(2, args.head_dim);
  out.at = record_layout(format, args.head_dim);
  out.value_at = value_layout(format, args.head_dim);
  out.mean_at[0] = out.at.mean_at;
  out.mean_at[1] = out.value_at.mean_at;
  out.mean_scale_at[0] = out.at.mean_scale_at;
  out.mean_scale_at[1] = out.value_at.mean_scale_at;
  out.targets[0] = {args.out.data, args.out.page_stride, args.out.head_stride, out.at.record_bytes};
  out.targets[1] = {args.out.value_data, args.out.value_page_stride, args.out.value_head_stride, out.value_at.record_bytes};
  for (int dim = 0; dim < kMaxHeadDim; ++dim) {
    if (rotation_sign(dim) < 0.0F) out.signs.negative[dim / 32] |= 1U << dim % 32;
  }
  return out;
}

void launch(const Args& args, int head_dim, Stream stream) {
  switch (head_dim) {
    case 64:
      return summarize_stage::launch<64>(args, stream);
    case 80:
      return summarize_stage::launch<80>(args, stream);
    case 96:
      return summarize_stage::launch<96>(args, stream);
    case 128:
      return summarize_stage::launch<128>(args, stream);
    case 192:
      return summarize_stage::launch<192>(args, stream);
    default:
      return summarize_stage::launch<256>(args, stream);
  }
}

/// Items that a grid can count.
unsigned items(const std::string& argument, std::size_t count, int kv_heads) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - 4 * 1024;
  const auto items = static_cast<std::int64_t>(count) * kv_heads;
  if (items > kMost) {
    check::fail(argument, "at most " + std::to_string(kMost / kv_heads) + " at once", std::to_string(count));
  }
  return static_cast<unsigned>(items);
}

}  // namespace

void summarize(const SummarizeArgs& args, SummarizeReport* report, Stream stream) {
  Args out = checked(args);
  if (!args.pages.empty() && args.pages.data() == nullptr) check::fail("pages", "device memory", "a null pointer");
  out.pages = args.pages.data();
  out.items = items("pages", args.pages.size(), args.kv_heads);
  out.report = report;
  launch(out, args.head_dim, stream);
}

void summarize_filled(const SummarizeArgs& args, std::span<const std::int64_t> slots, SummarizeReport* report,
                      Stream stream) {
  Args out = checked(args);
  if (!slots.empty() && slots.data() == nullptr) check::fail("slots", "device memory", "a null pointer");
  out.slots = slots.data();
  out.items = items("slots", slots.size(), args.kv_heads);
  out.report = report;
  launch(out, args.head_dim, stream);
}

}  // namespace locks::cuda
