// `locks bench`: times of stages and whole steps, as shares of the machine's read bandwidth and as ratios to dense
// attention, both taken in the same run.
#include <cmath>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench_cases.h"
#include "bench_device.h"
#include "common.h"

namespace locks::cli {
namespace {

using nlohmann::ordered_json;

struct Settings {
  BenchOptions options;
  std::vector<std::string> targets;
  std::string filter;
  std::string json_path;
  std::string device = "cpu";
  double seconds = 1.5;
  bool quick = false;
};

std::vector<BenchCase> chosen_cases(const Settings& settings) {
  std::vector<BenchCase> chosen;
  for (const auto& make : {score_cases, attend_cases, summarize_cases, prefill_cases, decode_cases}) {
    for (BenchCase& item : make(settings.options)) {
      item.name = "cpu." + item.name;
      if (item.target != active_target()) item.name += fmt::format(".{}", target_name(item.target));
      if (item.name.find(settings.filter) != std::string::npos) chosen.push_back(std::move(item));
    }
  }
  return chosen;
}

std::string time_text(double us) {
  if (us >= 1e6) return fmt::format("{:.2f} s", us / 1e6);
  if (us >= 1e3) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.1f} us", us);
}

/// How much of the baseline's time one step takes.
double share_of_baseline(const PreparedCase& prepared, const Timing& timing) {
  return 1.0 / (timing.baseline_ratio * prepared.baseline_scale);
}

std::string comparison_text(const PreparedCase& prepared, const Timing& timing) {
  switch (prepared.against) {
    case PreparedCase::Against::kNothing:
      break;
    case PreparedCase::Against::kDense:
      return fmt::format("{:.2f} x dense", timing.baseline_ratio);
    case PreparedCase::Against::kDecodeStep:
      return fmt::format("{:.1f} % of a decode step", 100.0 * share_of_baseline(prepared, timing));
    case PreparedCase::Against::kPrefill:
      return fmt::format("{:.1f} % of prefill attention", 100.0 * share_of_baseline(prepared, timing));
  }
  if (prepared.flops_per_step > 0.0) return fmt::format("{:.0f} GFLOP/s", prepared.flops_per_step / timing.step_us / 1e3);
  return {};
}

void print_header() {
  fmt::print("{:<32} {:>10} {:>9} {:>7} {:>11}   {:<26} {}\n", "", "time", "bytes", "GB/s", "of reading", "", "one step is");
}

void print_row(const BenchCase& item, const PreparedCase& prepared, const Timing& timing) {
  const bool memory = prepared.bytes_per_step > 0.0;
  fmt::print("{:<32} {:>10} {:>9} {:>7} {:>11}   {:<26} {}\n", item.name, time_text(timing.step_us),
             memory ? bytes_text(prepared.bytes_per_step) : "",
             memory ? fmt::format("{:.1f}", prepared.bytes_per_step / timing.step_us / 1e3) : "",
             memory ? fmt::format("{:.0f} %", 100.0 * timing.bandwidth_share) : "", comparison_text(prepared, timing),
             prepared.detail);
  std::fflush(stdout);
}

ordered_json to_json(const BenchCase& item, const PreparedCase& prepared, const Timing& timing, int threads) {
  const bool memory = prepared.bytes_per_step > 0.0;
  const auto if_known = [](bool known, double value) { return known ? ordered_json(value) : ordered_json(nullptr); };
  ordered_json entry{{"name", item.name},
                     {"value", timing.step_us},
                     {"unit", "us"},
                     {"bytes", memory ? ordered_json(std::llround(prepared.bytes_per_step)) : ordered_json(nullptr)},
                     {"bandwidth_share", if_known(memory, timing.bandwidth_share)},
                     {"speedup", if_known(prepared.against == PreparedCase::Against::kDense, timing.baseline_ratio)},
                     {"target", target_name(item.target)},
                     {"threads", threads},
                     {"rounds", timing.rounds},
                     {"read_bandwidth", timing.bandwidth},
                     {"detail", prepared.detail}};
  if (prepared.flops_per_step > 0.0) entry["flops_per_second"] = prepared.flops_per_step / timing.step_us * 1e6;
  if (prepared.against == PreparedCase::Against::kDense) entry["dense_us"] = timing.baseline_us;
  if (prepared.against == PreparedCase::Against::kDecodeStep)
    entry["share_of_decode_step"] = share_of_baseline(prepared, timing);
  if (prepared.against == PreparedCase::Against::kPrefill) entry["share_of_prefill"] = share_of_baseline(prepared, timing);
  return entry;
}

void write_json(const std::string& path, const ordered_json& entries) {
  std::ofstream file(path);
  file << entries.dump(1) << '\n';
  file.close();
  if (!file) throw std::runtime_error(fmt::format("cannot write {}", path));
}

int run_bench(Settings settings) {
  BenchOptions& options = settings.options;
  for (const std::string& name : settings.targets) options.targets.push_back(parse_target(name));
  if (options.targets.empty()) options.targets.push_back(active_target());
  const auto cases = chosen_cases(settings);
  if (cases.empty()) {
    fmt::print(stderr, "locks bench: no measurement has '{}' in its name; see locks bench --list\n", settings.filter);
    return kUsage;
  }
  // An unwritable file should be known before minutes of work, not after.
  if (!settings.json_path.empty()) write_json(settings.json_path, ordered_json::array());

  ThreadPool pool(options.threads);
  ReadBandwidth bandwidth(supported_targets().back());
  Progress progress;
  ordered_json entries = ordered_json::array();
  std::vector<double> bandwidths;
  fmt::print(
      "{} thread{}; {} tokens a page; a run reads what no processor cache holds, and so does the measure beside it\n\n",
      options.threads, options.threads == 1 ? "" : "s", kPageTokens);
  print_header();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    progress.show(fmt::format("{} of {}: {}", i + 1, cases.size(), cases[i].name));
    const PreparedCase prepared = cases[i].prepare();
    const Timing timing = measure(pool, bandwidth, prepared.work, prepared.baseline, prepared.bytes_per_step,
                                  settings.quick ? 0.0 : settings.seconds, settings.quick ? 3 : 5);
    progress.clear();
    print_row(cases[i], prepared, timing);
    bandwidths.push_back(timing.bandwidth);
    entries.push_back(to_json(cases[i], prepared, timing, options.threads));
  }
  const double machine = median(bandwidths);
  fmt::print("\nReading: {:.1f} GB/s with the same threads, the median of the measures between the runs.\n", machine / 1e9);
  entries.push_back({{"name", "cpu.read_bandwidth"},
                     {"value", machine / 1e9},
                     {"unit", "GB/s"},
                     {"bytes", nullptr},
                     {"bandwidth_share", 1.0},
                     {"speedup", nullptr},
                     {"threads", options.threads}});
  if (!settings.json_path.empty()) write_json(settings.json_path, entries);
  return kSuccess;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const SummaryFormat* format : summary_formats()) names.emplace_back(format->name);
  return names;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Measure the stages and whole steps");
  const auto settings = std::make_shared<Settings>();
  BenchOptions& options = settings->options;
  options.head_dims = {64, 128};
  options.contexts = {8192, 32768, 131072};
  options.formats = format_names();
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto list = std::make_shared<bool>(false);

  command
      ->add_option("--device", settings->device,
                   "Where: with cuda, of the options below only --filter, --json and --list count")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", options.threads, "Threads")->check(whole_number(1, 1024))->capture_default_str();
  add_target_option(*command, settings->targets, "CPU targets (default: the active one)");
  command->add_option("--filter", settings->filter, "Only measurements with this in their name");
  command->add_option("--seconds", settings->seconds, "Seconds for each measurement")
      ->check(seconds())
      ->capture_default_str();
  command->add_option("--head-dim", options.head_dims, "Head dimensions")
      ->check(CLI::IsMember({64, 80, 96, 128, 192, 256}))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--kv-heads", options.kv_heads, "KV heads")->check(whole_number(1, 256))->capture_default_str();
  command->add_option("--group", options.group_size, "Query heads per KV head")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  command->add_option("--context", options.contexts, "Context lengths of whole steps, in tokens")
      ->check(whole_number(16, 4'000'000))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--format", options.formats, "Summary formats")
      ->check(CLI::IsMember(format_names()))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--json", settings->json_path, "Write the results to this file too")->type_name("FILE");
  command->add_flag("--quick", settings->quick, "Three rounds of each measurement, whatever the noise");
  command->add_flag("--list", *list, "Print the names of the measurements and measure nothing");
  command->callback([settings, list, &exit_code] {
    if (settings->device == "cuda") {
      exit_code = run_cuda_bench({settings->filter, settings->json_path, *list});
      return;
    }
    if (*list) {
      settings->options.targets.assign(1, active_target());
      for (const BenchCase& item : chosen_cases(*settings)) fmt::print("{}\n", item.name);
      exit_code = kSuccess;
      return;
    }
    exit_code = run_bench(*settings);
  });
}

}  // namespace locks::cli
