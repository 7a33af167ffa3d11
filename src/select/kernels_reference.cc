#include <algorithm>
#include <bit>

#include "select/kernels.h"
#include "select/share.h"

namespace locks::select {
namespace {

/// The masses of a block's pages, counted from the largest: each to `shares`, and their sum.
BlockMass weigh_block(const float* log_mass, int pages, float* shares) noexcept {
  float peak = -kInfinity;
  for (int i = 0; i < pages; ++i) peak = std::max(peak, mass_or_none(log_mass[i]));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int i = 0; i < pages; ++i) {
    const float own = from_block(log_mass[i], origin);
    shares[i] = own;
    lanes[i % kLanes] += own < kInfinity ? own : 0.0F;
  }
  return {origin, fold_sum(lanes)};
}

WholeMass head_shares(const HeadMass& head) noexcept {
  const float always = head.always_log_mass >= -kInfinity ? head.always_log_mass : -kInfinity;  // NaN: no mass
  float peak = always;
  for (int i = 0; i < head.pages; ++i) peak = std::max(peak, mass_or_none(head.log_mass[i]));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int first = 0, block = 0; first < head.pages; first += kBlockPages, ++block) {
    const BlockMass own = weigh_block(head.log_mass + first, std::min(kBlockPages, head.pages - first), head.shares + first);
    head.origins[block] = std::bit_cast<std::int32_t>(own.origin);
    lanes[block % kLanes] += from_origin(own, origin);
  }
  const WholeMass whole = whole_mass(always, origin, fold_sum(lanes));
  for (int i = 0; i < head.pages; ++i) {
    const float factor = share_exp(std::bit_cast<float>(head.origins[i / kBlockPages]) - whole.log_norm);
    head.shares[i] = page_share(head.shares[i], factor);
  }
  return whole;
}
void combine(const float* from, int pages, bool by_maximum, float* into) noexcept {
  for (int i = 0; i < pages; ++i) into[i] = by_maximum ? std::max(into[i], from[i]) : into[i] + from[i];
}

void part_shares(const PartLogits& parts, float* combined, float* of_heads) noexcept {
  const int num_parts = kLanes / parts.part_tokens;
  for (int page = 0; page < parts.pages; ++page, combined += num_parts) {
    std::fill_n(combined, num_parts, 0.0F);
    for (std::size_t head = 0; head < parts.log_norm.size(); ++head, of_heads += num_parts) {
      const float* const logits =
          parts.logits + page * parts.page_stride + static_cast<std::int64_t>(head) * parts.head_stride;
      Lanes mass;
      for (int token = 0; token < kLanes; ++token) mass[token] = share_exp(logits[token] - parts.log_norm[head]);
      fold_parts(mass, parts.part_tokens);
      for (int part = 0; part < num_parts; ++part) {
        of_heads[part] = mass[part];
        combined[part] = parts.by_maximum ? std::max(combined[part], mass[part]) : combined[part] + mass[part];
      }
    }
  }
}

}  // namespace

const Kernels& reference_kernels() noexcept {
  static constexpr Kernels kernels{head_shares, combine, part_shares};
  return kernels;
}

}  // namespace locks::select
