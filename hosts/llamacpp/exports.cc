#include "exports.h"

#include <cstring>

#include "report.h"

extern "C" LOCKS_EXPORT std::size_t locks_llamacpp_statistics(char* buffer, std::size_t size) {
  try {
    const std::string json = locks::llamacpp::reporter().json();
    if (buffer != nullptr && size > json.size()) std::memcpy(buffer, json.c_str(), json.size() + 1);
    return json.size() + 1;
  } catch (...) {
    return 0;
  }
}

extern "C" LOCKS_EXPORT void locks_llamacpp_reset_statistics() {
  locks::llamacpp::reporter().count([](locks::llamacpp::Counters& counters) {
    const locks::llamacpp::Counters before = counters;
    counters = {};
    counters.layers = before.layers;
    counters.caches = before.caches;
    counters.summary_share = before.summary_share;
    counters.memory = counters.most_memory = before.memory;
  });
}
