#include "trace_file.h"

#include <bit>
#include <cstddef>
#include <locale>
#include <sstream>
#include <string_view>
#include <vector>

#include "cpu/half.h"

namespace locks::llamacpp {
namespace {

constexpr std::int64_t kBytesOfMb = std::int64_t{1} << 20;

std::string header(const Settings& settings) {
  const SelectConfig& select = settings.decode.select;
  std::ostringstream text;
  text.imbue(std::locale::classic());  // numbers of JSON, whatever the host has set
  text << R"(locks attention trace 2)"
       << "\n"
       << R"({"model": "", "settings": {"selector": ")" << settings.selector << '"';
  if (!settings.is_dense()) {
    constexpr std::string_view kCombines[] = {"sum", "max", "per_query_head"};
    text << R"(, "budget_tokens": )" << select.budget_tokens << R"(, "sink_tokens": )" << select.sink_tokens
         << R"(, "recent_tokens": )" << select.recent_tokens << R"(, "part_tokens": )" << select.part_tokens
         << R"(, "format": ")" << settings.decode.format->name << R"(", "completion": )" << select.completion_fraction
         << R"(, "combine": ")" << kCombines[static_cast<std::size_t>(select.combine)] << R"(", "min_context": )"
         << settings.decode.min_context_tokens << R"(, "dense_layers": )" << settings.dense_layers;
  }
  text << R"(}, "masses": ["true_mass", "covered_mass", "estimated_mass"]})"
       << "\n";
  return text.str();
}

void put(std::string& bytes, const std::vector<std::uint16_t>& values) {
  static_assert(std::endian::native == std::endian::little);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
}

void put(std::string& bytes, const std::vector<float>& masses) {
  std::vector<std::uint16_t> halves;
  halves.reserve(masses.size());
  for (const float mass : masses) halves.push_back(float_to_f16(mass));
  put(bytes, halves);
}

std::string record(const TracedRow& row) {
  const DecodeReport& report = row.report;
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << R"({"step": )" << row.step << R"(, "row": )" << row.row << R"(, "cache": )" << row.cache << R"(, "sequence": )"
       << row.sequence << R"(, "layer": )" << row.layer << R"(, "tokens": )" << report.context_tokens << R"(, "lists": )"
       << row.lists << R"(, "whole": )" << (report.dense ? "true" : "false") << R"(, "bytes": {"score": )"
       << report.score_bytes << R"(, "attend": )" << report.attend_bytes << R"(, "complete": )" << report.complete_bytes
       << R"(, "dense": )" << report.dense_bytes << "}}\n";
  std::string bytes = text.str();
  put(bytes, row.true_mass);
  put(bytes, row.covered_mass);
  put(bytes, row.estimated_mass);
  put(bytes, row.attended);
  put(bytes, row.completed);
  return bytes;
}

}  // namespace

TraceFile::TraceFile(const Settings& settings, Say say)
    : path_(settings.trace_path),
      limit_mb_(settings.trace_mb),
      say_(std::move(say)),
      file_(path_, std::ios::binary | std::ios::trunc) {
  write(header(settings));
}

void TraceFile::append(const TracedRow& row) {
  const std::string bytes = record(row);
  const std::lock_guard lock(mutex_);
  if (goes_on_) write(bytes);
}

void TraceFile::write(const std::string& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (written_ + size > limit_mb_ * kBytesOfMb) {
    return end_locked("the trace " + path_ + " is full: its limit is " + std::to_string(limit_mb_) +
                      " MiB (LOCKS_TRACE_MB)");
  }
  written_ += size;
  file_.write(bytes.data(), size);
  file_.flush();
  if (!file_) end_locked("cannot write the trace to " + path_);
}

void TraceFile::end(const std::string& why) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    end_locked("the trace " + path_ + " ends: " + why);
  } catch (...) {
    goes_on_ = false;
  }
}

void TraceFile::end_locked(const std::string& why) {
  if (!goes_on_.exchange(false)) return;
  file_.close();
  say_(why);
}

}  // namespace locks::llamacpp
