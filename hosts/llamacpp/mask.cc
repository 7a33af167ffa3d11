#include "mask.h"

#include <emmintrin.h>

namespace locks::llamacpp {
namespace {

constexpr std::uint16_t kZero = 0;
constexpr std::uint16_t kMinusZero = 0x8000;
constexpr std::uint16_t kMinusInfinity = 0xFC00;

}  // namespace

bool read_mask_row(const std::uint16_t* mask, std::int64_t num_cells, std::span<std::uint64_t> seen) noexcept {
  const __m128i zero = _mm_setzero_si128();
  const __m128i minus_infinity = _mm_set1_epi16(static_cast<short>(kMinusInfinity));
  std::int64_t cell = 0;
  for (; cell + 64 <= num_cells; cell += 64) {
    std::uint64_t zeros = 0;
    std::uint64_t known = 0;
    for (int part = 0; part < 4; ++part) {
      const auto* const at = reinterpret_cast<const __m128i*>(mask + cell + 16 * part);
      const __m128i low = _mm_loadu_si128(at);
      const __m128i high = _mm_loadu_si128(at + 1);
      const __m128i zero_low = _mm_cmpeq_epi16(low, zero);
      const __m128i zero_high = _mm_cmpeq_epi16(high, zero);
      const __m128i known_low = _mm_or_si128(zero_low, _mm_cmpeq_epi16(low, minus_infinity));
      const __m128i known_high = _mm_or_si128(zero_high, _mm_cmpeq_epi16(high, minus_infinity));
      zeros |= static_cast<std::uint64_t>(_mm_movemask_epi8(_mm_packs_epi16(zero_low, zero_high))) << (16 * part);
      known |= static_cast<std::uint64_t>(_mm_movemask_epi8(_mm_packs_epi16(known_low, known_high))) << (16 * part);
    }
    if (known != ~std::uint64_t{0}) break;  // the loop below looks closer, at the rest too
    seen[cell / 64] = zeros;
  }
  for (std::int64_t word = cell / 64; word < static_cast<std::int64_t>(seen.size()); ++word) seen[word] = 0;
  for (; cell < num_cells; ++cell) {
    const std::uint16_t value = mask[cell];
    if (value == kZero || value == kMinusZero) {
      seen[cell / 64] |= std::uint64_t{1} << (cell % 64);
    } else if (value != kMinusInfinity) {
      return false;
    }
  }
  return true;
}

}  // namespace locks::llamacpp
