// Rows of a KV cache as float vectors. Included by the SIMD sources, once per target (dispatch.h).
#if defined(LOCKS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKS_CPU_ROWS_INL_H_
#undef LOCKS_CPU_ROWS_INL_H_
#else
#define LOCKS_CPU_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/half.h"
#include "hwy/highway.h"
#include "locks/types.h"

HWY_BEFORE_NAMESPACE();
namespace locks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;  // 1, 8 or 16 lanes: each divides every head_dim and a q8_0 block
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));

/// All lanes the value of one f16.
HWY_INLINE FloatVec broadcast_f16(const std::byte* at) {
#if HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<std::int16_t>(load_u16(at))))};
#elif HWY_TARGET == HWY_AVX2
  return FloatVec{_mm256_cvtph_ps(_mm_set1_epi16(static_cast<std::int16_t>(load_u16(at))))};
#else
  return hn::Set(FloatTag(), f16_to_float(load_u16(at)));
#endif
}

HWY_INLINE FloatVec load_f16(const std::byte* at) {
#if HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
#elif HWY_TARGET == HWY_AVX2
  return FloatVec{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))};
#else
  return hn::Set(FloatTag(), f16_to_float(load_u16(at)));
#endif
}

HWY_INLINE FloatVec load_bf16(const std::byte* at) {
#if HWY_TARGET == HWY_AVX3
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return FloatVec{_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
#elif HWY_TARGET == HWY_AVX2
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  return FloatVec{_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
#else
  return hn::Set(FloatTag(), bf16_to_float(load_u16(at)));
#endif
}

HWY_INLINE FloatVec load_signed_bytes(const std::byte* at) {
#if HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))))};
#elif HWY_TARGET == HWY_AVX2
  return FloatVec{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))))};
#else
  return hn::Set(FloatTag(), static_cast<float>(static_cast<std::int8_t>(*at)));
#endif
}

/// Dimensions [dim, dim + kLanes) of a row; `dim` is a multiple of kLanes.
template <DType kType>
HWY_INLINE FloatVec load_values(const std::byte* row, int dim) {
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(row) + dim);
  } else if constexpr (kType == DType::kF16) {
    return load_f16(row + 2 * dim);
  } else if constexpr (kType == DType::kBF16) {
    return load_bf16(row + 2 * dim);
  } else {
    const std::byte* block = row + dim / kQ8BlockElements * kQ8BlockBytes;
    return hn::Mul(broadcast_f16(block), load_signed_bytes(block + 2 + dim % kQ8BlockElements));
  }
}

/// A whole row into `out` [head_dim].
template <DType kType>
HWY_INLINE void load_row(const std::byte* row, int head_dim, float* HWY_RESTRICT out) {
  if constexpr (kType == DType::kQ8_0) {
    for (int dim = 0; dim < head_dim; dim += kQ8BlockElements, row += kQ8BlockBytes) {
      const FloatVec scale = broadcast_f16(row);
      for (int i = 0; i < kQ8BlockElements; i += kLanes) {
        hn::StoreU(hn::Mul(scale, load_signed_bytes(row + 2 + i)), FloatTag(), out + dim + i);
      }
    }
  } else {
    for (int dim = 0; dim < head_dim; dim += kLanes) hn::StoreU(load_values<kType>(row, dim), FloatTag(), out + dim);
  }
}

/// Calls `work.template operator()<DType>()` for a dtype known at run time.
template <class Work>
HWY_INLINE void with_dtype(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kF32:
      return work.template operator()<DType::kF32>();
    case DType::kF16:
      return work.template operator()<DType::kF16>();
    case DType::kBF16:
      return work.template operator()<DType::kBF16>();
    case DType::kQ8_0:
      return work.template operator()<DType::kQ8_0>();
    case DType::kE4M3:
      return;  // refused by check::cpu_cache
  }
}

}  // namespace locks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKS_CPU_ROWS_INL_H_
