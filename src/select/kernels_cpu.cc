#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "select/kernels_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>
#include <bit>

#include "cpu/dispatch.h"
#include "select/kernels.h"
#include "select/share.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using select::HeadMass;
using select::kBlockPages;
using select::kInfinity;
using select::kLanes;
using select::Lanes;
using select::PartLogits;

using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
constexpr int kStep = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = kLanes / kStep;

/// share_exp of share.h, operation by operation: no multiplication here may be fused with an addition.
HWY_INLINE V share_exp(D d, V x) noexcept {
  const hn::RebindToUnsigned<D> du;
  const V lowest = hn::Set(d, select::kExpLowest);
  const V highest = hn::Set(d, select::kExpHighest);
  const V bounded = hn::IfThenElse(hn::Lt(x, highest), x, highest);
  const V round = hn::Set(d, select::kExpRound);
  const V scaled = hn::Mul(bounded, hn::Set(d, select::kExpLog2E));
  const V shifted = hn::Add(scaled, round);
  const V rest = hn::Sub(scaled, hn::Sub(shifted, round));
  V sum = hn::Set(d, select::kExpSeries[0]);
  for (std::size_t i = 1; i < select::kExpSeries.size(); ++i) {
    sum = hn::Add(hn::Mul(sum, rest), hn::Set(d, select::kExpSeries[i]));
  }
  const auto power = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  return hn::IfThenElseZero(hn::Ge(x, lowest), hn::BitCast(d, hn::Add(hn::BitCast(du, sum), power)));
}

HWY_INLINE V mass_or_none(D d, V log_mass) noexcept {
  const V infinity = hn::Set(d, kInfinity);
  return hn::IfThenElse(hn::Lt(log_mass, infinity), log_mass, hn::Neg(infinity));
}

float peak_of(const float* log_mass, int pages) noexcept {
  const D d;
  V largest[kVectors];
  for (V& lanes : largest) lanes = hn::Set(d, -kInfinity);
  const int whole = pages / kLanes * kLanes;
  for (int first = 0; first < whole; first += kLanes) {
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = hn::Max(largest[i], mass_or_none(d, hn::LoadU(d, log_mass + first + i * kStep)));
    }
  }
  alignas(64) Lanes lanes;
  for (int i = 0; i < kVectors; ++i) hn::Store(largest[i], d, &lanes[i * kStep]);
  for (int i = whole; i < pages; ++i) lanes[i - whole] = std::max(lanes[i - whole], select::mass_or_none(log_mass[i]));
  return select::fold_largest(lanes);
}

/// The masses of a block's pages, counted from the largest: each to `shares`, and their sum.
select::BlockMass weigh_block(const float* log_mass, int pages, float* shares) noexcept {
  const D d;
  const float peak = peak_of(log_mass, pages);
  const float origin = peak > -kInfinity ? peak : 0.0F;
  const V infinity = hn::Set(d, kInfinity);
  V sums[kVectors];
  for (V& lanes : sums) lanes = hn::Zero(d);
  const int whole_rows = pages / kLanes * kLanes;
  for (int first = 0; first < whole_rows; first += kLanes) {
    for (int i = 0; i < kVectors; ++i) {
      const V own = hn::LoadU(d, log_mass + first + i * kStep);
      const V mass = share_exp(d, hn::Sub(own, hn::Set(d, origin)));
      const auto marked = hn::Eq(own, infinity);
      sums[i] = hn::Add(sums[i], hn::IfThenZeroElse(marked, mass));
      hn::StoreU(hn::IfThenElse(marked, infinity, mass), d, shares + first + i * kStep);
    }
  }
  alignas(64) Lanes lanes;
  for (int i = 0; i < kVectors; ++i) hn::Store(sums[i], d, &lanes[i * kStep]);
  for (int i = whole_rows; i < pages; ++i) {
    const float own = select::from_block(log_mass[i], origin);
    shares[i] = own;
    lanes[i - whole_rows] += own < kInfinity ? own : 0.0F;
  }
  return {origin, select::fold_sum(lanes)};
}

/// From masses counted from a block's origin to shares.
void scale_block(float* shares, int pages, float factor) noexcept {
  const D d;
  const V infinity = hn::Set(d, kInfinity);
  int i = 0;
  for (; i + kStep <= pages; i += kStep) {
    const V own = hn::LoadU(d, shares + i);
    hn::StoreU(hn::IfThenElse(hn::Eq(own, infinity), infinity, hn::Mul(own, hn::Set(d, factor))), d, shares + i);
  }
  for (; i < pages; ++i) shares[i] = select::page_share(shares[i], factor);
}

select::WholeMass head_shares(const HeadMass& head) noexcept {
  const float always = head.always_log_mass >= -kInfinity ? head.always_log_mass : -kInfinity;  // NaN: no mass
  const float peak = std::max(always, peak_of(head.log_mass, head.pages));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int first = 0, block = 0; first < head.pages; first += kBlockPages, ++block) {
    const select::BlockMass own =
        weigh_block(head.log_mass + first, std::min(kBlockPages, head.pages - first), head.shares + first);
    head.origins[block] = std::bit_cast<std::int32_t>(own.origin);
    lanes[block % kLanes] += select::from_origin(own, origin);
  }
  const select::WholeMass whole = select::whole_mass(always, origin, select::fold_sum(lanes));
  for (int first = 0, block = 0; first < head.pages; first += kBlockPages, ++block) {
    const float factor = select::share_exp(std::bit_cast<float>(head.origins[block]) - whole.log_norm);
    scale_block(head.shares + first, std::min(kBlockPages, head.pages - first), factor);
  }
  return whole;
}

void combine(const float* from, int pages, bool by_maximum, float* into) noexcept {
  const D d;
  int i = 0;
  for (; i + kStep <= pages; i += kStep) {
    const V a = hn::LoadU(d, into + i);
    const V b = hn::LoadU(d, from + i);
    hn::StoreU(by_maximum ? hn::Max(a, b) : hn::Add(a, b), d, into + i);
  }
  for (; i < pages; ++i) into[i] = by_maximum ? std::max(into[i], from[i]) : into[i] + from[i];
}

/// fold_parts of share.h on vectors: the first 16 / kPartTokens lanes become the parts.
template <int kPartTokens>
HWY_INLINE void fold_parts(V (&mass)[kVectors]) noexcept {
#if HWY_TARGET == HWY_SCALAR
  for (int parts = kLanes / 2; parts >= kLanes / kPartTokens; parts /= 2) {
    for (int part = 0; part < parts; ++part) mass[part] = hn::Add(mass[2 * part], mass[2 * part + 1]);
  }
#else
  const D d;
  for (int width = 1; width < kPartTokens; width *= 2) {
    for (int i = 0; i < kVectors; ++i) {
      const V low = mass[std::min(2 * i, kVectors - 1)];
      const V high = mass[std::min(2 * i + 1, kVectors - 1)];
      mass[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
  }
#endif
}

template <int kPartTokens>
void part_shares_of(const PartLogits& parts, float* combined, float* of_heads) noexcept {
  const D d;
  constexpr int kParts = kLanes / kPartTokens;
  alignas(64) Lanes lanes;
  for (int page = 0; page < parts.pages; ++page, combined += kParts) {
    V all[kVectors];
    for (V& sums : all) sums = hn::Zero(d);
    for (std::size_t head = 0; head < parts.log_norm.size(); ++head, of_heads += kParts) {
      const float* const logits =
          parts.logits + page * parts.page_stride + static_cast<std::int64_t>(head) * parts.head_stride;
      const V norm = hn::Set(d, parts.log_norm[head]);
      V mass[kVectors];
      for (int i = 0; i < kVectors; ++i) mass[i] = share_exp(d, hn::Sub(hn::LoadU(d, logits + i * kStep), norm));
      fold_parts<kPartTokens>(mass);
      for (int i = 0; i < kVectors; ++i) {
        all[i] = parts.by_maximum ? hn::Max(all[i], mass[i]) : hn::Add(all[i], mass[i]);
        hn::Store(mass[i], d, &lanes[i * kStep]);
      }
      std::copy_n(lanes.data(), kParts, of_heads);
    }
    for (int i = 0; i < kVectors; ++i) hn::Store(all[i], d, &lanes[i * kStep]);
    std::copy_n(lanes.data(), kParts, combined);
  }
}

void part_shares(const PartLogits& parts, float* combined, float* of_heads) noexcept {
  switch (parts.part_tokens) {
    case 1:
      return part_shares_of<1>(parts, combined, of_heads);
    case 2:
      return part_shares_of<2>(parts, combined, of_heads);
    case 4:
      return part_shares_of<4>(parts, combined, of_heads);
    default:
      return part_shares_of<8>(parts, combined, of_heads);
  }
}

}  // namespace

const select::Kernels& select_kernels() noexcept {
  static constexpr select::Kernels kernels{head_shares, combine, part_shares};
  return kernels;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace locks::select {

const Kernels& kernels(Target target) noexcept {
  return target == Target::kReference ? reference_kernels() : LOCKS_PICK(select_kernels, target)();
}

}  // namespace locks::select
#endif
