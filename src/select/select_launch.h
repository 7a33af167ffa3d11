// What the checked entry points call.
#pragma once

#include "select/select_lists.cuh"

namespace locks::cuda::select_kernels {

void launch_list_always(const SelectConfig& config, int min_context_tokens, std::span<const std::int32_t> context_tokens,
                        View<SelectedPage, 2> lists, std::int32_t* num_entries, std::int32_t* scored_tokens, Stream stream);
void launch_pages(const Lists& lists, Stream stream);
void launch_tokens(const Lists& lists, Stream stream);

}  // namespace locks::cuda::select_kernels
