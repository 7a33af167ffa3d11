#include "report.h"

#include <cstdio>
#include <fstream>
#include <locale>
#include <sstream>

#include "locks/target.h"
#include "locks/version.h"

namespace locks::llamacpp {
namespace {

double mean(double sum, std::int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; }

/// Writes one flat JSON object.
class JsonObject {
 public:
  JsonObject() {
    text_.imbue(std::locale::classic());  // numbers of JSON, whatever the host has set
    text_.precision(9);
  }
  template <class Number>
  void number(std::string_view key, Number value) {
    begin(key);
    text_ << value;
  }
  void string(std::string_view key, std::string_view value) {
    begin(key);
    text_ << '"' << value << '"';
  }
  void raw(std::string_view key, const std::string& json) {
    begin(key);
    text_ << json;
  }
  [[nodiscard]] std::string text() const { return "{" + text_.str() + "}"; }

 private:
  void begin(std::string_view key) {
    text_ << (first_ ? "" : ", ") << '"' << key << "\": ";
    first_ = false;
  }
  std::ostringstream text_;
  bool first_ = true;
};

/// Means by layer and KV head, [[...], ...]; of a layer that has decoded nothing, [].
std::string coverage_json(const std::vector<Counters::LayerCoverage>& layers) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(4);
  for (const Counters::LayerCoverage& layer : layers) {
    text << (&layer == layers.data() ? "[" : ", [");
    for (std::size_t head = 0; layer.requests > 0 && head < layer.sums.size(); ++head) {
      text << (head == 0 ? "" : ", ") << mean(layer.sums[head], layer.requests);
    }
    text << ']';
  }
  return "[" + text.str() + "]";
}

}  // namespace

void say(const std::string& line) noexcept { std::fprintf(stderr, "locks: %s\n", line.c_str()); }

Reporter& reporter() noexcept {
  static Reporter* const kept = new Reporter;  // outlives every thread that may still report
  return *kept;
}

Counters Reporter::counters() {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Reporter::add_memory(const Counters::Memory& page) noexcept {
  const std::lock_guard lock(mutex_);
  counters_.memory.summaries += page.summaries;
  counters_.memory.cache += page.cache;
  if (counters_.memory.summaries > counters_.most_memory.summaries) counters_.most_memory = counters_.memory;
}

void Reporter::free_memory(const Counters::Memory& page, std::int64_t num_pages) noexcept {
  const std::lock_guard lock(mutex_);
  counters_.memory.summaries -= num_pages * page.summaries;
  counters_.memory.cache -= num_pages * page.cache;
}

void Reporter::declined(Decline reason, const char* node_name) noexcept {
  const std::lock_guard lock(mutex_);
  ++counters_.declined[static_cast<std::size_t>(reason)];
  const std::uint64_t bit = std::uint64_t{1} << static_cast<int>(reason);
  if ((said_declines_ & bit) != 0) return;
  said_declines_ |= bit;
  const std::string_view text = decline_text(reason);
  std::fprintf(stderr, "locks: attention node %.64s is left to the host: %.*s\n", node_name, static_cast<int>(text.size()),
               text.data());
}

void Reporter::say_once(Notice notice, const std::string& line) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bit = std::uint64_t{1} << static_cast<int>(notice);
    if ((said_ & bit) != 0) return;
    said_ |= bit;
  }
  say(line);
}

std::string Reporter::json() {
  const Counters c = counters();
  std::int64_t all_declined = 0;
  JsonObject reasons;
  for (std::size_t i = 1; i < c.declined.size(); ++i) {
    if (c.declined[i] > 0) reasons.number(decline_key(static_cast<Decline>(i)), c.declined[i]);
    all_declined += c.declined[i];
  }
  JsonObject all;
  all.string("version", kVersion);
  all.number("calls_taken", c.decode_calls + c.prefill_calls + c.exact_calls);
  all.number("decode_calls", c.decode_calls);
  all.number("prefill_calls", c.prefill_calls);
  all.number("exact_calls", c.exact_calls);
  all.number("calls_declined", all_declined);
  all.raw("declined", reasons.text());
  all.number("decode_steps", c.decode_steps);
  all.number("prefill_steps", c.prefill_steps);
  all.number("layers", c.layers);
  all.number("caches", c.caches);
  all.number("requests", c.requests);
  all.number("sparse_requests", c.sparse_requests);
  all.number("context_tokens", mean(c.context_tokens, c.requests));
  all.number("last_context_tokens", c.last_context_tokens);
  all.number("attended_tokens", mean(c.attended_tokens, c.requests));
  all.number("coverage", mean(c.coverage, c.requests));
  all.number("completed_pages", mean(c.completed_pages, c.requests));
  all.number("score_bytes", c.score_bytes);
  all.number("attend_bytes", c.attend_bytes);
  all.number("complete_bytes", c.complete_bytes);
  all.number("dense_bytes", c.dense_bytes);
  all.number("held_bytes", c.held_bytes);
  all.number("summarized_pages", c.summarized_pages);
  all.number("restored_pages", c.restored_pages);
  all.number("not_finite_records", c.not_finite_records);
  all.number("stale_events", c.stale_events);
  all.number("canary_hits", c.canary_hits);
  all.number("adoptions", c.adoptions);
  all.number("summary_share", c.summary_share);
  all.number("summary_bytes", c.most_memory.summaries);
  all.number("cache_bytes", c.most_memory.cache);
  all.number("summarize_seconds", c.summarize_seconds);
  all.number("restore_seconds", c.restore_seconds);
  all.number("prefill_seconds", c.prefill_seconds);
  all.number("decode_seconds", c.decode_seconds);
  all.raw("coverage_by_head", coverage_json(c.coverage_of_layers));
  return all.text();
}

std::string Reporter::summary() {
  const Counters c = counters();
  const double read = static_cast<double>(c.score_bytes + c.attend_bytes + c.complete_bytes);
  std::ostringstream text;
  text.precision(4);
  text << c.decode_steps << " decode and " << c.prefill_steps << " prompt steps, "
       << c.decode_calls + c.prefill_calls + c.exact_calls << " attention calls in " << c.layers << " layers; attended "
       << mean(c.attended_tokens, c.requests) << " of " << mean(c.context_tokens, c.requests)
       << " tokens, estimated coverage " << mean(c.coverage, c.requests) << ", read "
       << (c.dense_bytes > 0 ? 100.0 * read / static_cast<double>(c.dense_bytes) : 0.0) << " % of the bytes; "
       << c.summarized_pages << " summaries in " << c.summarize_seconds << " s (" << c.restored_pages
       << " of a restored cache in " << c.restore_seconds << " s), " << c.stale_events + c.canary_hits
       << " times stale; prompt attention " << c.prefill_seconds << " s, decode attention " << c.decode_seconds << " s";
  return text.str();
}

void Reporter::finish(const Settings& settings) noexcept {
  try {
    if (settings.report == Report::kSummary) say(summary());
    if (settings.statistics_path.empty()) return;
    std::ofstream file(settings.statistics_path);
    file << json() << '\n';
    file.flush();
    if (!file) say("cannot write the statistics to " + settings.statistics_path);
  } catch (...) {
    say("cannot write the statistics");
  }
}

}  // namespace locks::llamacpp
