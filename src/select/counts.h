// How many of what, from the settings and the context length alone.
#pragma once

#include "locks/select.h"

namespace locks::select {

/// The budget less what is always attended.
[[nodiscard]] int remaining_tokens(const SelectConfig& config, const AlwaysAttended& always) noexcept;
[[nodiscard]] int candidate_pages(const SelectConfig& config, const AlwaysAttended& always) noexcept;
/// Of a completion that finds enough pages with mass.
[[nodiscard]] int completed_pages(const SelectConfig& config, const AlwaysAttended& always) noexcept;

}  // namespace locks::select
