// One SIMD source for all CPU targets. A file `x_cpu.cc` begins
//
//     #undef HWY_TARGET_INCLUDE
//     #define HWY_TARGET_INCLUDE "stage/x_cpu.cc"
//     #include "hwy/foreach_target.h"   // IWYU: keep first
//     #include "hwy/highway.h"
//     HWY_BEFORE_NAMESPACE();
//     namespace locks::HWY_NAMESPACE { namespace hn = hwy::HWY_NAMESPACE; ... functions ... }
//     HWY_AFTER_NAMESPACE();
//     #if HWY_ONCE
//     ... LOCKS_PICK(function, target)(arguments) ...
//     #endif
//
// Only Highway's headers are used: the choice of a target is ours (target.cc), so nothing links libhwy.
#pragma once

#include "locks/target.h"

/// The variant of `function` (in namespace locks) for a SIMD target. Valid where HWY_ONCE holds.
#define LOCKS_PICK(function, target)                        \
  ((target) == ::locks::Target::kAvx512 ? &N_AVX3::function \
   : (target) == ::locks::Target::kAvx2 ? &N_AVX2::function \
                                        : &N_SCALAR::function)
