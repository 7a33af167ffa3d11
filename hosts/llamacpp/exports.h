// What the shared library shows to the world.
#pragma once

#include <cstddef>

#include "ggml-backend.h"
#include "ggml.h"

#define LOCKS_EXPORT __attribute__((visibility("default")))

extern "C" {

/// Give this as llama_context_params.cb_eval (or to ggml_backend_sched_set_eval_callback). `userdata` is not used.
LOCKS_EXPORT bool locks_cb_eval(ggml_tensor* node, bool ask, void* userdata);

/// Called by ggml_backend_load(). Null, after one line on stderr, if the plug-in cannot work here.
LOCKS_EXPORT ggml_backend_reg_t ggml_backend_init();
LOCKS_EXPORT int ggml_backend_score();

/// Writes the statistics so far as a JSON object, with a zero at the end, if it fits into `size` bytes. Returns the bytes
/// that it needs, the zero included.
LOCKS_EXPORT std::size_t locks_llamacpp_statistics(char* buffer, std::size_t size);
/// Begins to count anew, so that a prompt and what follows it can be told apart. Layers, caches and memory stay.
LOCKS_EXPORT void locks_llamacpp_reset_statistics();
}

namespace locks::llamacpp {
/// Front end B is in use; A then has nothing to do.
[[nodiscard]] bool backend_is_loaded() noexcept;
}  // namespace locks::llamacpp
