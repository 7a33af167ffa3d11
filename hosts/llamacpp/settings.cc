#include "settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <utility>

#include "locks/page_summary.h"

namespace locks::llamacpp {
namespace {

constexpr std::array kNames{
    SettingName{"budget_tokens", "a whole number from 1 to 1000000000"},
    SettingName{"sink_tokens", "a whole number from 0 to 1000000000"},
    SettingName{"recent_tokens", "a whole number from 0 to 1000000000"},
    SettingName{"part_tokens", "1, 2, 4, 8 or 16 (whole pages)"},
    SettingName{"format", "the name of a summary format"},
    SettingName{"completion", "a number from 0 (none) to 1"},
    SettingName{"min_context", "a whole number from 0 to 1000000000"},
    SettingName{"selector",
                "locks, dense, oracle, random, recency, quest, unique, compkv, rocketkv, shadowkv, shared_basis or two_bit"},
    SettingName{"combine", "sum, max or per_query_head"},
    SettingName{"dense_layers", "a whole number from 0 to 1000000000"},
    SettingName{"rope_base", "a number above 1, up to 1e12"},
    SettingName{"rope_dims", "a whole number from 2 to 256"},
    SettingName{"rope_pairs", "interleaved or halves"},
    SettingName{"prefill", "on or off"},
    SettingName{"stats", "the path of the file to write at exit"},
    SettingName{"trace", "the path of the file to write decode steps to"},
    SettingName{"trace_mb", "a whole number from 1 to 256"},
    SettingName{"report", "0 (nothing) or 1 (a summary at exit)"},
    SettingName{"off", "0 or 1"},
};
constexpr std::string_view kPrefix = "LOCKS_";
constexpr std::string_view kConfigVariable = "LOCKS_CONFIG";
/// Read by the library, by `locks`, and by the scripts of the source tree; those of its tests begin with kTestPrefix.
constexpr std::array<std::string_view, 5> kNotSettings{"LOCKS_CONFIG", "LOCKS_CPU_TARGET", "LOCKS_BUILD_DIR", "LOCKS_PYTHON",
                                                       "LOCKS_EVALS"};
constexpr std::string_view kTestPrefix = "LOCKS_TEST_";
constexpr std::streamsize kMaxFileBytes = 65536;
constexpr int kMaxTraceMb = 256;  // what evals/attention_trace.py reads

std::string upper(std::string_view key) {
  std::string name(kPrefix);
  for (const char c : key) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

[[noreturn]] void refuse(const std::string& origin, std::string_view value, std::string_view expected) {
  throw std::invalid_argument(origin + " is '" + std::string(value.substr(0, 80)) + "'; it may be " + std::string(expected));
}

int whole_number(std::string_view value, int least, const std::string& origin, std::string_view expected) {
  constexpr int kMost = 1000000000;
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool fits = error == std::errc() && end == value.data() + value.size() && number >= least && number <= kMost;
  if (!fits) refuse(origin, value, expected);
  return number;
}

double rope_base(std::string_view value, const std::string& origin, std::string_view expected) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool fits = error == std::errc() && end == value.data() + value.size() && number > 1.0 && number <= 1e12;
  if (!fits) refuse(origin, value, expected);
  return number;
}

float fraction(std::string_view value, const std::string& origin, std::string_view expected) {
  float number = 0.0F;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool fits = error == std::errc() && end == value.data() + value.size() && number >= 0.0F && number <= 1.0F;
  if (!fits) refuse(origin, value, expected);
  return number;
}

GroupCombine combine_named(std::string_view value, const std::string& origin, std::string_view expected) {
  if (value == "max") return GroupCombine::kMax;
  if (value == "per_query_head") return GroupCombine::kPerQueryHead;
  if (value != "sum") refuse(origin, value, expected);
  return GroupCombine::kSum;
}

static_assert(kNames.size() <= 32, "Settings::given has a bit for each");
std::uint32_t bit_of(std::string_view key) noexcept {
  return std::uint32_t{1} << (std::ranges::find(kNames, key, &SettingName::key) - kNames.begin());
}

bool one_of_two(std::string_view value, std::string_view no, std::string_view yes, const std::string& origin,
                std::string_view expected) {
  if (value != no && value != yes) refuse(origin, value, expected);
  return value == yes;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("LOCKS_CONFIG: cannot read " + path);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() > kMaxFileBytes) throw std::runtime_error("LOCKS_CONFIG: " + path + " is larger than 64 KiB");
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

std::span<const SettingName> setting_names() noexcept { return kNames; }

void apply_setting(Settings& settings, std::string_view key, std::string_view value, const std::string& origin) {
  const auto name = std::ranges::find(kNames, key, &SettingName::key);
  if (name == kNames.end()) {
    std::string known;
    for (const SettingName& other : kNames) known += (known.empty() ? "" : ", ") + upper(other.key);
    throw std::invalid_argument(origin + " is not a setting; known are " + known + ", LOCKS_CONFIG and LOCKS_CPU_TARGET");
  }
  const std::string_view expected = name->expected;
  SelectConfig& select = settings.decode.select;
  if (key == "budget_tokens") select.budget_tokens = whole_number(value, 1, origin, expected);
  if (key == "sink_tokens") select.sink_tokens = whole_number(value, 0, origin, expected);
  if (key == "recent_tokens") select.recent_tokens = whole_number(value, 0, origin, expected);
  if (key == "part_tokens") {
    const int tokens = whole_number(value, 1, origin, expected);
    if (tokens > kPageTokens || (tokens & (tokens - 1)) != 0) refuse(origin, value, expected);
    select.part_tokens = tokens;
  }
  if (key == "format") {
    try {
      settings.decode.format = &find_format(value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(origin + ": " + error.what());
    }
  }
  if (key == "completion") select.completion_fraction = fraction(value, origin, expected);
  if (key == "min_context") settings.decode.min_context_tokens = whole_number(value, 0, origin, expected);
  if (key == "selector") {
    const auto infos = selector_infos();
    const bool rival = std::ranges::find(infos, value, &SelectorInfo::name) != infos.end();
    if (!rival && value != "locks" && value != "dense") refuse(origin, value, expected);
    settings.selector = value;
  }
  if (key == "combine") select.combine = combine_named(value, origin, expected);
  if (key == "dense_layers") settings.dense_layers = whole_number(value, 0, origin, expected);
  if (key == "rope_base") settings.rope.base = rope_base(value, origin, expected);
  if (key == "rope_dims") settings.rope.dims = whole_number(value, 2, origin, expected);
  if (key == "rope_pairs") settings.rope.interleaved = one_of_two(value, "halves", "interleaved", origin, expected);
  if (key == "prefill") settings.prefill = one_of_two(value, "off", "on", origin, expected);
  if (key == "stats") settings.statistics_path = value;
  if (key == "trace") settings.trace_path = value;
  if (key == "trace_mb") {
    settings.trace_mb = whole_number(value, 1, origin, expected);
    if (settings.trace_mb > kMaxTraceMb) refuse(origin, value, expected);
  }
  if (key == "report") settings.report = one_of_two(value, "0", "1", origin, expected) ? Report::kSummary : Report::kNothing;
  if (key == "off") settings.off = one_of_two(value, "0", "1", origin, expected);
  settings.given |= bit_of(key);
}

void settle(Settings& settings) {
  SelectConfig& select = settings.decode.select;
  if (settings.selector == "locks" || settings.is_dense()) {
    check_select_config(select);
    if (settings.is_dense()) settings.decode.min_context_tokens = std::numeric_limits<int>::max();
    return;
  }
  const auto given = [&](std::string_view key) { return (settings.given & bit_of(key)) != 0; };
  for (const std::string_view key : {"format", "completion"}) {
    if (!given(key)) continue;
    throw std::invalid_argument(upper(key) + " is for the selector locks; " + upper("selector") + " is " +
                                settings.selector);
  }
  if (!settings.trace_path.empty()) {
    throw std::invalid_argument(upper("trace") + " is for the selectors locks and dense; " + upper("selector") + " is " +
                                settings.selector);
  }
  SelectorConfig rival = selector_config(settings.selector);
  if (given("budget_tokens")) rival.budget_tokens = select.budget_tokens;
  if (given("sink_tokens")) rival.sink_tokens = select.sink_tokens;
  if (given("recent_tokens")) rival.recent_tokens = select.recent_tokens;
  if (given("part_tokens")) rival.part_tokens = select.part_tokens;
  if (given("combine")) rival.combine = select.combine;
  if (given("dense_layers")) rival.dense_layers = settings.dense_layers;
  if (rival.id == SelectorId::kShadowKv && !(given("rope_base") && given("rope_pairs"))) {
    throw std::invalid_argument(upper("selector") + " is shadowkv, which needs the model's rotary embedding: " +
                                upper("rope_base") + " and " + upper("rope_pairs"));
  }
  if (rival.id == SelectorId::kRocketKv && !settings.prefill) {
    throw std::invalid_argument(upper("selector") + " is rocketkv, which must see prompts; " + upper("prefill") + " is off");
  }
  rival.rope = settings.rope;
  try {
    check_selector_config(rival);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(upper("selector") + " is " + settings.selector + ": " + error.what());
  }
  select.budget_tokens = rival.budget_tokens;  // whichever selects, shorter contexts are attended whole
  settings.dense_layers = rival.dense_layers;
  settings.rival = rival;
}

Settings read_settings(const char* const* environment) {
  Settings settings;
  std::string_view config;
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.size() > kConfigVariable.size() && text.starts_with(kConfigVariable) && text[kConfigVariable.size()] == '=') {
      config = text.substr(kConfigVariable.size() + 1);
    }
  }
  if (!config.empty()) apply_json(settings, read_file(std::string(config)), std::string(config));

  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPrefix) || text.starts_with(kTestPrefix)) continue;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (std::find(kNotSettings.begin(), kNotSettings.end(), name) != kNotSettings.end()) continue;
    std::string key(name.substr(kPrefix.size()));
    for (char& c : key) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    apply_setting(settings, key, text.substr(equals + 1), std::string(name));
  }
  settle(settings);
  return settings;
}

}  // namespace locks::llamacpp
