// `locks info`: what this build and this machine can do.
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common.h"
#include "locks/locks.h"

namespace locks::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::array kHeadDims{64, 80, 96, 128, 192, 256};
constexpr std::array kDTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0};

int page_bytes_f16(int head_dim) { return static_cast<int>(2 * kPageTokens * row_bytes(DType::kF16, head_dim)); }

struct RecordSize {
  int bytes;
  double share;  // of the page's keys and values in f16
};

RecordSize record_size(const SummaryFormat& format, int head_dim, bool with_values) {
  const int bytes =
      record_layout(format, head_dim).record_bytes + (with_values ? value_layout(format, head_dim).record_bytes : 0);
  return {bytes, static_cast<double>(bytes) / page_bytes_f16(head_dim)};
}

ordered_json format_json(const SummaryFormat& format) {
  ordered_json records = ordered_json::array();
  for (const int head_dim : kHeadDims) {
    const RecordSize plain = record_size(format, head_dim, false);
    const RecordSize with_values = record_size(format, head_dim, true);
    records.push_back({{"head_dim", head_dim},
                       {"record_bytes", plain.bytes},
                       {"share_of_f16_page", plain.share},
                       {"bytes_with_values", with_values.bytes},
                       {"share_of_f16_page_with_values", with_values.share}});
  }
  return {{"name", format.name}, {"id", static_cast<int>(format.id)}, {"rank", format.rank}, {"records", records}};
}

ordered_json info_json() {
  ordered_json info{{"version", kVersion},
                    {"compiler", __VERSION__},
                    {"targets", supported_target_names()},
                    {"active_target", target_name(active_target())},
                    {"page_tokens", kPageTokens},
                    {"head_dims", kHeadDims}};
  for (const DType dtype : kDTypes) info["cache_types"].push_back(dtype_name(dtype));
  for (const SummaryFormat* format : summary_formats()) info["formats"].push_back(format_json(*format));
  const DecodeConfig defaults;
  info["defaults"] = {{"format", defaults.format->name},
                      {"budget_tokens", defaults.select.budget_tokens},
                      {"sink_tokens", defaults.select.sink_tokens},
                      {"recent_tokens", defaults.select.recent_tokens},
                      {"part_tokens", defaults.select.part_tokens},
                      {"candidate_factor", defaults.select.candidate_factor},
                      {"completion_fraction", defaults.select.completion_fraction},
                      {"min_context_tokens", defaults.min_context_tokens}};
  return info;
}

void print_formats(bool with_values) {
  for (const SummaryFormat* format : summary_formats()) {
    fmt::print("  {:<10}", format->name);
    for (const int head_dim : kHeadDims) {
      const RecordSize size = record_size(*format, head_dim, with_values);
      fmt::print("{:>6} {:>4.1f} %", size.bytes, 100.0 * size.share);
    }
    fmt::print("\n");
  }
}

void print_info() {
  std::vector<std::string_view> dtypes;
  for (const DType dtype : kDTypes) dtypes.push_back(dtype_name(dtype));
  const DecodeConfig defaults;
  const SelectConfig& select = defaults.select;

  fmt::print("locks {} (compiler {})\n\n", kVersion, __VERSION__);
  fmt::print("CPU targets  {} (active: {}; LOCKS_CPU_TARGET names another)\n", fmt::join(supported_target_names(), ", "),
             target_name(active_target()));
  fmt::print("Caches       {}; head dims {}; pages of {} tokens\n", fmt::join(dtypes, ", "), fmt::join(kHeadDims, ", "),
             kPageTokens);
  fmt::print(
      "Defaults     {}; {} tokens attended, {} first and {} last among them, in parts of {}; {:.0f} % of the pages\n"
      "             completed; contexts below {} tokens attended whole\n\n",
      defaults.format->name, select.budget_tokens, select.sink_tokens, select.recent_tokens, select.part_tokens,
      100.0F * select.completion_fraction, defaults.min_context_tokens);

  fmt::print("Summary formats: bytes a page and KV head, and their share of the page's keys and values in f16\n  {:<10}",
             "");
  for (const int head_dim : kHeadDims) fmt::print("{:>13}", fmt::format("d {}", head_dim));
  fmt::print("\n");
  print_formats(false);
  fmt::print("With the value part, which completion needs\n");
  print_formats(true);
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("info", "Version, CPU targets, summary formats and defaults");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON");
  command->callback([as_json, &exit_code] {
    if (*as_json) {
      fmt::print("{}\n", info_json().dump(2));
    } else {
      print_info();
    }
    exit_code = kSuccess;
  });
}

}  // namespace locks::cli
