#include <algorithm>

#include "select/kernels.h"
#include "select/share.h"

namespace locks::select {
namespace {

BlockMass block_mass(const float* log_mass, int pages) noexcept {
  float peak = -kInfinity;
  for (int i = 0; i < pages; ++i) peak = std::max(peak, mass_or_none(log_mass[i]));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int i = 0; i < pages; ++i) lanes[i % kLanes] += share_exp(mass_or_none(log_mass[i]) - origin);
  return {origin, fold_sum(lanes)};
}

float head_shares(const HeadMass& head) noexcept {
  const float always = head.always_log_mass >= -kInfinity ? head.always_log_mass : -kInfinity;  // NaN: no mass
  float peak = always;
  for (int i = 0; i < head.pages; ++i) peak = std::max(peak, mass_or_none(head.log_mass[i]));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int first = 0; first < head.pages; first += kBlockPages) {
    const BlockMass block = block_mass(head.log_mass + first, std::min(kBlockPages, head.pages - first));
    lanes[first / kBlockPages % kLanes] += from_origin(block, origin);
  }
  const float norm = log_norm(always, origin, lanes);
  for (int i = 0; i < head.pages; ++i) {
    const float log_mass = head.log_mass[i];
    head.shares[i] = log_mass == kInfinity ? kInfinity : share_exp(mass_or_none(log_mass) - norm);
  }
  return norm;
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

float clear_marked(float* shares, int pages) noexcept {
  Lanes blocks{};
  for (int first = 0; first < pages; first += kBlockPages) {
    Lanes lanes{};
    for (int i = first; i < std::min(first + kBlockPages, pages); ++i) {
      shares[i] = shares[i] < kInfinity ? shares[i] : 0.0F;
      lanes[(i - first) % kLanes] += shares[i];
    }
    blocks[first / kBlockPages % kLanes] += fold_sum(lanes);
  }
  return fold_sum(blocks);
}

}  // namespace

const Kernels& reference_kernels() noexcept {
  static constexpr Kernels kernels{head_shares, combine, part_shares, clear_marked};
  return kernels;
}

}  // namespace locks::select
