// The door of Quest's bounds and scores on the GPU.
#include <algorithm>
#include <limits>
#include <string>

#include "cuda/door.h"
#include "selectors/kernels_cuda.h"

namespace locks::cuda {
namespace {

std::int64_t bound_row_bytes(DType dtype, int head_dim) noexcept { return 2 * row_bytes(dtype, head_dim); }

rivals::Bounds checked(const BoundArgs& args, std::size_t items, const char* argument) {
  check::head_dim(args.head_dim);
  door::require(args.kv_heads >= 1, "kv_heads", "at least 1", std::to_string(args.kv_heads));
  rivals::check_keys(args.keys, args.head_dim, args.kv_heads);
  rivals::check_bounds("out", args.out, args.head_dim, args.kv_heads);
  door::require(args.out.dtype == args.keys.dtype, "out.dtype",
                "that of the keys (" + std::string(dtype_name(args.keys.dtype)) + ")",
                std::string(dtype_name(args.out.dtype)));
  door::require(items <= std::numeric_limits<std::int32_t>::max(), argument, "fewer than 2^31 at once",
                std::to_string(items));
  return {
      args.keys,     nullptr, nullptr, static_cast<std::int64_t>(items), std::min(args.keys.num_pages, args.out.num_pages),
      args.kv_heads, args.out};
}

}  // namespace

std::int64_t bounds_bytes(DType dtype, int head_dim, int kv_heads, std::int64_t num_pages) noexcept {
  return num_pages * kv_heads * bound_row_bytes(dtype, head_dim);
}

PageBounds make_bounds(DType dtype, int head_dim, int kv_heads, std::int64_t num_pages, std::byte* memory) noexcept {
  const std::int64_t head_stride = bound_row_bytes(dtype, head_dim);
  return {memory, dtype, head_dim, num_pages, head_stride * kv_heads, head_stride};
}

void bound_pages(const BoundArgs& args, Stream stream) {
  rivals::Bounds out = checked(args, args.pages.size(), "pages");
  if (args.pages.empty()) return;
  door::data("pages", args.pages.data());
  out.pages = args.pages.data();
  rivals::launch(out, stream);
}

void bound_filled(const BoundArgs& args, std::span<const std::int64_t> slots, Stream stream) {
  rivals::Bounds out = checked(args, slots.size(), "slots");
  if (slots.empty()) return;
  door::data("slots", slots.data());
  out.slots = slots.data();
  rivals::launch(out, stream);
}

namespace rivals {

void check_keys(const PagedCache& keys, int head_dim, int kv_heads) {
  check::cache("keys", keys, head_dim, kv_heads);
  door::require(keys.dtype != DType::kQ8_0, "keys.dtype", "f32, f16, bf16 or e4m3 on the GPU", "q8_0");
  constexpr int kLoadBytes = 16;
  door::require(reinterpret_cast<std::uintptr_t>(keys.data) % kLoadBytes == 0, "keys", "data aligned to 16 bytes",
                "an address that is not");
  const auto aligned = [&](const char* stride, std::int64_t value, bool used) {
    door::require(!used || value % kLoadBytes == 0, stride, "a multiple of 16 bytes", std::to_string(value));
  };
  aligned("keys.token_stride", keys.token_stride, true);
  aligned("keys.head_stride", keys.head_stride, kv_heads > 1);
  aligned("keys.block_stride", keys.block_stride, keys.page_slots == nullptr);
}

void check_bounds(const std::string& argument, const PageBounds& bounds, int head_dim, int kv_heads) {
  door::require(bounds.dtype != DType::kQ8_0 && bounds.dtype <= DType::kE4M3, argument + ".dtype", "f32, f16, bf16 or e4m3",
                std::to_string(static_cast<int>(bounds.dtype)));
  door::require(bounds.head_dim == head_dim, argument + ".head_dim", std::to_string(head_dim),
                std::to_string(bounds.head_dim));
  const auto bytes = static_cast<int>(bound_row_bytes(bounds.dtype, head_dim));
  (void)door::record_array(argument, bounds.data, bounds.page_stride, bounds.head_stride, kv_heads, bytes);
  door::require(bounds.num_pages <= 1 || bounds.page_stride >= bytes, argument + ".page_stride",
                "at least " + std::to_string(bytes) + " bytes (two rows)", std::to_string(bounds.page_stride));
}

void score_bounds(const BoundScoreArgs& args, const ScoredPages& scored, Stream stream) {
  check::geometry(args.geometry);
  const int requests = args.table.num_requests();
  if (requests == 0 || args.scores.shape[2] == 0 || args.bounds.num_pages == 0) return;
  check_bounds("bounds", args.bounds, args.geometry.head_dim, args.geometry.kv_heads);
  door::require(args.key_scale == nullptr || args.bounds.dtype == DType::kE4M3, "key_scale",
                "none, as only e4m3 has a scale", "one for " + std::string(dtype_name(args.bounds.dtype)));
  (void)door::queries(args.queries, args.geometry, requests);
  door::require(args.combine <= GroupCombine::kPerQueryHead, "combine", "kSum, kMax or kPerQueryHead",
                std::to_string(static_cast<int>(args.combine)));
  const bool own_lists = args.combine == GroupCombine::kPerQueryHead;
  door::at_least("scores", args.scores, {requests, own_lists ? args.geometry.query_heads : args.geometry.kv_heads, 0});
  BoundScores scores{args, door::table(args.table), scored, static_cast<int>(args.scores.shape[2]), 0};
  for (; scores.first_head < args.geometry.group_size(); scores.first_head += kHeadsAtOnce) launch(scores, stream);
}

}  // namespace rivals

void score_bounds(const BoundScoreArgs& args, Stream stream) { rivals::score_bounds(args, {}, stream); }

}  // namespace locks::cuda
