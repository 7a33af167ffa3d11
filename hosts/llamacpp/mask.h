// An attention mask's rows as sets of cells.
#pragma once

#include <cstdint>
#include <span>

namespace locks::llamacpp {

/// Sets bit i of `seen` where the f16 `mask` is 0 and clears it where it is -infinity. False if there is any other value,
/// such as a position bias; `seen` is then unspecified. `seen` has ceil(num_cells / 64) words.
[[nodiscard]] bool read_mask_row(const std::uint16_t* mask, std::int64_t num_cells, std::span<std::uint64_t> seen) noexcept;

}  // namespace locks::llamacpp
