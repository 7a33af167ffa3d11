#include "exports.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
    locks::llamacpp::Counters before = std::move(counters);
    counters = {};
    counters.layers = before.layers;
    counters.caches = before.caches;
    counters.summary_share = before.summary_share;
    counters.memory = counters.most_memory = before.memory;
    // A step that is under way counts into it.
    counters.coverage_of_layers = std::move(before.coverage_of_layers);
    for (auto& layer : counters.coverage_of_layers) {
      layer.requests = 0;
      std::fill(layer.sums.begin(), layer.sums.end(), 0.0);
    }
  });
}
