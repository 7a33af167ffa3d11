#include "locks/page_summary.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu/half.h"
#include "locks/error.h"

namespace locks {
namespace {

constexpr std::array<const SummaryFormat*, 4> kFormats{&kPaper, &kGraded8, &kGraded12, &kGraded4};

int byte_at(const std::byte* record, int offset) { return std::to_integer<int>(record[offset]); }
double signed_at(const std::byte* record, int offset) { return static_cast<std::int8_t>(record[offset]); }
double scale_at(const std::byte* record, int offset) { return bf16_to_float(load_u16(record + offset)); }

int basis_code(int bits, const std::byte* quad, int rank_in_quad, int dim) {
  if (bits == 4) {
    const int byte = byte_at(quad, dim / 16 * 32 + rank_in_quad * 8 + dim % 8);
    return dim % 16 < 8 ? byte & 15 : byte >> 4;
  }
  const int byte = byte_at(quad, dim / 32 * 32 + rank_in_quad * 8 + dim % 8);
  return byte >> (dim % 32 / 8 * 2) & 3;
}

double coefficient(const SummaryFormat& format, const RecordLayout& at, const std::byte* record, int rank, int token) {
  if (format.coefficient_bits == 8) {
    return signed_at(record, at.coefficients_at + rank * kPageTokens + token) *
           scale_at(record, at.coefficient_scales_at + 2 * token);
  }
  const int byte = byte_at(record, at.coefficients_at + rank * 8 + token % 8);
  const int code = token < 8 ? byte & 15 : byte >> 4;
  return (code - 7.5) * scale_at(record, at.coefficient_scales_at + 2 * rank);
}

}  // namespace

std::span<const SummaryFormat* const> summary_formats() noexcept { return kFormats; }

const SummaryFormat& find_format(std::string_view name) {
  std::string known;
  for (const SummaryFormat* format : kFormats) {
    if (format->name == name) return *format;
    known += (known.empty() ? "" : ", ") + std::string(format->name);
  }
  throw std::invalid_argument("summary format '" + std::string(name) + "' is unknown; it may be " + known);
}

float basis_step(int bits, int head_dim) noexcept {
  const float unit = bits == 4 ? 0.3352F : 0.9957F;
  return unit / std::sqrt(static_cast<float>(head_dim));
}

std::int64_t summary_bytes(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                           bool with_values) noexcept {
  const int value_bytes = with_values ? value_layout(format, head_dim).record_bytes : 0;
  return num_pages * kv_heads * (record_layout(format, head_dim).record_bytes + value_bytes);
}

SummaryStore make_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages, bool with_values,
                        std::byte* memory) noexcept {
  SummaryStore store{&format, head_dim, num_pages, memory};
  store.head_stride = record_layout(format, head_dim).record_bytes;
  store.page_stride = store.head_stride * kv_heads;
  if (with_values) {
    store.value_data = memory + store.page_stride * num_pages;
    store.value_head_stride = value_layout(format, head_dim).record_bytes;
    store.value_page_stride = store.value_head_stride * kv_heads;
  }
  return store;
}

DecodedSummary decode_record(const SummaryFormat& format, int head_dim, const std::byte* record) {
  const RecordLayout at = record_layout(format, head_dim);
  if (byte_at(record, at.format_at) != static_cast<int>(format.id)) {
    throw FormatError("the record was not written as '" + std::string(format.name) + "': its format byte is " +
                          std::to_string(byte_at(record, at.format_at)),
                      at.format_at);
  }
  DecodedSummary out;
  for (int dim = 0; dim < head_dim; ++dim)
    out.mean[dim] = signed_at(record, at.mean_at + dim) * scale_at(record, at.mean_scale_at);
  for (int rank = 0; rank < format.rank; ++rank) {
    const int quad = rank / 4;
    const int bits = format.quad_bits[quad];
    const double step = format.basis_has_scales ? scale_at(record, at.basis_scales_at + 2 * rank)
                                                : static_cast<double>(basis_step(bits, head_dim));
    for (int dim = 0; dim < head_dim; ++dim) {
      out.basis[rank][dim] =
          (basis_code(bits, record + at.quad_at[quad], rank % 4, dim) - static_cast<double>(format.basis_zero(quad))) * step;
    }
    for (int token = 0; token < kPageTokens; ++token)
      out.coefficients[token][rank] = coefficient(format, at, record, rank, token);
  }
  out.residual_variance = scale_at(record, at.residual_at);
  out.always_attend = (byte_at(record, at.flags_at) & kFlagAlwaysAttend) != 0;
  return out;
}

DecodedSummary decode_record(const SummaryFormat& format, int head_dim, std::span<const std::byte> record) {
  const auto expected = static_cast<std::size_t>(record_layout(format, head_dim).record_bytes);
  if (record.size() != expected) {
    throw FormatError("a record of '" + std::string(format.name) + "' with head_dim " + std::to_string(head_dim) + " has " +
                          std::to_string(expected) + " bytes; there are " + std::to_string(record.size()),
                      static_cast<std::int64_t>(std::min(record.size(), expected)));
  }
  return decode_record(format, head_dim, record.data());
}

DecodedValues decode_value_record(const SummaryFormat& format, int head_dim, const std::byte* record) {
  const ValueLayout at = value_layout(format, head_dim);
  DecodedValues out;
  for (int dim = 0; dim < head_dim; ++dim)
    out.mean[dim] = signed_at(record, at.mean_at + dim) * scale_at(record, at.mean_scale_at);
  const int row = head_dim / 4;
  for (int rank = 0; rank < format.rank; ++rank) {
    for (int dim = 0; dim < head_dim; ++dim) {
      const int code = byte_at(record, at.slopes_at + rank * row + dim % row) >> (dim / row * 2) & 3;
      out.slopes[rank][dim] = (code - 1.5) * scale_at(record, at.slope_scales_at + 2 * rank);
    }
  }
  return out;
}

}  // namespace locks
