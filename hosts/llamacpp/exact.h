// Attention for whatever mask: exact, without pages, slow. What remains when a row cannot be mapped to a sequence.
#pragma once

#include "attention_node.h"
#include "locks/team.h"

namespace locks::llamacpp {

/// This thread's share of the node's rows and heads. Allocates nothing.
void attend_exactly(const AttentionNode& node, Team team) noexcept;

}  // namespace locks::llamacpp
