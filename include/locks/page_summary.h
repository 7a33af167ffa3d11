// The page summary: what a format stores, and where each byte of its records lies. This is the only description.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "locks/types.h"

namespace locks {

enum class FormatId : std::uint8_t { kPaper = 1, kGraded8 = 2, kGraded12 = 3, kGraded4 = 4 };

/// Ranks come in quads of four with the same number of bits. Basis codes are unsigned: value = (code - zero) * step.
struct SummaryFormat {
  FormatId id;
  std::string_view name;
  int rank;
  bool rotated;                                      // keys (and queries) pass the fixed rotation of rotation.h
  std::array<std::uint8_t, kMaxRank / 4> quad_bits;  // 4 or 2
  float basis_zero_offset;  // zero = 2^(bits-1) - basis_zero_offset: 0.5 is mid-rise, 0 is mid-tread
  bool basis_has_scales;    // an absmax scale a rank; otherwise step = basis_step(bits, head_dim)
  int coefficient_bits;     // 4: mid-rise, one scale a rank; 8: signed, one scale a token
  bool refit;               // coefficients are least squares against the quantised basis

  [[nodiscard]] constexpr int num_quads() const noexcept { return rank / 4; }
  [[nodiscard]] constexpr float basis_zero(int quad) const noexcept {
    return static_cast<float>(1 << (quad_bits[quad] - 1)) - basis_zero_offset;
  }
};

inline constexpr SummaryFormat kPaper{FormatId::kPaper, "paper", 8, false, {4, 4}, 0.0F, true, 8, false};
inline constexpr SummaryFormat kGraded8{FormatId::kGraded8, "graded8", 8, true, {4, 2}, 0.5F, false, 4, true};
inline constexpr SummaryFormat kGraded12{FormatId::kGraded12, "graded12", 12, true, {4, 2, 2}, 0.5F, false, 4, true};
inline constexpr SummaryFormat kGraded4{FormatId::kGraded4, "graded4", 4, true, {4}, 0.5F, false, 4, true};

[[nodiscard]] std::span<const SummaryFormat* const> summary_formats() noexcept;
/// Throws std::invalid_argument with the list of names.
[[nodiscard]] const SummaryFormat& find_format(std::string_view name);

/// Step of the uniform mid-rise quantiser for a component of a unit vector in the rotated space, which is nearly
/// Gaussian with deviation 1 / sqrt(head_dim): the least-squares step for 4 and 2 bits.
[[nodiscard]] float basis_step(int bits, int head_dim) noexcept;

/// Byte offsets in the record of one page and KV head. Scales are bf16.
///
/// basis         a quad after the other. In a quad, 32-byte blocks; byte 8 r + j of block t belongs to rank r of the
///               quad (0..3). 4 bits: its low half is dimension 16 t + j, its high half 16 t + 8 + j. 2 bits: its bits
///               2k, 2k+1 are dimension 32 t + 8 k + j. Dimensions past head_dim are code 0 and must meet a zero query.
/// mean          head_dim signed bytes
/// coefficients  4 bits: 8 bytes a rank, byte j: low half token j, high half token j + 8. 8 bits: 16 bytes a rank.
/// then the scales (basis: a rank; coefficients: a rank or a token; mean: one), the residual variance of a key
/// component (bf16), the format's id and the flags.
struct RecordLayout {
  std::array<int, kMaxRank / 4> quad_at{};
  int mean_at = 0;
  int coefficients_at = 0;
  int basis_scales_at = 0;  // meaningless unless format.basis_has_scales
  int coefficient_scales_at = 0;
  int mean_scale_at = 0;
  int residual_at = 0;
  int format_at = 0;
  int flags_at = 0;
  int record_bytes = 0;
};

inline constexpr std::uint8_t kFlagAlwaysAttend = 1;  // a key or value of the page is not finite: never skip it

[[nodiscard]] constexpr int quad_bytes(int bits, int head_dim) noexcept {
  const int dims_per_block = bits == 4 ? 16 : 32;
  return (head_dim + dims_per_block - 1) / dims_per_block * 32;
}

[[nodiscard]] constexpr RecordLayout record_layout(const SummaryFormat& format, int head_dim) noexcept {
  RecordLayout at;
  int next = 0;
  const auto take = [&next](int bytes) { return next += bytes, next - bytes; };
  for (int quad = 0; quad < format.num_quads(); ++quad)
    at.quad_at[quad] = take(quad_bytes(format.quad_bits[quad], head_dim));
  at.mean_at = take(head_dim);
  at.coefficients_at = take(format.rank * kPageTokens * format.coefficient_bits / 8);
  at.basis_scales_at = take(format.basis_has_scales ? 2 * format.rank : 0);
  at.coefficient_scales_at = take(2 * (format.coefficient_bits == 8 ? kPageTokens : format.rank));
  at.mean_scale_at = take(2);
  at.residual_at = take(2);
  at.format_at = take(1);
  at.flags_at = take(1);
  at.record_bytes = next;
  return at;
}

static_assert(record_layout(kPaper, 128).record_bytes == 818 + 4);  // 4: residual, format, flags
static_assert(record_layout(kGraded8, 128).record_bytes == 594 + 4);
static_assert(record_layout(kGraded8, 64).record_bytes == 338 + 4);
static_assert(record_layout(kGraded12, 128).record_bytes == 762 + 4);
static_assert(record_layout(kGraded4, 128).record_bytes == 426 + 4);

/// The optional value part of one page and KV head: v_i = mean + sum_r slope_r c_ir in the rotated space, slopes in
/// 2 bits, mid-rise, one bf16 scale a rank. Rank r's row is head_dim / 4 bytes; bits 2k, 2k+1 of byte j are
/// dimension k head_dim / 4 + j.
struct ValueLayout {
  int slopes_at = 0;
  int mean_at = 0;
  int slope_scales_at = 0;
  int mean_scale_at = 0;
  int record_bytes = 0;
};

[[nodiscard]] constexpr ValueLayout value_layout(const SummaryFormat& format, int head_dim) noexcept {
  ValueLayout at;
  at.mean_at = at.slopes_at + format.rank * head_dim / 4;
  at.slope_scales_at = at.mean_at + head_dim;
  at.mean_scale_at = at.slope_scales_at + 2 * format.rank;
  at.record_bytes = at.mean_scale_at + 2;
  return at;
}

static_assert(value_layout(kGraded8, 128).record_bytes == 402);
static_assert(value_layout(kGraded8, 64).record_bytes == 210);

/// The summaries of one layer, by page number. Borrowed; strides are in bytes and may be anything that keeps records
/// apart. `value_data` is null if the value part is not kept.
struct SummaryStore {
  const SummaryFormat* format = nullptr;
  int head_dim = 0;
  std::int64_t num_pages = 0;
  std::byte* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;
  std::byte* value_data = nullptr;
  std::int64_t value_page_stride = 0;
  std::int64_t value_head_stride = 0;

  [[nodiscard]] constexpr std::byte* record(std::int64_t page, int kv_head) const noexcept {
    return data + page * page_stride + kv_head * head_stride;
  }
  [[nodiscard]] constexpr std::byte* value_record(std::int64_t page, int kv_head) const noexcept {
    return value_data + page * value_page_stride + kv_head * value_head_stride;
  }
};

/// Bytes of a store for `num_pages` pages with records side by side: all heads of a page, then the next page.
[[nodiscard]] std::int64_t summary_bytes(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                                         bool with_values) noexcept;
/// Lays such a store over `memory` (summary_bytes of it).
[[nodiscard]] SummaryStore make_store(const SummaryFormat& format, int head_dim, int kv_heads, std::int64_t num_pages,
                                      bool with_values, std::byte* memory) noexcept;

/// A record as plain numbers, in the format's own (rotated or not) space. For tests, tools and the reference.
struct DecodedSummary {
  std::array<double, kMaxHeadDim> mean{};
  std::array<std::array<double, kMaxHeadDim>, kMaxRank> basis{};
  std::array<std::array<double, kMaxRank>, kPageTokens> coefficients{};
  double residual_variance = 0.0;
  bool always_attend = false;
};
/// Throws FormatError if the record was written in another format.
[[nodiscard]] DecodedSummary decode_record(const SummaryFormat& format, int head_dim, const std::byte* record);
/// The same for bytes from elsewhere: they must be exactly one record.
[[nodiscard]] DecodedSummary decode_record(const SummaryFormat& format, int head_dim, std::span<const std::byte> record);

struct DecodedValues {
  std::array<double, kMaxHeadDim> mean{};
  std::array<std::array<double, kMaxHeadDim>, kMaxRank> slopes{};
};
[[nodiscard]] DecodedValues decode_value_record(const SummaryFormat& format, int head_dim, const std::byte* record);

}  // namespace locks
