// What attend.cc and complete.cc choose from. The arguments were checked.
#pragma once

#include "locks/attend.h"

namespace locks {

void attend_reference(const AttendArgs& args, Team team);
void attend_cpu(const AttendArgs& args, Team team, Target target);

void complete_reference(const CompleteArgs& args, SoftmaxStates states);
void complete_cpu(const CompleteArgs& args, SoftmaxStates states, Target target);

}  // namespace locks
