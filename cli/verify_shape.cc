#include "verify_shape.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include <fmt/format.h>

namespace locks::cli {
namespace {

constexpr double kEps = 0x1p-24;

constexpr std::array kLayoutNames{"token-major", "head-major", "gaps", "scattered"};
constexpr std::array kContentNames{"normal", "low-rank", "constant", "zero", "huge", "denormal", "one-outlier"};

}  // namespace

CaseShape::CaseShape(std::uint64_t seed, std::uint64_t number) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)};
  std::mt19937_64 random(mixed);
  // Not a standard distribution: those differ between libraries.
  const auto below = [&random](int count) { return static_cast<int>(random() % static_cast<std::uint64_t>(count)); };
  const auto one_of = [&below](const auto& choices) {
    return choices[static_cast<std::size_t>(below(static_cast<int>(std::size(choices))))];
  };

  const int head_dim = one_of(std::array{64, 80, 96, 128, 192, 256});
  const int kv_heads = 1 + below(3);
  const int group = one_of(std::array{1, 2, 3, 4, 5, 7, 8, 12});
  geometry = {head_dim, kv_heads, kv_heads * group,
              one_of(std::array{1.0F, 1.0F, 0.25F, 3.0F}) / std::sqrt(static_cast<float>(head_dim))};
  const auto dtype = [&] {
    const DType chosen = one_of(std::array{DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0});
    return chosen == DType::kQ8_0 && head_dim % kQ8BlockElements != 0 ? DType::kF16 : chosen;
  };
  key_type = dtype();
  value_type = below(4) == 0 ? dtype() : key_type;
  format = one_of(summary_formats());
  layout = static_cast<test::Layout>(below(static_cast<int>(kLayoutNames.size())));
  content =
      below(2) == 0 ? test::Content::kNormal : static_cast<test::Content>(below(static_cast<int>(kContentNames.size())));
  block_tokens = layout == test::Layout::kScattered ? kPageTokens : one_of(std::array{16, 32, 64});
  const int num_requests = 1 + below(3);
  for (int request = 0; request < num_requests; ++request) {
    const int length = one_of(std::array{17, 100, 400, 900});
    lengths.push_back(1 + below(length));
    num_pages += (lengths.back() + block_tokens - 1) / block_tokens * (block_tokens / kPageTokens);
  }
  num_pages += block_tokens / kPageTokens * below(3);
  num_pages = std::max(num_pages, block_tokens / kPageTokens);
  config.format = format;
  config.min_context_tokens = one_of(std::array{0, 0, 200});
  SelectConfig& select = config.select;
  select.sink_tokens = one_of(std::array{0, 4, 16, 32});
  select.recent_tokens = one_of(std::array{0, 1, 16, 64});
  select.budget_tokens = 4 * kPageTokens + select.recent_tokens + one_of(std::array{0, 1, 30, 100, 400, 4000});
  select.part_tokens = one_of(std::array{1, 2, 4, 8, 16});
  select.completion_fraction = one_of(std::array{0.0F, 0.1F, 0.5F});
  select.combine = static_cast<GroupCombine>(below(3));
  data_seed = random();
}

int CaseShape::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

std::string CaseShape::text() const {
  const SelectConfig& select = config.select;
  return fmt::format(
      "d {}, {} x {} heads, scale {:.3g}, keys {} {} {}, values {}, blocks of {}, tokens {}, {}, budget {} sink {} recent "
      "{} "
      "parts {} completion {} combine {}",
      geometry.head_dim, geometry.kv_heads, geometry.group_size(), geometry.softmax_scale,
      kContentNames[static_cast<std::size_t>(content)], dtype_name(key_type), kLayoutNames[static_cast<std::size_t>(layout)],
      dtype_name(value_type), block_tokens, fmt::join(lengths, "+"), format->name, select.budget_tokens, select.sink_tokens,
      select.recent_tokens, select.part_tokens, select.completion_fraction, static_cast<int>(select.combine));
}

CaseData::CaseData(const CaseShape& shape)
    : keys(shape.key_type, shape.layout, shape.num_pages, shape.geometry.kv_heads, shape.geometry.head_dim,
           shape.block_tokens, shape.content, shape.data_seed),
      values(shape.value_type, shape.layout, shape.num_pages, shape.geometry.kv_heads, shape.geometry.head_dim,
             shape.block_tokens, test::Content::kNormal, shape.data_seed + 1),
      table(shape.lengths, shape.num_pages, shape.block_tokens, shape.data_seed + 2),
      queries(test::normal_floats(shape.lengths.size() * static_cast<std::size_t>(shape.geometry.query_heads) *
                                      static_cast<std::size_t>(shape.geometry.head_dim),
                                  shape.data_seed + 3)),
      summaries(*shape.format, shape.geometry.head_dim, shape.geometry.kv_heads, keys.view(), &values.view()) {}

View<const float, 3> CaseData::query_view(const Geometry& geometry) const {
  return contiguous<const float>(queries.data(), table.context_tokens.size(), geometry.query_heads, geometry.head_dim);
}

AttendBound attend_bound(const CaseShape& shape, const CaseData& data, int request, int query_head, int tokens) {
  const Geometry& geometry = shape.geometry;
  const int kv_head = query_head / geometry.group_size();
  const float* query = data.query_view(geometry).at(request, query_head);
  double largest_logit = 0.0;
  AttendBound bound;
  for (int index = 0; index < tokens; ++index) {
    const std::int64_t page = data.table.table.page(request, index / kPageTokens);
    double size = 0.0;
    for (int dim = 0; dim < geometry.head_dim; ++dim) {
      size += std::abs(static_cast<double>(query[dim]) * data.keys.value(page, index % kPageTokens, kv_head, dim));
      const double value = data.values.value(page, index % kPageTokens, kv_head, dim);
      bound.largest_value = std::max(bound.largest_value, std::abs(value));
    }
    largest_logit = std::max(largest_logit, size * geometry.softmax_scale);
  }
  const double relative = 2 * (geometry.head_dim + 4) * kEps * largest_logit + 2 * largest_logit * kEps + 2e-7 +
                          (static_cast<double>(tokens) / kPageTokens + 24) * kEps;
  // A denormal result may lose bits: 1e-37 more.
  bound.error = 2 * relative * bound.largest_value + 1e-37;
  return bound;
}

}  // namespace locks::cli
