// Sixteen floats, one per token of a page, and the small matrices made of them. Included by the SIMD sources, once per
// target (dispatch.h).
#if defined(LOCKS_SUMMARIZE_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_SUMMARIZE_TOKENS_INL_H_
#undef LOCKS_SUMMARIZE_TOKENS_INL_H_
#else
#define LOCKS_SUMMARIZE_TOKENS_INL_H_
#endif

#include "cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// One float per token.
struct Tokens {
  static constexpr int kVecs = kPageTokens / kLanes;
  FloatVec part[kVecs];
};

HWY_INLINE Tokens load_tokens(const float* from) {
  Tokens out;
  for (int i = 0; i < Tokens::kVecs; ++i) out.part[i] = hn::Load(FloatTag(), from + i * kLanes);
  return out;
}
HWY_INLINE void store_tokens(const Tokens& x, float* to) {
  for (int i = 0; i < Tokens::kVecs; ++i) hn::Store(x.part[i], FloatTag(), to + i * kLanes);
}
HWY_INLINE Tokens zero_tokens() {
  Tokens out;
  for (int i = 0; i < Tokens::kVecs; ++i) out.part[i] = hn::Zero(FloatTag());
  return out;
}
HWY_INLINE Tokens scaled(const Tokens& x, float factor) {
  Tokens out;
  for (int i = 0; i < Tokens::kVecs; ++i) out.part[i] = hn::Mul(x.part[i], hn::Set(FloatTag(), factor));
  return out;
}
/// sum + factor x
HWY_INLINE Tokens add_scaled(const Tokens& sum, float factor, const Tokens& x) {
  Tokens out;
  for (int i = 0; i < Tokens::kVecs; ++i) out.part[i] = hn::MulAdd(hn::Set(FloatTag(), factor), x.part[i], sum.part[i]);
  return out;
}
HWY_INLINE float sum_lanes(FloatVec x) { return hn::GetLane(hn::SumOfLanes(FloatTag(), x)); }
HWY_INLINE float dot(const Tokens& a, const Tokens& b) {
  FloatVec sum = hn::Mul(a.part[0], b.part[0]);
  for (int i = 1; i < Tokens::kVecs; ++i) sum = hn::MulAdd(a.part[i], b.part[i], sum);
  return sum_lanes(sum);
}

/// The lanes from `first` on; zeros before.
HWY_INLINE Tokens tail(const Tokens& x, int first) {
  alignas(64) static constexpr std::uint32_t kMask[2 * kPageTokens] = {0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
                                                                       0,   0,   0,   0,   0,   ~0U, ~0U, ~0U, ~0U, ~0U, ~0U,
                                                                       ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U};
  const hn::RebindToUnsigned<FloatTag> du;
  Tokens out;
  for (int i = 0; i < Tokens::kVecs; ++i) {
    const auto mask = hn::LoadU(du, kMask + kPageTokens - first + i * kLanes);
    out.part[i] = hn::And(x.part[i], hn::BitCast(FloatTag(), mask));
  }
  return out;
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_SUMMARIZE_TOKENS_INL_H_
