#include <algorithm>
#include <cmath>

#include "select/kernels.h"
#include "select/share.h"

namespace locks::select {
namespace {

float head_shares(const HeadMass& head) noexcept {
  const float always = head.always_log_mass >= -kInfinity ? head.always_log_mass : -kInfinity;  // NaN: no mass
  float peak = always;
  for (int i = 0; i < head.pages; ++i) peak = std::max(peak, mass_or_none(head.log_mass[i]));
  const float origin = peak > -kInfinity ? peak : 0.0F;
  Lanes lanes{};
  for (int i = 0; i < head.pages; ++i) {
    const bool marked = head.log_mass[i] == kInfinity;
    const float mass = share_exp(mass_or_none(head.log_mass[i]) - origin);
    lanes[i % kLanes] += mass;
    head.shares[i] = marked ? kInfinity : mass;
  }
  const float whole = share_exp(always - origin) + fold_sum(lanes);
  if (!(whole > 0.0F)) return kInfinity;
  const float scale = 1.0F / whole;
  for (int i = 0; i < head.pages; ++i) head.shares[i] *= scale;
  return origin + std::log(whole);
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
  Lanes lanes{};
  for (int i = 0; i < pages; ++i) {
    shares[i] = shares[i] < kInfinity ? shares[i] : 0.0F;
    lanes[i % kLanes] += shares[i];
  }
  return fold_sum(lanes);
}

}  // namespace

const Kernels& reference_kernels() noexcept {
  static constexpr Kernels kernels{head_shares, combine, part_shares, clear_marked};
  return kernels;
}

}  // namespace locks::select
