// The checks at the door: one readable line that names the argument, what was expected and what came.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks::check {

[[noreturn]] void fail(std::string_view argument, const std::string& expected, const std::string& got);

void geometry(const Geometry& geometry);
void head_dim(int head_dim);
void workspace(std::span<const std::byte> workspace, std::size_t needed);
/// `cpu_cache` refuses besides what only the GPU reads.
void cache(std::string_view argument, const PagedCache& cache, int head_dim, int kv_heads);
void cpu_cache(std::string_view argument, const PagedCache& cache, int head_dim, int kv_heads);
void store(std::string_view argument, const SummaryStore& store, int head_dim, int kv_heads);
/// Shape of the table and context lengths; every block number too if `every_block`.
void table(const PageTable& table, std::int64_t num_pages, bool every_block);

std::string shape_text(std::span<const std::int64_t> shape);

/// A view must have this shape; -1 takes anything. Its last axis must be contiguous.
template <class T, int N>
void view(std::string_view argument, const View<T, N>& view,
          const std::type_identity_t<std::array<std::int64_t, N>>& expected, std::string_view axes) {
  bool fits = view.data != nullptr && view.stride[N - 1] == 1;
  for (int axis = 0; axis < N; ++axis) fits = fits && (expected[axis] < 0 || view.shape[axis] == expected[axis]);
  if (fits) return;
  fail(
      argument, std::string(axes) + " = " + shape_text(expected) + " with a contiguous last axis",
      view.data == nullptr ? "no data" : shape_text(view.shape) + " with last stride " + std::to_string(view.stride[N - 1]));
}

}  // namespace locks::check
