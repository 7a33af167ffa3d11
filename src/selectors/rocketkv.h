// How RocketKV divides its budget.
#pragma once

namespace locks::selectors {

struct RocketSizes {
  int kept_tokens = 0;  // of the prompt
  int page_tokens = 0;  // of the kept tokens, bounded together
  int channels = 0;     // that scoring reads
  int attended_tokens = 0;
};
[[nodiscard]] RocketSizes rocket_sizes(int budget_tokens, int prompt_tokens, int new_tokens, int head_dim) noexcept;

}  // namespace locks::selectors
