// `locks`: the command line tool.
#include <exception>
#include <string>

#include <fmt/format.h>

#include "common.h"
#include "locks/version.h"

namespace locks::cli {
namespace {

std::string subcommand_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

int usage_error(const CLI::App& app, std::string_view problem) {
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? app.get_name() : app.get_name() + " " + chosen.front()->get_name();
  fmt::print(stderr, "{0}: {1}; see {0} --help\n", command, problem);
  return kUsage;
}

std::string one_line(std::string text) {
  for (char& letter : text) {
    if (letter == '\n') letter = ' ';
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Attention for long contexts that reads only the pages that matter.\n"
      "The main job, a real model that reads a long document, is `make demo`.\n"
      "Comparisons on a real model are `make eval` and `locks eval`: docs/EVALS.md.",
      "locks");
  app.set_version_flag("--version", std::string("locks ") + kVersion);
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  int exit_code = kSuccess;
  add_info(app, exit_code);
  add_bench(app, exit_code);
  add_verify(app, exit_code);
  add_scripts(app);
  try {
    if (const auto script_code = run_script(argv + 1)) return *script_code;
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ExtrasError& error) {
    if (app.get_subcommands().empty()) {
      return usage_error(app, fmt::format("expected {}, got '{}'", subcommand_names(app), argv[1]));
    }
    return usage_error(app, one_line(error.what()));
  } catch (const CLI::RequiredError& error) {
    if (app.get_subcommands().empty()) {
      return usage_error(app, "expected " + subcommand_names(app) + (argc > 1 ? fmt::format(", got '{}'", argv[1]) : ""));
    }
    return usage_error(app, one_line(error.what()));
  } catch (const CLI::ParseError& error) {
    return usage_error(app, one_line(error.what()));
  } catch (const std::exception& error) {
    fmt::print(stderr, "locks: {}\n", error.what());
    return kFailure;
  }
}

}  // namespace
}  // namespace locks::cli

int main(int argc, char** argv) { return locks::cli::run(argc, argv); }
