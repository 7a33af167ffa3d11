#include "settings.h"

#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "locks/error.h"

namespace locks::llamacpp {
namespace {

Settings read(std::initializer_list<std::string> environment) {
  std::vector<std::string> kept(environment);
  std::vector<const char*> pointers;
  for (const std::string& entry : kept) pointers.push_back(entry.c_str());
  pointers.push_back(nullptr);
  return read_settings(pointers.data());
}

std::string refusal(std::initializer_list<std::string> environment) {
  try {
    static_cast<void>(read(environment));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string write_file(const std::string& text) {
  const std::string path = testing::TempDir() + "locks_settings.json";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(SettingsTest, DefaultsAreThoseOfTheLibrary) {
  const Settings settings = read({"PATH=/bin", "LOCKSMITH=1"});
  EXPECT_EQ(settings.decode.select.budget_tokens, 512);
  EXPECT_EQ(settings.decode.format->name, "graded8");
  EXPECT_TRUE(settings.prefill);
  EXPECT_FALSE(settings.off);
  EXPECT_EQ(settings.report, Report::kStatusLine);
}

TEST(SettingsTest, EveryVariableIsTaken) {
  const Settings settings =
      read({"LOCKS_BUDGET_TOKENS=4096", "LOCKS_SINK_TOKENS=32", "LOCKS_RECENT_TOKENS=128", "LOCKS_PART_TOKENS=16",
            "LOCKS_FORMAT=graded12", "LOCKS_COMPLETION=0", "LOCKS_MIN_CONTEXT=7", "LOCKS_PREFILL=off",
            "LOCKS_STATS=a=b.json", "LOCKS_REPORT=1", "LOCKS_COMBINE=max", "LOCKS_DENSE_LAYERS=3", "LOCKS_OFF=1",
            "LOCKS_CPU_TARGET=avx2", "LOCKS_TRACE=a.trace", "LOCKS_TRACE_MB=256"});
  EXPECT_EQ(settings.decode.select.budget_tokens, 4096);
  EXPECT_EQ(settings.decode.select.sink_tokens, 32);
  EXPECT_EQ(settings.decode.select.recent_tokens, 128);
  EXPECT_EQ(settings.decode.select.part_tokens, 16);
  EXPECT_EQ(settings.decode.format->name, "graded12");
  EXPECT_FALSE(settings.keeps_values());
  EXPECT_EQ(settings.decode.min_context_tokens, 7);
  EXPECT_FALSE(settings.prefill);
  EXPECT_EQ(settings.statistics_path, "a=b.json");
  EXPECT_EQ(settings.trace_path, "a.trace");
  EXPECT_EQ(settings.trace_mb, 256);
  EXPECT_EQ(settings.report, Report::kSummary);
  EXPECT_TRUE(settings.off);
}

TEST(SettingsTest, DenseSelectorNeverSelects) {
  EXPECT_EQ(read({"LOCKS_SELECTOR=dense"}).decode.min_context_tokens, std::numeric_limits<int>::max());
}

TEST(SettingsTest, ARivalHasItsPublishedSettingsUnlessOthersAreGiven) {
  const Settings quest = read({"LOCKS_SELECTOR=quest"});
  ASSERT_TRUE(quest.rival.has_value());
  EXPECT_EQ(quest.rival->budget_tokens, 2048);
  EXPECT_EQ(quest.dense_layers, 2);
  EXPECT_FALSE(quest.keeps_values());
  // In any order.
  const Settings oracle = read({"LOCKS_PART_TOKENS=4", "LOCKS_BUDGET_TOKENS=256", "LOCKS_SELECTOR=oracle",
                                "LOCKS_COMBINE=max", "LOCKS_DENSE_LAYERS=1"});
  EXPECT_EQ(oracle.rival->budget_tokens, 256);
  EXPECT_EQ(oracle.rival->part_tokens, 4);
  EXPECT_EQ(oracle.rival->combine, GroupCombine::kMax);
  EXPECT_EQ(oracle.dense_layers, 1);
  EXPECT_FALSE(read({"LOCKS_COMBINE=per_query_head"}).rival.has_value());
}

TEST(SettingsTest, ShadowKvNeedsTheModelsRotaryEmbedding) {
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=shadowkv"}),
            "LOCKS_SELECTOR is shadowkv, which needs the model's rotary embedding: LOCKS_ROPE_BASE and LOCKS_ROPE_PAIRS");
  EXPECT_NE(refusal({"LOCKS_SELECTOR=shadowkv", "LOCKS_ROPE_BASE=100000"}), "");
  const Settings settings =
      read({"LOCKS_SELECTOR=shadowkv", "LOCKS_ROPE_BASE=3580165449", "LOCKS_ROPE_PAIRS=halves", "LOCKS_ROPE_DIMS=32"});
  EXPECT_EQ(settings.rival->rope.base, 3580165449.0);
  EXPECT_EQ(settings.rival->rope.dims, 32);
  EXPECT_FALSE(settings.rival->rope.interleaved);
}

TEST(SettingsTest, WhatARivalHasNoUseForIsRefused) {
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=quest", "LOCKS_FORMAT=paper"}),
            "LOCKS_FORMAT is for the selector locks; LOCKS_SELECTOR is quest");
  EXPECT_EQ(refusal({"LOCKS_COMPLETION=0", "LOCKS_SELECTOR=oracle"}),
            "LOCKS_COMPLETION is for the selector locks; LOCKS_SELECTOR is oracle");
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=quest", "LOCKS_PART_TOKENS=4"}).find("LOCKS_SELECTOR is quest: part_tokens"), 0U);
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=quest", "LOCKS_TRACE=a.trace"}),
            "LOCKS_TRACE is for the selectors locks and dense; LOCKS_SELECTOR is quest");
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=dense", "LOCKS_TRACE=a.trace"}), "");
  EXPECT_EQ(refusal({"LOCKS_SELECTOR=rocketkv", "LOCKS_PREFILL=off"}),
            "LOCKS_SELECTOR is rocketkv, which must see prompts; LOCKS_PREFILL is off");
}

TEST(SettingsTest, UnknownVariableIsRefusedWithTheKnownOnes) {
  const std::string text = refusal({"LOCKS_BUGET_TOKENS=512"});
  EXPECT_NE(text.find("LOCKS_BUGET_TOKENS is not a setting"), std::string::npos) << text;
  for (const SettingName& name : setting_names()) {
    std::string variable = "LOCKS_";
    for (const char c : name.key) variable += static_cast<char>(c == '_' ? c : c - 'a' + 'A');
    EXPECT_NE(text.find(variable), std::string::npos) << text;
  }
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(SettingsTest, WrongValuesAreRefusedByName) {
  for (const std::string wrong : {"LOCKS_BUDGET_TOKENS=0",
                                  "LOCKS_BUDGET_TOKENS=-5",
                                  "LOCKS_BUDGET_TOKENS=many",
                                  "LOCKS_BUDGET_TOKENS=5 ",
                                  "LOCKS_BUDGET_TOKENS=99999999999999999999",
                                  "LOCKS_BUDGET_TOKENS=",
                                  "LOCKS_PART_TOKENS=3",
                                  "LOCKS_PART_TOKENS=32",
                                  "LOCKS_COMPLETION=1.5",
                                  "LOCKS_COMPLETION=nan",
                                  "LOCKS_COMPLETION=-0.1",
                                  "LOCKS_FORMAT=graded9",
                                  "LOCKS_PREFILL=yes",
                                  "LOCKS_REPORT=2",
                                  "LOCKS_OFF=true",
                                  "LOCKS_SELECTOR=best",
                                  "LOCKS_COMBINE=mean",
                                  "LOCKS_DENSE_LAYERS=-1",
                                  "LOCKS_ROPE_BASE=1",
                                  "LOCKS_ROPE_PAIRS=some",
                                  "LOCKS_ROPE_DIMS=0",
                                  "LOCKS_TRACE_MB=0",
                                  "LOCKS_TRACE_MB=257",
                                  "LOCKS_TRACE_MB=1.5",
                                  "LOCKS_ROPE_BASE=nan"}) {
    const std::string text = refusal({wrong});
    EXPECT_NE(text.find(wrong.substr(0, wrong.find('='))), std::string::npos) << wrong << ": " << text;
  }
}

TEST(SettingsTest, FileIsReadAndVariablesOverrideIt) {
  const std::string path =
      write_file(R"({"budget_tokens": 1024, "completion": 0.25, "prefill": false, "format": "paper", "off": true})");
  const Settings settings = read({"LOCKS_BUDGET_TOKENS=256", "LOCKS_CONFIG=" + path});
  EXPECT_EQ(settings.decode.select.budget_tokens, 256);
  EXPECT_FLOAT_EQ(settings.decode.select.completion_fraction, 0.25F);
  EXPECT_FALSE(settings.prefill);
  EXPECT_EQ(settings.decode.format->name, "paper");
  EXPECT_TRUE(settings.off);
}

TEST(SettingsTest, FileWithUnknownKeyNamesKeyAndFile) {
  const std::string text = refusal({"LOCKS_CONFIG=" + write_file(R"({"budget": 1024})")});
  EXPECT_NE(text.find("'budget'"), std::string::npos) << text;
  EXPECT_NE(text.find("locks_settings.json"), std::string::npos) << text;
}

TEST(SettingsTest, BrokenFileSaysTheByte) {
  Settings settings;
  try {
    apply_json(settings, R"({"budget_tokens": 12,})", "file.json");
    FAIL() << "a trailing comma was taken";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.byte_offset(), 22);
    EXPECT_NE(std::string(error.what()).find("byte 22"), std::string::npos) << error.what();
  }
}

TEST(SettingsTest, NestedAndOtherJsonIsRefused) {
  for (const std::string text : {R"([])", R"({"budget_tokens": [1]})", R"({"budget_tokens": {"a": 1}})", R"(3)", R"("x")",
                                 R"({"budget_tokens": null})"}) {
    Settings settings;
    EXPECT_THROW(apply_json(settings, text, "file.json"), std::invalid_argument) << text;
  }
}

TEST(SettingsTest, EveryTruncationAndManyMutationsEndInAnErrorOrASetting) {
  const std::string good = R"({"budget_tokens": 1024, "completion": 0.25, "format": "paper", "stats": "a\u00e9\n"})";
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good.substr(0, round < static_cast<int>(good.size()) ? static_cast<std::size_t>(round) : good.size());
    for (unsigned i = 0; i < random() % 4 && !text.empty(); ++i) text[random() % text.size()] = static_cast<char>(random());
    Settings settings;
    try {
      apply_json(settings, text, "file.json");
    } catch (const FormatError& error) {
      EXPECT_GE(error.byte_offset(), 0);
    } catch (const std::invalid_argument&) {
    }
  }
  Settings settings;
  EXPECT_THROW(apply_json(settings, std::string(1000000, '['), "file.json"), std::exception);
}

TEST(SettingsTest, MissingOrHugeFileIsRefused) {
  EXPECT_NE(refusal({"LOCKS_CONFIG=/nonexistent/locks.json"}).find("/nonexistent/locks.json"), std::string::npos);
  const std::string path = write_file(std::string(70000, ' '));
  EXPECT_NE(refusal({"LOCKS_CONFIG=" + path}).find("64 KiB"), std::string::npos);
}

TEST(SettingsTest, VariablesOfTheProjectsOwnToolsAreNotSettings) {
  EXPECT_EQ(refusal({"LOCKS_BUILD_DIR=/somewhere", "LOCKS_TEST_ANYTHING=/somewhere", "LOCKS_PYTHON=python3",
                     "LOCKS_EVALS=/somewhere"}),
            "");
}

}  // namespace
}  // namespace locks::llamacpp
