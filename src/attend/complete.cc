#include "attend/attend_work.h"
#include "attend/backends.h"
#include "locks/attend.h"

namespace locks {

std::size_t complete_scratch_floats(int head_dim, int heads) noexcept {
  const auto count = static_cast<std::size_t>(heads);
  const auto rows = static_cast<std::size_t>(attend_work::kChunkTokens);
  const auto state = static_cast<std::size_t>(attend_work::state_floats(head_dim));
  return count * state + rows * static_cast<std::size_t>(head_dim) + count * (rows + 2);
}

void complete(const CompleteArgs& args, SoftmaxStates states, Target target) {
  if (target == Target::kReference) return complete_reference(args, states);
  complete_cpu(args, states, target);
}

}  // namespace locks
