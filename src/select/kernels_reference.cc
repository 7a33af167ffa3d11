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

void part_shares(const PageLogits& page, int part_tokens, bool by_maximum, float* parts) noexcept {
  const int num_parts = kLanes / part_tokens;
  std::fill_n(parts, num_parts, 0.0F);
  Lanes mass{};
  const auto add_parts = [&](int part) {
    float sum = mass[part * part_tokens];
    for (int i = 1; i < part_tokens; ++i) sum += mass[part * part_tokens + i];
    return sum;
  };
  for (std::size_t head = 0; head < page.log_norm.size(); ++head) {
    const float* const logits = page.logits + static_cast<std::int64_t>(head) * page.head_stride;
    for (int token = 0; token < kLanes; ++token) {
      const float share = share_exp(logits[token] - page.log_norm[head]);
      mass[token] = by_maximum ? share : mass[token] + share;
    }
    for (int part = 0; by_maximum && part < num_parts; ++part) parts[part] = std::max(parts[part], add_parts(part));
  }
  for (int part = 0; !by_maximum && part < num_parts; ++part) parts[part] = add_parts(part);
}

float unselected_share(const float* logits, float log_norm, std::uint16_t mask) noexcept {
  Lanes mass;
  for (int token = 0; token < kLanes; ++token) {
    mass[token] = (mask >> token & 1) != 0 ? 0.0F : share_exp(logits[token] - log_norm);
  }
  return fold_sum(mass);
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
  static constexpr Kernels kernels{head_shares, combine, part_shares, unselected_share, clear_marked};
  return kernels;
}

}  // namespace locks::select
