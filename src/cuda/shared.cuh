// Declares `name` as an array of T: the shared memory whose size a launch says. A function that returned it would cost the
// kernels that fill their registers some. With LOCKS_EMULATED the emulator is included before this.
#pragma once

#ifdef LOCKS_EMULATED
#define LOCKS_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(locks::cuda::emulator::dynamic_shared())
#else
#define LOCKS_DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) T name[]
#endif
