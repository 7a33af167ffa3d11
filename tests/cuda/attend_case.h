// Calls of attention on the host and, with the same contents, on the device; and the error that the latter may have.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "support/data.h"

namespace locks::test {

enum class Lists { kDense, kPerKvHead, kPerQueryHead };

struct AttendShape {
  DType dtype = DType::kF16;
  int head_dim = 64;
  int kv_heads = 2;
  int group = 3;
  int block_tokens = 16;
  Layout layout = Layout::kTokenMajor;
  Content content = Content::kNormal;
  std::vector<std::int32_t> lengths{0, 1, 15, 16, 17, 170};
  std::uint64_t seed = 1;
};

/// A call with everything that it borrows, on the host.
struct AttendCase {
  AttendShape shape;
  Geometry geometry;
  CacheData keys;
  CacheData values;
  TableData table;
  std::vector<float> queries;
  std::vector<SelectedPage> selected;
  std::vector<std::int32_t> num_selected;
  AttendArgs args;

  explicit AttendCase(const AttendShape& wanted, Lists lists = Lists::kDense)
      : shape(wanted),
        geometry{shape.head_dim, shape.kv_heads, shape.kv_heads * shape.group,
                 1.0F / std::sqrt(static_cast<float>(shape.head_dim))},
        keys(shape.dtype, shape.layout, num_pages(shape), shape.kv_heads, shape.head_dim, shape.block_tokens, shape.content,
             shape.seed),
        values(shape.dtype, shape.layout, num_pages(shape), shape.kv_heads, shape.head_dim, shape.block_tokens,
               Content::kNormal, shape.seed + 1),
        table(shape.lengths, num_pages(shape), shape.block_tokens, shape.seed + 2),
        queries(normal_floats(shape.lengths.size() * static_cast<std::size_t>(geometry.query_heads * (shape.head_dim + 5)),
                              shape.seed + 3)) {
    args.geometry = geometry;
    args.queries = contiguous<const float>(queries.data(), shape.lengths.size(), geometry.query_heads, shape.head_dim + 5);
    args.queries.shape[2] = shape.head_dim;  // rows with a gap behind them
    args.keys = keys.view();
    args.values = values.view();
    args.table = table.table;
    args.num_lists = lists == Lists::kPerQueryHead ? geometry.query_heads : geometry.kv_heads;
    if (lists != Lists::kDense) list_random(shape.seed + 4);
  }

  /// Some pages of each request, with masks of all kinds (empty ones too), never beyond the context.
  void list_random(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const int pages = *std::max_element(table.context_tokens.begin(), table.context_tokens.end()) / kPageTokens + 1;
    selected.assign(static_cast<std::size_t>(args.table.num_requests() * args.num_lists * pages), {});
    num_selected.assign(static_cast<std::size_t>(args.table.num_requests() * args.num_lists), 0);
    for (std::size_t row = 0; row < num_selected.size(); ++row) {
      const int tokens = table.context_tokens[row / static_cast<std::size_t>(args.num_lists)];
      for (int page = 0; page * kPageTokens < tokens; ++page) {
        if (random() % 4 == 0) continue;
        std::uint16_t mask = kWholePage;
        if (random() % 2 == 0) mask = static_cast<std::uint16_t>(random() & (random() % 2 == 0 ? random() : 0xF0F0));
        const int left = tokens - page * kPageTokens;
        if (left < kPageTokens) mask &= static_cast<std::uint16_t>((1 << left) - 1);
        selected[row * static_cast<std::size_t>(pages) + static_cast<std::size_t>(num_selected[row]++)] = {page, mask};
      }
    }
    args.selected = contiguous<const SelectedPage>(selected.data(), args.table.num_requests(), args.num_lists, pages);
    args.num_selected = contiguous<const std::int32_t>(num_selected.data(), args.table.num_requests(), args.num_lists);
  }

  static int num_pages(const AttendShape& shape) {
    int pages = 0;
    for (const int tokens : shape.lengths)
      pages += (tokens + shape.block_tokens - 1) / shape.block_tokens * (shape.block_tokens / 16);
    return pages + shape.block_tokens / 16;
  }

  /// Calls visit(page, token) for every token that the head attends.
  template <class Visit>
  void for_each_token(int request, int head, const Visit& visit) const {
    const int list = head * args.num_lists / geometry.query_heads;
    const bool dense = args.selected.data == nullptr;
    const int tokens = table.context_tokens[static_cast<std::size_t>(request)];
    const int entries = dense ? (tokens + kPageTokens - 1) / kPageTokens : args.num_selected(request, list);
    for (int i = 0; i < entries; ++i) {
      const SelectedPage entry = dense ? SelectedPage{i, kWholePage} : args.selected(request, list, i);
      for (int token = 0; token < kPageTokens && entry.page * kPageTokens + token < tokens; ++token) {
        if ((entry.mask >> token & 1) != 0) visit(table.table.page(request, entry.page), token);
      }
    }
  }

  [[nodiscard]] std::size_t num_rows() const {
    return static_cast<std::size_t>(args.table.num_requests() * geometry.query_heads);
  }
};

/// Outputs of the definition.
inline std::vector<float> reference_outputs(const AttendCase& c) {
  const int requests = c.args.table.num_requests();
  const int heads = c.geometry.query_heads;
  const int head_dim = c.geometry.head_dim;
  Workspace workspace(attend_workspace_bytes(c.geometry, requests, c.args.num_lists, 1));
  AttendArgs args = c.args;
  args.workspace = workspace.span();
  if (c.shape.dtype != DType::kE4M3) check_attend(args);  // the reference reads it, the CPU's door refuses it
  attend(args, Team{0, 1}, Target::kReference);
  std::vector<float> states(c.num_rows() * static_cast<std::size_t>(2 + head_dim), 0.0F);
  for (std::size_t i = 0; i < states.size(); i += static_cast<std::size_t>(2 + head_dim)) {
    states[i] = -std::numeric_limits<float>::infinity();
  }
  const SoftmaxStates view = contiguous(states.data(), requests, heads, 2 + head_dim);
  std::vector<float> out(c.num_rows() * static_cast<std::size_t>(head_dim));
  for (int request = 0; request < requests; ++request) {
    for (int list = 0; list < c.args.num_lists; ++list) merge_partials(args, request, list, 1, view);
    for (int head = 0; head < heads; ++head) {
      const auto first = static_cast<std::size_t>((request * heads + head) * head_dim);
      finish(view, request, head, std::span(out).subspan(first, static_cast<std::size_t>(head_dim)));
    }
  }
  return out;
}

/// What the GPU may lose, with e = 2^-23 (tensor cores cut sums off where fp32 rounds):
///   a logit     (products that are not zero + 10) e scale sum |q k|: the sum; the parts of an f16's query leave e of it
///   a weight    twice that (its own and the max's), |l - max| 2 e for the differences (telescoping over moves of the max),
///               and 2 e for exp, once and at each of the at most (tokens / 64 + 28) moves and folds
///   a sum       16 e within a tile, and e at each of those folds
/// and, absolutely, for f16 and e4m3 2^-40 of the largest weight for each, for what its last part leaves; and what is below
/// 2^-126.
inline std::vector<double> error_bounds(const AttendCase& c) {
  constexpr double kE = 0x1p-23;
  std::vector<double> bounds;
  const int head_dim = c.geometry.head_dim;
  for (int request = 0; request < c.args.table.num_requests(); ++request) {
    for (int head = 0; head < c.geometry.query_heads; ++head) {
      const int kv_head = head / c.geometry.group_size();
      std::vector<double> logits;
      double logit_error = 0.0;
      c.for_each_token(request, head, [&](std::int64_t page, int token) {
        double dot = 0.0;
        double size = 0.0;
        int terms = 10;
        for (int dim = 0; dim < head_dim; ++dim) {
          const double product = double{c.args.queries(request, head, dim)} * c.keys.value(page, token, kv_head, dim);
          dot += product;
          size += std::abs(product);
          terms += product != 0.0;
        }
        logits.push_back(dot * c.args.geometry.softmax_scale);
        logit_error = std::max(logit_error, terms * kE * size * c.args.geometry.softmax_scale);
      });
      const double max = logits.empty() ? 0.0 : *std::max_element(logits.begin(), logits.end());
      const double folds = static_cast<double>(logits.size()) / 64 + 28;
      const double lost = (c.shape.dtype == DType::kF16 || c.shape.dtype == DType::kE4M3 ? 0x1p-40 : 0.0) + 0x1p-126;
      double sum = 0.0;
      double sum_error = 0.0;
      std::vector<double> out(static_cast<std::size_t>(head_dim));
      std::vector<double> error(static_cast<std::size_t>(head_dim));
      std::size_t i = 0;
      c.for_each_token(request, head, [&](std::int64_t page, int token) {
        const double logit = logits[i++];
        const double weight = std::exp(logit - max);
        const double relative = 2 * logit_error + ((max - logit) * 2 + 2 + 16 + 3 * folds) * kE;
        sum += weight;
        sum_error += weight * relative + lost;
        for (int dim = 0; dim < head_dim; ++dim) {
          const double value = c.values.value(page, token, kv_head, dim);
          out[static_cast<std::size_t>(dim)] += weight * value;
          error[static_cast<std::size_t>(dim)] += (weight * relative + lost) * std::abs(value);
        }
      });
      for (std::size_t dim = 0; dim < out.size(); ++dim) {
        bounds.push_back(logits.empty() ? 0.0 : (error[dim] + std::abs(out[dim]) / sum * sum_error) / sum + 1e-37);
      }
    }
  }
  return bounds;
}

/// The cache on the device, with `gap` times 16 bytes of 0xFF behind every row, token and block.
class DeviceCache {
 public:
  DeviceCache(const CacheData& cache, int kv_heads, int head_dim, int gap) : view_(cache.view()) {
    std::vector<std::byte> bytes(cache.bytes().begin(), cache.bytes().end());
    if (gap > 0) {
      const PagedCache from = cache.view();
      const std::int64_t row = row_bytes(from.dtype, head_dim);
      view_.head_stride = row + 16 * gap;
      view_.token_stride = view_.head_stride * kv_heads + 16 * gap;
      view_.block_stride = view_.token_stride * from.block_tokens + 16 * gap;
      bytes.assign(static_cast<std::size_t>(view_.block_stride * from.num_pages * kPageTokens / from.block_tokens),
                   std::byte{0xFF});
      view_.data = bytes.data();
      for (std::int64_t i = 0; i < from.num_pages * kPageTokens * kv_heads; ++i) {
        const std::int64_t page = i / kv_heads / kPageTokens;
        const auto token = static_cast<int>(i / kv_heads % kPageTokens);
        const auto head = static_cast<int>(i % kv_heads);
        std::copy_n(from.token(page, token, head), row, const_cast<std::byte*>(view_.token(page, token, head)));
      }
    }
    bytes_.emplace(std::span<const std::byte>(bytes));
    slots_.emplace(cache.slots());
    scale_.emplace(cache.scale());
    view_.data = bytes_->data();
    if (view_.scale != nullptr) view_.scale = scale_->data();
    if (view_.page_slots != nullptr) view_.page_slots = slots_->data();
  }
  [[nodiscard]] const PagedCache& view() const { return view_; }

 private:
  std::optional<DeviceArray<std::byte>> bytes_;
  std::optional<DeviceArray<std::int32_t>> slots_;
  std::optional<DeviceArray<float>> scale_;
  PagedCache view_;
};

/// The same call on the device.
struct DeviceCase {
  const AttendCase& host;
  DeviceCache keys;
  DeviceCache values;
  DeviceArray<std::int32_t> blocks;
  DeviceArray<std::int32_t> context_tokens;
  DeviceArray<float> queries;
  DeviceArray<SelectedPage> selected;
  DeviceArray<std::int32_t> num_selected;
  DeviceArray<std::byte> workspace;
  DeviceArray<float> states;
  DeviceArray<float> out;
  AttendArgs args;
  SoftmaxStates state_view;
  View<float, 3> out_view;

  explicit DeviceCase(const AttendCase& c, int gap = 0)
      : host(c),
        keys(c.keys, c.geometry.kv_heads, c.geometry.head_dim, gap),
        values(c.values, c.geometry.kv_heads, c.geometry.head_dim, 2 * gap),
        blocks(c.table.blocks),
        context_tokens(c.table.context_tokens),
        queries(c.queries),
        selected(c.selected),
        num_selected(c.num_selected),
        workspace(cuda::attend_workspace_bytes(c.geometry, c.args.table.num_requests(), c.args.num_lists)),
        states(c.num_rows() * static_cast<std::size_t>(2 + c.geometry.head_dim)),
        out(c.num_rows() * static_cast<std::size_t>(c.geometry.head_dim)),
        args(c.args) {
    args.keys = keys.view();
    args.values = values.view();
    args.table.blocks.data = blocks.data();
    args.table.context_tokens = context_tokens.span();
    args.queries.data = queries.data();
    if (args.selected.data != nullptr) {
      args.selected.data = selected.data();
      args.num_selected.data = num_selected.data();
    }
    args.workspace = workspace.span();
    const int requests = c.args.table.num_requests();
    state_view = contiguous(states.data(), requests, c.geometry.query_heads, 2 + c.geometry.head_dim);
    out_view = contiguous(out.data(), requests, c.geometry.query_heads, c.geometry.head_dim);
  }

  [[nodiscard]] std::vector<float> run_states() {
    cuda::attend(args, state_view, false, nullptr);
    return states.read();
  }
  [[nodiscard]] std::vector<float> run() {
    cuda::attend(args, state_view, false, nullptr);
    cuda::finish(state_view, out_view, nullptr);
    return out.read();
  }
};

inline void expect_close(const std::vector<float>& got, const AttendCase& c, const std::string& what) {
  const std::vector<float> want = reference_outputs(c);
  const std::vector<double> bounds = error_bounds(c);
  ASSERT_EQ(got.size(), want.size()) << what;
  std::size_t worst = 0;
  double worst_ratio = -1.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(double{got[i]} - want[i]);
    const double ratio = off == 0.0 ? 0.0 : std::isnan(off) ? 1e300 : off / bounds[i];
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  EXPECT_LE(worst_ratio, 1.0) << what << ": worst index " << worst << ", got " << got[worst] << ", want " << want[worst]
                              << ", bound " << bounds[worst];
}

}  // namespace locks::test
