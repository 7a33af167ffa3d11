// What the plug-in did: counted while it works, said in single lines on stderr, given as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "attention_node.h"
#include "settings.h"

namespace locks::llamacpp {

/// One line on stderr, with the plug-in's name in front. Never throws.
void say(const std::string& line) noexcept;

/// Sums since the start. One call is one attention node computed once.
struct Counters {
  std::int64_t decode_calls = 0;
  std::int64_t prefill_calls = 0;
  std::int64_t exact_calls = 0;  // of rows that could not be mapped to pages: exact, but slow
  std::array<std::int64_t, static_cast<std::size_t>(Decline::kCount)> declined{};
  std::int64_t decode_steps = 0;
  std::int64_t prefill_steps = 0;
  std::int64_t layers = 0;  // the most that one cache has shown
  std::int64_t caches = 0;

  // Over decode requests, each layer counted.
  std::int64_t requests = 0;
  std::int64_t sparse_requests = 0;
  double context_tokens = 0.0;
  double attended_tokens = 0.0;
  double coverage = 0.0;
  double completed_pages = 0.0;
  std::int64_t score_bytes = 0;
  std::int64_t attend_bytes = 0;
  std::int64_t complete_bytes = 0;
  std::int64_t dense_bytes = 0;
  std::int64_t held_bytes = 0;  // beside the cache, of what is known of the request's sequence
  std::int64_t last_context_tokens = 0;
  struct LayerCoverage {
    std::int64_t requests = 0;
    std::vector<double> sums;  // [kv_heads]
  };
  std::vector<LayerCoverage> coverage_of_layers;

  std::int64_t summarized_pages = 0;  // (page, layer)
  std::int64_t restored_pages = 0;    // of these, in bulk, of a cache that others had filled
  std::int64_t not_finite_records = 0;
  std::int64_t stale_events = 0;  // nodes seen to change keys in place
  std::int64_t canary_hits = 0;   // steps in which keys had changed unseen
  std::int64_t adoptions = 0;
  double summary_share = 0.0;  // bytes of a page's summary over those of its keys and values in f16

  struct Memory {
    std::int64_t summaries = 0;  // bytes that have been written
    std::int64_t cache = 0;      // of the keys and values of the same pages, which are the host's
  };
  Memory memory;
  Memory most_memory;

  double summarize_seconds = 0.0;
  double restore_seconds = 0.0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
};

/// Lines that are said at most once.
enum class Notice { kCallFailed, kNodeChanged, kRefused, kStatus, kGpu, kEntryFailed, kPromptUnseen };

class Reporter {
 public:
  /// Runs `update` on the counters.
  template <class Update>
  void count(Update update) {
    const std::lock_guard lock(mutex_);
    update(counters_);
  }
  [[nodiscard]] Counters counters();
  /// A page of one layer got memory for its summary.
  void add_memory(const Counters::Memory& page) noexcept;
  /// So many pages of one layer gave it back.
  void free_memory(const Counters::Memory& page, std::int64_t num_pages) noexcept;
  /// Counts a declined node and says so the first time for each reason.
  void declined(Decline reason, const char* node_name) noexcept;
  void say_once(Notice notice, const std::string& line) noexcept;

  [[nodiscard]] std::string json();
  [[nodiscard]] std::string summary();
  /// At exit: the statistics file and the summary, if asked for.
  void finish(const Settings& settings) noexcept;

 private:
  std::mutex mutex_;
  Counters counters_;
  std::uint64_t said_ = 0;
  std::uint64_t said_declines_ = 0;
};

Reporter& reporter() noexcept;

}  // namespace locks::llamacpp
