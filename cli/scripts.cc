// `locks eval` and `locks inspect`: Python scripts of the folder evals, which this process becomes, so that exit codes and
// Ctrl-C are the script's own.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "common.h"

namespace locks::cli {
namespace {

namespace fs = std::filesystem;

struct Script {
  const char* command;
  const char* file;
  const char* help;
};
constexpr std::array kScripts{
    Script{"eval", "run.py", "Selectors, or servers, on the same prompts, and a report (Python; docs/EVALS.md)"},
    Script{"inspect", "inspect_step.py", "Decode steps as pictures (Python; docs/EVALS.md)"}};

/// The variable's value; empty where it is unset.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Beside an installed program, or in the source tree around a build folder. Nothing is compiled in, so both can be moved.
fs::path find_script(const Script& script) {
  if (const std::string named = variable("LOCKS_EVALS"); !named.empty()) {
    if (fs::exists(fs::path(named) / script.file)) return fs::canonical(fs::path(named) / script.file);
    throw std::runtime_error(fmt::format("no {} in {}, the folder that LOCKS_EVALS names", script.file, named));
  }
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path installed = folder.parent_path() / "share" / "locks" / "evals" / script.file;
  if (fs::exists(installed)) return installed;
  for (fs::path above = folder; above != above.root_path(); above = above.parent_path()) {
    if (fs::exists(above / "evals" / script.file)) return above / "evals" / script.file;
  }
  throw std::runtime_error(fmt::format(
      "no {} in {}, nor in a folder evals of {} or above it; build in the source tree (make), or name its folder "
      "evals with LOCKS_EVALS",
      script.file, installed.parent_path().string(), folder.string()));
}

/// Throws where there is no such Python.
[[noreturn]] void become(const fs::path& script, char** arguments) {
  const std::string named = variable("LOCKS_PYTHON");
  const fs::path own = script.parent_path().parent_path() / ".venv" / "bin" / "python";
  std::string python = !named.empty() ? named : fs::exists(own) ? own.string() : "python3";
  std::string path = script.string();
  std::vector<char*> words{python.data(), path.data()};
  while (*arguments != nullptr) words.push_back(*arguments++);
  words.push_back(nullptr);
  execvp(python.c_str(), words.data());
  const char* const reason = std::strerror(errno);
  if (!named.empty()) throw std::runtime_error(fmt::format("cannot run LOCKS_PYTHON={}: {}", named, reason));
  throw std::runtime_error(
      fmt::format("cannot run {} ({}), with {} looked for first; run tools/setup.sh in the source tree, or "
                  "name a Python with LOCKS_PYTHON",
                  python, reason, own.string()));
}

}  // namespace

void add_scripts(CLI::App& app) {
  for (const Script& script : kScripts) app.add_subcommand(script.command, script.help);
}

std::optional<int> run_script(char** arguments) {
  if (*arguments == nullptr) return std::nullopt;
  const auto* const script = std::find_if(kScripts.begin(), kScripts.end(),
                                          [&](const Script& each) { return std::strcmp(each.command, *arguments) == 0; });
  if (script == kScripts.end()) return std::nullopt;
  try {
    become(find_script(*script), arguments + 1);
  } catch (const std::exception& error) {
    fmt::print(stderr, "locks {}: {}\n", script->command, error.what());
    return kFailure;
  }
}

}  // namespace locks::cli
