#include "common.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include <fmt/format.h>

namespace locks::cli {

std::vector<std::string> supported_target_names() {
  std::vector<std::string> names;
  for (const Target target : supported_targets()) names.emplace_back(target_name(target));
  return names;
}

CLI::Option* add_target_option(CLI::App& command, std::vector<std::string>& targets, const std::string& help) {
  const CLI::Validator is_supported(
      [](std::string& name) -> std::string {
        const auto names = supported_target_names();
        if (std::find(names.begin(), names.end(), name) != names.end()) return {};
        return fmt::format("expected {} (what this machine runs), got '{}'", fmt::join(names, ", "), name);
      },
      "NAME");
  return command.add_option("--target", targets, help)->check(is_supported)->delimiter(',');
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {[=](std::string& text) -> std::string {
            std::uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [read_to, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc{} && read_to == end && value >= least && value <= most) return {};
            return fmt::format("expected a whole number from {} to {}, got '{}'", least, most, text);
          },
          fmt::format("{}-{}", least, most)};
}

CLI::Validator seconds() {
  return {[](std::string& text) -> std::string {
            double value = 0.0;
            const char* const end = text.data() + text.size();
            const auto [read_to, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc{} && read_to == end && value >= 0.0 && value <= 1e9) return {};
            return fmt::format("expected seconds, 0 or more, got '{}'", text);
          },
          "SECONDS"};
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  return fmt::format(fmt::runtime(unit == 0 || bytes >= 99.95 ? "{:.0f} {}" : "{:.3g} {}"), bytes, kUnits[unit]);
}

Progress::Progress() : on_terminal_(isatty(fileno(stderr)) == 1) {}

void Progress::show(std::string_view text) {
  if (!on_terminal_) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace locks::cli
