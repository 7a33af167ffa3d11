// The file that LOCKS_TRACE names; docs/EVALS.md has its format. Records are whole on the disk one after the other, so that
// the trace of a process that ends at any time can be read.
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>

#include "settings.h"
#include "traced_row.h"

namespace locks::llamacpp {

class TraceFile {
 public:
  using Say = std::function<void(const std::string&)>;

  /// Begins the file anew. It ends at the settings' limit, or where it cannot be written; `say` is told so, once.
  TraceFile(const Settings& settings, Say say);

  /// Whether there is any use in appending.
  [[nodiscard]] bool goes_on() const noexcept { return goes_on_; }
  void append(const TracedRow& row);
  /// Ends it, for that reason.
  void end(const std::string& why) noexcept;

  // Numbers that nothing else in the file has.
  [[nodiscard]] std::int64_t next_step() noexcept { return steps_++; }
  [[nodiscard]] int next_cache() noexcept { return caches_++; }

 private:
  void write(const std::string& bytes);
  void end_locked(const std::string& why);

  const std::string path_;
  const std::int64_t limit_mb_;
  const Say say_;
  std::mutex mutex_;
  std::ofstream file_;
  std::int64_t written_ = 0;  // bytes
  std::atomic<bool> goes_on_ = true;
  std::atomic<std::int64_t> steps_ = 0;
  std::atomic<int> caches_ = 0;
};

}  // namespace locks::llamacpp
