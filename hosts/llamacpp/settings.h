// What a user can set: by LOCKS_* variables, or by a small JSON file with the same names in lower case.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "locks/decode.h"
#include "locks/selector.h"

namespace locks::llamacpp {

enum class Report { kStatusLine, kNothing, kSummary };

struct Settings {
  DecodeConfig decode;
  bool off = false;
  std::string selector = "locks";       // or "dense", or a rival
  std::optional<SelectorConfig> rival;  // if it is one
  RopeConfig rope;                      // of the model, for selectors that undo it
  int dense_layers = 0;                 // the first layers are attended whole
  bool prefill = true;                  // take the prompt's attention too
  Report report = Report::kStatusLine;
  std::string statistics_path;  // "" : none
  std::string trace_path;       // "" : none
  int trace_mb = 64;            // most MiB of it

  std::uint32_t given = 0;  // bit i: setting_names()[i] was set

  [[nodiscard]] bool is_dense() const noexcept { return selector == "dense"; }
  [[nodiscard]] bool keeps_values() const noexcept { return !rival && decode.select.completion_fraction > 0.0F; }
};

/// One line for each name that may be set: what it may be. Names are those of the JSON file.
struct SettingName {
  std::string_view key;       // "budget_tokens"; the variable is LOCKS_BUDGET_TOKENS
  std::string_view expected;  // "a whole number from 16 to 1000000"
};
[[nodiscard]] std::span<const SettingName> setting_names() noexcept;

/// Sets one; `origin` is how messages call it. Throws std::invalid_argument: an unknown name with the list of known
/// ones, or a value with what it may be.
void apply_setting(Settings& settings, std::string_view key, std::string_view value, const std::string& origin);

/// When all are set: settings that contradict each other are refused, and a rival's own take the place of LOCKS's. Throws
/// std::invalid_argument.
void settle(Settings& settings);

/// A flat JSON object. Throws FormatError (not JSON, with the byte offset) or std::invalid_argument.
void apply_json(Settings& settings, std::string_view text, const std::string& file_name);

/// From an environment block ("NAME=value" strings, null at the end): the file that LOCKS_CONFIG names first, then the
/// variables. Throws what the above throw, and std::runtime_error if the file cannot be read.
[[nodiscard]] Settings read_settings(const char* const* environment);

}  // namespace locks::llamacpp
