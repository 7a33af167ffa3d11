// What the doors of Quest and the oracle on the GPU hand to the kernels. Plain data, for C++ and CUDA alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/args.h"
#include "cuda/step.h"
#include "locks/cuda_selectors.h"

namespace locks::cuda::rivals {

inline constexpr int kHeadsAtOnce = 16;  // query heads of a KV head that a launch holds; more take further launches

/// Which pages of a request are scored: in a step those that can be selected and the first ones, otherwise every filled one.
struct ScoredPages {
  bool in_step = false;
  StepPages pages;
  [[nodiscard]] constexpr int count(int context_tokens) const noexcept {
    if (!in_step) return context_tokens / kPageTokens;
    const AlwaysAttended always = always_attended(pages.config, context_tokens, pages.min_context_tokens);
    return always.everything ? 0 : always.first_recent_page;
  }
};

/// Pages are those of `pages`, or those that `slots` fill.
struct Bounds {
  PagedCache keys;
  const std::int32_t* pages = nullptr;
  const std::int64_t* slots = nullptr;
  std::int64_t items = 0;  // of either
  std::int64_t num_pages = 0;
  int kv_heads = 0;
  PageBounds out;
};
void launch(const Bounds& args, Stream stream);

struct BoundScores {
  BoundScoreArgs args;
  DeviceTable table;
  ScoredPages scored;
  int max_pages = 0;
  int first_head = 0;  // of the launch, in the group of a KV head
};
void launch(const BoundScores& args, Stream stream);

struct KeyMasses {
  KeyMassArgs args;
  DeviceTable table;
  ScoredPages scored;
  int max_pages = 0;
  int lists = 0;       // of the logits; 0: none are wanted
  int first_head = 0;  // as above
};
void launch(const KeyMasses& args, Stream stream);

/// As the public ones.
void score_bounds(const BoundScoreArgs& args, const ScoredPages& scored, Stream stream);
void key_masses(const KeyMassArgs& args, const ScoredPages& scored, Stream stream);

/// Throws where the cache's shape or alignment does not suit the kernels.
void check_keys(const PagedCache& keys, int head_dim, int kv_heads);
void check_bounds(const std::string& argument, const PageBounds& bounds, int head_dim, int kv_heads);

}  // namespace locks::cuda::rivals
