// Front end C, a library of its own for LD_PRELOAD: stands before ggml's function that sets the evaluation callback, and
// puts front end A where the program sets none.
#include <dlfcn.h>

#include <string>

#include "exports.h"
#include "host.h"
#include "report.h"

extern "C" LOCKS_EXPORT void ggml_backend_sched_set_eval_callback(ggml_backend_sched_t scheduler,
                                                                  ggml_backend_sched_eval_callback callback,
                                                                  void* userdata) {
  using Setter = decltype(&ggml_backend_sched_set_eval_callback);
  constexpr const char* kName = "ggml_backend_sched_set_eval_callback";
  static const Setter next = [] {
    auto found = reinterpret_cast<Setter>(dlsym(RTLD_NEXT, kName));
    std::string why;
    const locks::llamacpp::Host* const host = locks::llamacpp::probe_host(why);
    // Under Python ggml is in no global scope, and RTLD_NEXT does not reach it.
    if (found == nullptr && host != nullptr) found = reinterpret_cast<Setter>(dlsym(host->handle, kName));
    return found;
  }();
  if (next == nullptr || next == &ggml_backend_sched_set_eval_callback) {
    locks::llamacpp::say("not active: ggml's ggml_backend_sched_set_eval_callback was not found");
    return;
  }
  next(scheduler, callback != nullptr ? callback : &locks_cb_eval, callback != nullptr ? userdata : nullptr);
}
