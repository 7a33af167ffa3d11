#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/complete_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "attend/attend_work.h"
#include "attend/backends.h"
#include "attend/chunk-inl.h"
#include "attend/merge.h"
#include "attend/values-inl.h"
#include "cpu/dispatch.h"
#include "cpu/exp-inl.h"
#include "cpu/half.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"
#include "locks/rotation.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// All heads' weights of an entry's mean and slopes are made first; its mean and slopes then are rows of values like any
/// other, and the kernel of exact attention adds them up: a completed page costs about as much as 1 + rank tokens.
class Completion {
 public:
  explicit Completion(const CompleteArgs& args)
      : args_(args),
        format_(*args.summaries.format),
        record_(record_layout(format_, args.head_dim)),
        values_(value_layout(format_, args.head_dim)) {
    const auto heads = static_cast<int>(args.skipped_log_mass.size());
    const std::int64_t states = std::int64_t{heads} * attend_work::state_floats(args.head_dim);
    heads_ = {heads, args.head_dim, 1.0F, nullptr, 0, args.scratch.data()};
    rows_ = heads_.states + states;
    weights_ = rows_ + kChunkTokens * args.head_dim;
    reference_ = weights_ + heads * kChunkTokens;
    ones_ = reference_ + heads;
    std::fill_n(heads_.states, states, 0.0F);
    std::fill_n(ones_, heads, 1.0F);
    chunk_.tokens = 0;
    for (int row = 0; row < kChunkTokens; ++row) {
      chunk_.values[row] = reinterpret_cast<const std::byte*>(rows_ + std::int64_t{row} * args.head_dim);
    }
  }

  void run(SoftmaxStates states) {
    for (std::size_t i = 0; i < kPagesAhead; ++i) prefetch(i);
    find_references();
    for (std::size_t i = 0; i < args_.completed.size(); ++i) {
      if (chunk_.tokens + 1 + format_.rank > kChunkTokens) flush();
      prefetch(i + kPagesAhead);
      const std::int64_t page = page_of(i);
      const std::byte* const value = args_.summaries.value_record(page, args_.kv_head);
      const std::byte* const record = args_.summaries.record(page, args_.kv_head);
      for_each_tile(heads_.count, [&]<int kHeads>(int first) HWY_ATTR { weigh_rows<kHeads>(i, first, record, value); });
      decode_rows(value);
      chunk_.tokens += 1 + format_.rank;
    }
    flush();
    for (int head = 0; head < heads_.count; ++head) merge_head(head, states);
  }

 private:
  using FourTag = hn::CappedTag<float, 4>;
  static constexpr int kFourLanes = static_cast<int>(hn::MaxLanes(FourTag()));
  static constexpr std::size_t kPagesAhead = 8;  // pages are far apart: each is some misses that nothing foresees

  [[nodiscard]] std::int64_t page_of(std::size_t entry) const {
    return args_.table.page(args_.request, args_.completed[entry].page);
  }
  [[nodiscard]] float* sum_of(int head) const { return state_of(head) + args_.head_dim; }
  [[nodiscard]] float* state_of(int head) const {
    return heads_.states + std::int64_t{head} * attend_work::state_floats(args_.head_dim);
  }

  // Inlined, or else GCC takes functions that only prefetch for useless and leaves the calls out.
  HWY_INLINE void prefetch(std::size_t entry) const {
    if (entry >= args_.completed.size()) return;
    const std::int64_t page = page_of(entry);
    const std::byte* const value = args_.summaries.value_record(page, args_.kv_head);
    fetch(value, values_.record_bytes);
    fetch(args_.summaries.record(page, args_.kv_head) + record_.coefficients_at,
          record_.mean_scale_at - record_.coefficients_at);
  }
  static HWY_INLINE void fetch(const std::byte* from, int bytes) {
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
    __builtin_prefetch(from + bytes - 1);
  }

  /// Tokens [token, token + kLanes) of a mask.
  static auto lanes_of(std::uint16_t mask, int token) {
    const hn::RebindToSigned<FloatTag> di;
    const auto bits = hn::Set(di, mask >> token);
    return hn::RebindMask(FloatTag(), hn::TestBit(bits, hn::Shl(hn::Set(di, 1), hn::Iota(di, 0))));
  }

  void find_references() {
    const FloatTag df;
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    for_each_tile(heads_.count, [&]<int kHeads>(int first) HWY_ATTR {
      FloatVec largest[kHeads];
      for (FloatVec& of_head : largest) of_head = hn::Set(df, kNone);
      for (std::size_t i = 0; i < args_.completed.size(); ++i) {
        for (int token = 0; token < kPageTokens; token += kLanes) {
          const auto inside = lanes_of(args_.completed[i].mask, token);
          for (int head = 0; head < kHeads; ++head) {
            const FloatVec logit = hn::LoadU(df, args_.logits.at(i, first + head, token));
            largest[head] = hn::IfThenElse(hn::And(inside, hn::Gt(logit, largest[head])), logit, largest[head]);
          }
        }
      }
      for (int head = 0; head < kHeads; ++head) {
        const float max = hn::GetLane(hn::MaxOfLanes(df, largest[head]));
        reference_[first + head] = max == kNone ? 0.0F : max;
      }
    });
  }

  /// Tokens [token, token + kLanes) of a rank with 4-bit coefficients, less their scale.
  static FloatVec load_nibbles(const std::byte* rank, int token) {
    const FloatTag df;
    const FloatVec zero = hn::Set(df, 7.5F);
#if HWY_TARGET == HWY_AVX3
    std::int64_t bits;
    std::memcpy(&bits, rank + token / 2, sizeof bits);
    const __m512i shifts = _mm512_set_epi32(4, 4, 4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i codes =
        _mm512_and_si512(_mm512_srlv_epi32(_mm512_cvtepu8_epi32(_mm_set1_epi64x(bits)), shifts), _mm512_set1_epi32(15));
    return hn::Sub(FloatVec{_mm512_cvtepi32_ps(codes)}, zero);
#else
    const hn::RebindToSigned<FloatTag> di;
    const hn::Rebind<std::uint8_t, FloatTag> bytes;
    const auto codes = hn::PromoteTo(di, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(rank) + token % 8));
    return hn::Sub(hn::ConvertTo(df, hn::And(token < 8 ? codes : hn::ShiftRight<4>(codes), hn::Set(di, 15))), zero);
#endif
  }

  /// Four bf16 scales.
  static auto load_scales(const std::byte* at) {
    const hn::Rebind<hwy::bfloat16_t, FourTag> halves;
    return hn::PromoteTo(FourTag(), hn::LoadU(halves, reinterpret_cast<const hwy::bfloat16_t*>(at)));
  }

  /// Weights of an entry's rows, their scales included: of the mean, the sum of its tokens' weights; of a slope, the sum of
  /// their products with the coefficients.
  template <int kHeads>
  HWY_INLINE void weigh_rows(std::size_t entry, int first_head, const std::byte* record, const std::byte* value) {
    const FloatTag df;
    const FourTag four;
    FloatVec weights[kHeads][kPageTokens / kLanes];
    FloatVec sum[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    for (int token = 0; token < kPageTokens; token += kLanes) {
      const auto inside = lanes_of(args_.completed[entry].mask, token);
      for (int head = 0; head < kHeads; ++head) {
        const FloatVec logit = hn::LoadU(df, args_.logits.at(entry, first_head + head, token));
        const FloatVec reference = hn::Set(df, reference_[first_head + head]);
        weights[head][token / kLanes] = hn::IfThenElseZero(inside, softmax_exp(df, hn::Sub(logit, reference)));
        sum[head] = hn::Add(sum[head], weights[head][token / kLanes]);
      }
    }
    float masses[4];
    sum_lanes_of_four(sum[0], sum[1], sum[2], sum[3], masses);
    float* const out = weights_ + first_head * kChunkTokens + chunk_.tokens;
    const float mean_scale = bf16_to_float(load_u16(value + values_.mean_scale_at));
    for (int head = 0; head < kHeads; ++head) {
      *sum_of(first_head + head) += masses[head];
      out[head * kChunkTokens] = masses[head] * mean_scale;
    }
    const bool token_scales = format_.coefficient_bits == 8;
    for (int rank = 0; rank < format_.rank; rank += 4) {
      FloatVec coefficients[4][kPageTokens / kLanes];
      for (int i = 0; i < 4; ++i) {
        for (int token = 0; token < kPageTokens; token += kLanes) {
          coefficients[i][token / kLanes] =
              token_scales ? hn::Mul(load_signed_bytes(record + record_.coefficients_at + (rank + i) * kPageTokens + token),
                                     load_bf16(record + record_.coefficient_scales_at + 2 * token))
                           : load_nibbles(record + record_.coefficients_at + (rank + i) * 8, token);
        }
      }
      alignas(16) float scales[4];
      for (int i = 0; i < 4; i += kFourLanes) {
        auto scale = load_scales(value + values_.slope_scales_at + 2 * (rank + i));
        if (!token_scales) scale = hn::Mul(scale, load_scales(record + record_.coefficient_scales_at + 2 * (rank + i)));
        hn::Store(scale, four, scales + i);
      }
      for (int head = 0; head < kHeads; ++head) {
        for (int i = 0; i < 4; ++i) {
          sum[i] = hn::Mul(weights[head][0], coefficients[i][0]);
          for (int v = 1; v < kPageTokens / kLanes; ++v) {
            sum[i] = hn::MulAdd(weights[head][v], coefficients[i][v], sum[i]);
          }
        }
        float* const of_ranks = out + head * kChunkTokens + 1 + rank;
        sum_lanes_of_four(sum[0], sum[1], sum[2], sum[3], of_ranks);
        for (int i = 0; i < 4; i += kFourLanes) {
          hn::StoreU(hn::Mul(hn::LoadU(four, of_ranks + i), hn::Load(four, scales + i)), four, of_ranks + i);
        }
      }
    }
  }

  /// Slopes less their scale from the lowest two bits of each lane.
  static FloatVec slopes_of(hn::Vec<hn::RebindToSigned<FloatTag>> codes) {
#if HWY_TARGET == HWY_AVX3
    return FloatVec{_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_setr_ps(-1.5F, -0.5F, 0.5F, 1.5F)), codes.raw)};
#elif HWY_TARGET == HWY_AVX2
    return FloatVec{_mm256_permutevar_ps(_mm256_setr_ps(-1.5F, -0.5F, 0.5F, 1.5F, -1.5F, -0.5F, 0.5F, 1.5F), codes.raw)};
#else
    const hn::RebindToSigned<FloatTag> di;
    return hn::Sub(hn::ConvertTo(FloatTag(), hn::And(codes, hn::Set(di, 3))), hn::Set(FloatTag(), 1.5F));
#endif
  }

  /// The mean and the slopes as rows of floats, less their scales.
  void decode_rows(const std::byte* value) {
    const FloatTag df;
    const hn::RebindToSigned<FloatTag> di;
    const hn::Rebind<std::uint8_t, FloatTag> bytes;
    const int head_dim = args_.head_dim;
    const int ranks = format_.rank;
    float* row = rows_ + std::int64_t{chunk_.tokens} * head_dim;
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      hn::StoreU(load_signed_bytes(value + values_.mean_at + dim), df, row + dim);
    }
    const int quarter = head_dim / 4;  // dimensions that stand in the same bits of their bytes
    const auto* codes = reinterpret_cast<const std::uint8_t*>(value) + values_.slopes_at;
    for (int rank = 0; rank < ranks; ++rank, codes += quarter) {
      row += head_dim;
      for (int next = 0; next < quarter; next += kLanes) {
        const int at = std::min(next, quarter - kLanes);  // the last lanes may be written twice
        const auto four = hn::PromoteTo(di, hn::LoadU(bytes, codes + at));
        float* const to = row + at;
        hn::StoreU(slopes_of(four), df, to);
        hn::StoreU(slopes_of(hn::ShiftRight<2>(four)), df, to + quarter);
        hn::StoreU(slopes_of(hn::ShiftRight<4>(four)), df, to + 2 * quarter);
        hn::StoreU(slopes_of(hn::ShiftRight<6>(four)), df, to + 3 * quarter);
      }
    }
  }

  void flush() {
    ValueScales unused;
    if (chunk_.tokens > 0) chunk_values<DType::kF32>(chunk_, 0, unused, Ahead{}, heads_, weights_, ones_);
    chunk_.tokens = 0;
  }

  void merge_head(int head, SoftmaxStates states) const {
    float log_mass = args_.skipped_log_mass[head];
    const float mass = *sum_of(head);
    if (mass == 0.0F || log_mass == -std::numeric_limits<float>::infinity()) return;
    float* const mean = state_of(head);
    for (int dim = 0; dim < args_.head_dim; ++dim) mean[dim] /= mass;
    rotate_back(std::span(mean, static_cast<std::size_t>(args_.head_dim)));
    float one = 1.0F;
    float* const state = states.at(args_.request, args_.first_query_head + head, 0);
    attend_work::merge({state, state + 1, state + 2}, {&log_mass, &one, mean}, args_.head_dim);
  }

  const CompleteArgs& args_;
  const SummaryFormat& format_;
  const RecordLayout record_;
  const ValueLayout values_;
  Heads heads_;
  Chunk chunk_;
  float* rows_ = nullptr;       // [kChunkTokens, head_dim]
  float* weights_ = nullptr;    // [heads, kChunkTokens], of the rows
  float* reference_ = nullptr;  // [heads]
  float* ones_ = nullptr;       // [heads]
};

void complete_cpu(const CompleteArgs& args, SoftmaxStates states) { Completion(args).run(states); }

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks {

void complete_cpu(const CompleteArgs& args, SoftmaxStates states, Target target) {
  LOCKS_PICK(complete_cpu, target)(args, states);
}

}  // namespace locks
#endif
