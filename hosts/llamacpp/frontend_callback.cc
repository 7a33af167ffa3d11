// Front end A: the evaluation callback of ggml's scheduler, for programs that set their own context parameters
// (llama_context_params.cb_eval). Public interface only. It is asked about every node before every run.
#include "exports.h"
#include "plugin.h"
#include "report.h"

extern "C" LOCKS_EXPORT bool locks_cb_eval(ggml_tensor* node, bool ask, void* /*userdata*/) {
  using namespace locks::llamacpp;
  if (!ask) return true;  // never asked for, but to refuse would cancel the run
  try {
    Plugin* const active = backend_is_loaded() ? nullptr : plugin();
    if (active != nullptr) active->visit(node, Plugin::Sees::kEveryRun);
  } catch (...) {
    reporter().say_once(Notice::kEntryFailed, "an attention node is left to the host: out of memory");
  }
  return false;  // the graph stays in one piece
}
