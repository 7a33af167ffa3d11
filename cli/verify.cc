// `locks verify`: every CPU target, or the GPU, against the reference on random shapes, until stopped, for some seconds, or
// one case.
#include "verify_case.h"

#include <chrono>
#include <csignal>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "common.h"
#ifdef LOCKS_HAS_CUDA
#include "locks/cuda.h"
#endif

namespace locks::cli {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

struct Settings {
  std::vector<std::string> targets;
  double seconds = 0.0;  // 0: until stopped
  std::uint64_t seed = 0;
  std::uint64_t first_case = 0;
  bool one_case = false;
  std::string device = "cpu";
};

std::string why_no_cuda() {
#ifdef LOCKS_HAS_CUDA
  return cuda::why_unavailable();
#else
  return "this locks was built without CUDA; build it where nvcc is, with -DLOCKS_CUDA=ON";
#endif
}

int run_verify(const Settings& settings) {
  const bool cuda = settings.device == "cuda";
  if (const std::string reason = cuda ? why_no_cuda() : ""; !reason.empty()) {
    fmt::print(stderr, "locks verify: no GPU to check: {}\n", reason);
    return kFailure;
  }
  std::vector<Target> targets;
  for (const std::string& name : settings.targets) targets.push_back(parse_target(name));
  if (targets.empty() && !cuda) targets.assign(supported_targets().begin() + 1, supported_targets().end());
  std::vector<std::string_view> names;
  for (const Target target : targets) names.push_back(target_name(target));
  if (cuda) names.push_back("cuda");
  std::signal(SIGINT, [](int) { stop_asked = 1; });
  std::signal(SIGTERM, [](int) { stop_asked = 1; });
  fmt::print("seed {}: {} against the reference\n", settings.seed, fmt::join(names, ", "));
  std::fflush(stdout);

  Progress progress;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::uint64_t number = settings.first_case;
  std::uint64_t on_cuda = 0;
  const auto so_far = [&] {
    const std::string refused = cuda ? fmt::format(", {} of them such as the GPU takes", on_cuda) : "";
    return fmt::format("{} cases{}, no fault, {:.0f} s", number - settings.first_case, refused, elapsed());
  };
  do {
    const CaseResult result = verify_case(settings.seed, number, targets, cuda);
    on_cuda += result.on_cuda ? 1 : 0;
    if (result.fault || settings.one_case) {
      progress.clear();
      fmt::print("case {}: {}\n", number, result.shape);
    }
    if (result.fault) {
      fmt::print("FAULT {}\nrepeat it with: locks verify --seed {} --case {}\n", *result.fault, settings.seed, number);
      return kFailure;
    }
    ++number;
    progress.show(so_far());
  } while (!settings.one_case && stop_asked == 0 && (settings.seconds == 0.0 || elapsed() < settings.seconds));
  progress.clear();
  fmt::print("{}\n", so_far());
  return kSuccess;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("verify", "Check every CPU target, or the GPU, against the reference on random shapes");
  const auto settings = std::make_shared<Settings>();
  settings->seed = std::random_device{}();
  command->add_option("--device", settings->device, "Where: with cuda, the GPU and the CPU targets that are named")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  add_target_option(*command, settings->targets, "CPU targets (default: all that this machine runs)");
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  command->add_option("--seconds", settings->seconds, "Stop after so many seconds (default: when interrupted)")
      ->check(seconds());
  command->add_option("--seed", settings->seed, "Seed of the cases (default: a new one)")->check(whole_number(0, kMost));
  CLI::Option* one_case =
      command->add_option("--case", settings->first_case, "Try this case only")->check(whole_number(0, kMost));
  command->callback([settings, one_case, &exit_code] {
    settings->one_case = !one_case->empty();
    exit_code = run_verify(*settings);
  });
}

}  // namespace locks::cli
