// Records of pages, one after the other, in single precision. See README.md for the error bound.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "summarize/summarize_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/dispatch.h"
#include "locks/rotation.h"
#include "summarize/eigen-inl.h"
#include "summarize/matrix-inl.h"
#include "summarize/page-inl.h"
#include "summarize/quantise-inl.h"
#include "summarize/records.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kMaxRank == kPageTokens);  // square matrices serve both

/// What one thread needs for one page; on its stack.
struct Scratch {
  HWY_ALIGN float signs[kMaxHeadDim];
  HWY_ALIGN float rows[kPageTokens * kMaxHeadDim];       // [16, head_dim]: keys or values, then what the mean leaves
  HWY_ALIGN float columns[kMaxHeadDim * kPageTokens];    // [head_dim, 16]
  HWY_ALIGN float basis[kMaxRank * kMaxHeadDim];         // [rank, head_dim]; slopes of the values later
  HWY_ALIGN float coefficients[kMaxRank * kPageTokens];  // [rank, 16]
  HWY_ALIGN float by_token[kPageTokens * kMaxRank];      // [16, 16], the first `rank` columns
  HWY_ALIGN float square[kPageTokens * kPageTokens];
};

/// Deviations with less energy, next to components near 1, are below any rounding; the inverse of their energy may overflow.
inline constexpr float kVanishingTrace = 1e-30F;

/// Unit vectors along the leading directions of the deviations, and the coefficients that they give; zeros for directions
/// without energy. The length of a direction is taken from its vector, not from the eigenvalue: that tells true null
/// directions from those that single precision only cannot see.
HWY_INLINE void principal_directions(const SummaryFormat& format, int head_dim, Scratch& s) {
  const FloatTag df;
  float trace = 0.0F;
  for (int i = 0; i < kPageTokens; i += 4) {
    four_by_tokens(s.rows + i * head_dim, s.columns, head_dim, s.square + i * kPageTokens);
    for (int j = i; j < i + 4; ++j) trace += s.square[j * kPageTokens + j];
  }
  const float inverse = trace > kVanishingTrace ? 1.0F / trace : 0.0F;
  for (int i = 0; i < kPageTokens * kPageTokens; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(df, s.square + i), hn::Set(df, inverse)), df, s.square + i);
  }
  switch (format.rank) {
    case 4:
      leading_eigenvectors<4>(s.square, s.by_token);
      break;
    case 8:
      leading_eigenvectors<8>(s.square, s.by_token);
      break;
    default:
      leading_eigenvectors<12>(s.square, s.by_token);
      break;
  }

  float most = 0.0F;
  for (int quad = 0; quad < format.num_quads(); ++quad) {
    FloatVec sums[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    float* basis = s.basis + 4 * quad * head_dim;
    combine_rows(s.by_token + 4 * quad, kMaxRank, s.rows, kPageTokens, head_dim, [&](int i, int dim, FloatVec x) {
      sums[i] = hn::MulAdd(x, x, sums[i]);
      hn::Store(x, df, basis + i * head_dim + dim);
    });
    for (int i = 0; i < 4; ++i) {
      const float energy = sum_lanes(sums[i]);
      most = std::max(most, energy);
      const float length = std::sqrt(energy);
      const bool kept = energy > static_cast<float>(summarize_stage::kNullEnergy) * most;
      const FloatVec factor = hn::Set(df, kept ? 1.0F / length : 0.0F);
      float* row = basis + i * head_dim;
      for (int dim = 0; dim < head_dim; dim += kLanes) hn::Store(hn::Mul(hn::Load(df, row + dim), factor), df, row + dim);
      for (int token = 0; token < kPageTokens; ++token) {
        s.coefficients[(4 * quad + i) * kPageTokens + token] =
            kept ? length * s.by_token[token * kMaxRank + 4 * quad + i] : 0.0F;
      }
    }
  }
}

/// Coefficients against the stored basis. A dropped rank keeps coefficients of zero.
HWY_INLINE void refit_coefficients(const SummaryFormat& format, int head_dim, Scratch& s) {
  bool dropped[kMaxRank];
  for (int r = 0; r < format.rank; ++r) dropped[r] = largest_size(s.coefficients + r * kPageTokens, kPageTokens) == 0.0F;
  normal_matrix(s.basis, format.rank, head_dim, s.square);
  for (int r = 0; r < format.rank; r += 4) {
    four_by_tokens(s.basis + r * head_dim, s.columns, head_dim, s.coefficients + r * kPageTokens);
  }
  for (int r = 0; r < format.rank; ++r) {
    if (dropped[r]) {
      store_tokens(zero_tokens(), s.square + r * kPageTokens);
      store_tokens(zero_tokens(), s.coefficients + r * kPageTokens);
      for (int i = 0; i < format.rank; ++i) s.square[i * kPageTokens + r] = 0.0F;
    }
    s.square[r * kPageTokens + r] += static_cast<float>(summarize_stage::kRefitRidge);
  }
  solve_normal(s.square, format.rank, s.coefficients);
}

HWY_INLINE double residual_variance(const SummaryFormat& format, int head_dim, const PowerOfTwo& power, const Scratch& s) {
  const FloatTag df;
  double sum = 0.0;
  for (int token = 0; token < kPageTokens; token += 4) {
    FloatVec squares = hn::Zero(df);
    combine_rows(s.coefficients + token, kPageTokens, s.basis, format.rank, head_dim, [&](int i, int dim, FloatVec x) {
      const FloatVec missed = hn::Sub(hn::Load(df, s.rows + (token + i) * head_dim + dim), x);
      squares = hn::MulAdd(missed, missed, squares);
    });
    sum += static_cast<double>(sum_lanes(squares));
  }
  return sum / (kPageTokens * head_dim) * power.up * power.up;
}

/// The value part from the values in s.rows and the stored coefficients.
HWY_INLINE void store_values(const SummaryFormat& format, int head_dim, const PowerOfTwo& key_power, const PowerOfTwo& power,
                             Scratch& s, std::byte* record) {
  const FloatTag df;
  const ValueLayout at = value_layout(format, head_dim);
  store_and_remove_mean(head_dim, power, s.rows, record + at.mean_at, record + at.mean_scale_at);
  normal_matrix(s.coefficients, format.rank, kPageTokens, s.square);
  float trace = 0.0F;
  for (int r = 0; r < format.rank; ++r) trace += s.square[r * kPageTokens + r];
  const float ridge = static_cast<float>(summarize_stage::kSlopeRidge) * trace / static_cast<float>(format.rank);
  if (ridge > 0.0F) {
    for (int r = 0; r < format.rank; ++r) s.square[r * kPageTokens + r] += ridge;
    solve_normal(s.square, format.rank, s.coefficients);
  }
  for (int token = 0; token < kPageTokens; ++token) {
    for (int r = 0; r < format.rank; ++r) s.by_token[token * kMaxRank + r] = s.coefficients[r * kPageTokens + token];
  }
  const PowerOfTwo slope_power{power.up * key_power.down, power.down * key_power.up};
  for (int quad = 0; quad < format.num_quads(); ++quad) {
    float* slopes = s.basis + 4 * quad * head_dim;
    combine_rows(s.by_token + 4 * quad, kMaxRank, s.rows, kPageTokens, head_dim,
                 [&](int i, int dim, FloatVec x) { hn::Store(x, df, slopes + i * head_dim + dim); });
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * quad + i;
      store_slopes(slopes + i * head_dim, head_dim, slope_power, record + at.slopes_at + r * (head_dim / 4),
                   record + at.slope_scales_at + 2 * r);
    }
  }
}

HWY_INLINE bool summarize_one(const SummarizeArgs& args, std::int64_t page, int kv_head, Scratch& s) {
  const SummaryFormat& format = *args.out.format;
  const int head_dim = args.head_dim;
  const RecordLayout at = record_layout(format, head_dim);
  PowerOfTwo key_power;
  PowerOfTwo value_power;
  if (!load_summarized_page(args.keys, page, kv_head, head_dim, format.rotated ? s.signs : nullptr, s.rows, key_power))
    return false;
  std::byte* record = args.out.record(page, kv_head);
  std::memset(record, 0, static_cast<std::size_t>(at.record_bytes));
  store_and_remove_mean(head_dim, key_power, s.rows, record + at.mean_at, record + at.mean_scale_at);
  transpose_page(s.rows, head_dim, s.columns);
  principal_directions(format, head_dim, s);
  store_basis(format, at, head_dim, s.basis, record);
  if (format.refit) refit_coefficients(format, head_dim, s);
  store_coefficients(format, at, key_power, s.coefficients, record);
  store_u16(record + at.residual_at, summarize_stage::finite_bf16(residual_variance(format, head_dim, key_power, s)));
  record[at.format_at] = static_cast<std::byte>(format.id);
  if (args.out.value_data == nullptr) return true;
  if (!load_summarized_page(*args.values, page, kv_head, head_dim, s.signs, s.rows, value_power)) return false;
  store_values(format, head_dim, key_power, value_power, s, args.out.value_record(page, kv_head));
  return true;
}

std::int64_t summarize_items(const SummarizeArgs& args, std::int64_t first, std::int64_t last) noexcept {
  Scratch scratch;
  for (int dim = 0; dim < args.head_dim; ++dim) scratch.signs[dim] = rotation_sign(dim);
  std::int64_t marked = 0;
  for (std::int64_t item = first; item < last; ++item) {
    const auto page = args.pages[static_cast<std::size_t>(item / args.kv_heads)];
    const auto kv_head = static_cast<int>(item % args.kv_heads);
    if (summarize_one(args, page, kv_head, scratch)) continue;
    summarize_stage::write_always_attend(args, page, kv_head);
    ++marked;
  }
  return marked;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks::summarize_stage {

std::int64_t summarize_simd(const SummarizeArgs& args, std::int64_t first, std::int64_t last, Target target) noexcept {
  return LOCKS_PICK(summarize_items, target)(args, first, last);
}

}  // namespace locks::summarize_stage
#endif
