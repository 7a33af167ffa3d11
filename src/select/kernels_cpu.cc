#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "select/kernels_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU: keep first
#include "hwy/highway.h"

#include <algorithm>

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
  const V below = hn::IfThenElse(hn::Lt(x, highest), x, highest);
  const V bounded = hn::IfThenElse(hn::Gt(x, lowest), below, lowest);
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

select::BlockMass block_mass(const float* log_mass, int pages) noexcept {
  const D d;
  const float peak = peak_of(log_mass, pages);
  const float origin = peak > -kInfinity ? peak : 0.0F;
  V sums[kVectors];
  for (V& lanes : sums) lanes = hn::Zero(d);
  const int whole_rows = pages / kLanes * kLanes;
  for (int first = 0; first < whole_rows; first += kLanes) {
    for (int i = 0; i < kVectors; ++i) {
      const V own = mass_or_none(d, hn::LoadU(d, log_mass + first + i * kStep));
      sums[i] = hn::Add(sums[i], share_exp(d, hn::Sub(own, hn::Set(d, origin))));
    }
  }
  alignas(64) Lanes lanes;
  for (int i = 0; i < kVectors; ++i) hn::Store(sums[i], d, &lanes[i * kStep]);
  for (int i = whole_rows; i < pages; ++i) {
    lanes[i - whole_rows] += select::share_exp(select::mass_or_none(log_mass[i]) - origin);
  }
  return {origin, select::fold_sum(lanes)};
}

float head_shares(const HeadMass& head) noexcept {
  const D d;
  const float always = head.always_log_mass >= -kInfinity ? head.always_log_mass : -kInfinity;  // NaN: no mass
  const float peak = std::max(always, peak_of(head.log_mass, head.pages));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes blocks{};
  for (int first = 0; first < head.pages; first += kBlockPages) {
    const select::BlockMass block = block_mass(head.log_mass + first, std::min(kBlockPages, head.pages - first));
    blocks[first / kBlockPages % kLanes] += select::from_origin(block, origin);
  }
  const float norm = select::log_norm(always, origin, blocks);
  const V infinity = hn::Set(d, kInfinity);
  int i = 0;
  for (; i + kStep <= head.pages; i += kStep) {
    const V log_mass = hn::LoadU(d, head.log_mass + i);
    const V share = share_exp(d, hn::Sub(mass_or_none(d, log_mass), hn::Set(d, norm)));
    hn::StoreU(hn::IfThenElse(hn::Eq(log_mass, infinity), infinity, share), d, head.shares + i);
  }
  for (; i < head.pages; ++i) {
    const float log_mass = head.log_mass[i];
    head.shares[i] = log_mass == kInfinity ? kInfinity : select::share_exp(select::mass_or_none(log_mass) - norm);
  }
  return norm;
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

float clear_block(float* shares, int pages) noexcept {
  const D d;
  V sums[kVectors];
  for (V& lanes : sums) lanes = hn::Zero(d);
  const int whole = pages / kLanes * kLanes;
  for (int first = 0; first < whole; first += kLanes) {
    for (int i = 0; i < kVectors; ++i) {
      const V share = hn::LoadU(d, shares + first + i * kStep);
      const V kept = hn::IfThenElseZero(hn::Lt(share, hn::Set(d, kInfinity)), share);
      sums[i] = hn::Add(sums[i], kept);
      hn::StoreU(kept, d, shares + first + i * kStep);
    }
  }
  alignas(64) Lanes lanes;
  for (int i = 0; i < kVectors; ++i) hn::Store(sums[i], d, &lanes[i * kStep]);
  for (int i = whole; i < pages; ++i) {
    shares[i] = shares[i] < kInfinity ? shares[i] : 0.0F;
    lanes[i - whole] += shares[i];
  }
  return select::fold_sum(lanes);
}

float clear_marked(float* shares, int pages) noexcept {
  Lanes blocks{};
  for (int first = 0; first < pages; first += kBlockPages) {
    blocks[first / kBlockPages % kLanes] += clear_block(shares + first, std::min(kBlockPages, pages - first));
  }
  return select::fold_sum(blocks);
}

}  // namespace

const select::Kernels& select_kernels() noexcept {
  static constexpr select::Kernels kernels{head_shares, combine, part_shares, clear_marked};
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
