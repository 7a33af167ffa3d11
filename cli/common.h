// What the subcommands share: how they join the command line, and how they talk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "locks/target.h"

namespace locks::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

/// Each adds its subcommand to `app`. When it is chosen it runs while the command line is parsed, and sets `exit_code`.
void add_info(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);

/// Subcommands that are Python scripts: add_scripts() only names them in the help, and run_script(argv + 1), before `app`
/// looks at any argument, becomes the script that is chosen. It returns nothing where none is, and the exit code where it
/// cannot be run.
void add_scripts(CLI::App& app);
[[nodiscard]] std::optional<int> run_script(char** arguments);

/// The names of supported_targets(), slowest first.
[[nodiscard]] std::vector<std::string> supported_target_names();

/// Adds `--target NAME...`: any of supported_targets() that `accepts`.
CLI::Option* add_target_option(CLI::App& command, std::vector<std::string>& targets, const std::string& help);

/// Validators whose message says what was expected.
[[nodiscard]] CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
[[nodiscard]] CLI::Validator seconds();

/// "1.5 kB", "12 MB": three digits at most.
[[nodiscard]] std::string bytes_text(double bytes);

/// One line on a terminal that says what is going on, and is wiped when it is done; nothing elsewhere.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view text);
  void clear();

 private:
  bool on_terminal_;
  bool shown_ = false;
};

}  // namespace locks::cli
