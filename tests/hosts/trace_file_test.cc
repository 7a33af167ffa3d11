#include "trace_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace locks::llamacpp {
namespace {

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() {
    settings_.trace_path = testing::TempDir() + "locks_trace_file";
    row_.report.context_tokens = 16 * kPages;
    row_.lists = kLists;
    row_.pages = kPages;
    for (std::vector<float>* masses : {&row_.true_mass, &row_.covered_mass, &row_.estimated_mass}) {
      masses->assign(kLists * kPages, 0.25F);
    }
    row_.attended.assign(kLists * kPages, 0x00FF);
    row_.completed.assign(kLists * kPages, 0xFF00);
  }
  ~TraceFileTest() override { std::filesystem::remove(settings_.trace_path); }

  TraceFile::Say say() {
    return [this](const std::string& line) { said_.push_back(line); };
  }
  [[nodiscard]] std::string written() const {
    std::ifstream file(settings_.trace_path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static constexpr int kLists = 8;
  static constexpr int kPages = 512;
  static constexpr std::size_t kArrayBytes = 5U * 2U * kLists * kPages;
  Settings settings_;
  TracedRow row_;
  std::vector<std::string> said_;
};

TEST_F(TraceFileTest, NumbersAreThoseOfJsonWhateverTheLocale) {
  struct Grouped : std::numpunct<char> {
    [[nodiscard]] char do_thousands_sep() const override { return '.'; }
    [[nodiscard]] std::string do_grouping() const override { return "\3"; }
    [[nodiscard]] char do_decimal_point() const override { return ','; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouped));
  settings_.decode.select.budget_tokens = 2048;
  {
    TraceFile file(settings_, say());
    file.append(row_);
  }
  std::locale::global(before);
  for (const char* part : {"\"budget_tokens\": 2048, ", "\"completion\": 0.", "\"tokens\": 8192, "}) {
    EXPECT_NE(written().find(part), std::string::npos) << part;
  }
}

TEST_F(TraceFileTest, RecordsAreOnTheDiskAsSoonAsTheyAreAppended) {
  TraceFile file(settings_, say());
  const std::string header = written();
  EXPECT_EQ(header.find("locks attention trace 2\n{\"model\": \"\", \"settings\": {\"selector\": \"locks\", "), 0U)
      << header;
  EXPECT_EQ(header.back(), '\n');
  row_.layer = 7;
  file.append(row_);
  const std::string record = written().substr(header.size());
  const std::size_t line_end = record.find('\n') + 1;
  EXPECT_NE(record.find("\"layer\": 7, \"tokens\": 8192, \"lists\": 8, \"whole\": false, "), std::string::npos) << record;
  ASSERT_EQ(record.size(), line_end + kArrayBytes);
  EXPECT_EQ(record.substr(line_end, 2), std::string("\x00\x34", 2));  // 0.25 in half precision
  EXPECT_EQ(record.substr(record.size() - 2), std::string("\x00\xFF", 2));
  EXPECT_TRUE(said_.empty() && file.goes_on());
}

TEST_F(TraceFileTest, EndsBeforeTheRecordThatExceedsTheLimitAndSaysSoOnce) {
  settings_.trace_mb = 1;
  TraceFile file(settings_, say());
  const std::size_t header = written().size();
  while (file.goes_on()) file.append(row_);
  file.append(row_);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(said_[0], "the trace " + settings_.trace_path + " is full: its limit is 1 MiB (LOCKS_TRACE_MB)");
  const std::string all = written();
  EXPECT_LE(all.size(), 1U << 20);
  EXPECT_GT(all.size(), (1U << 20) - 2 * kArrayBytes);
  const std::size_t record = all.find('\n', header) + 1 - header + kArrayBytes;
  EXPECT_EQ((all.size() - header) % record, 0U) << "a part of a record";
}

TEST_F(TraceFileTest, WhatCannotBeWrittenIsSaidOnce) {
  settings_.trace_path = testing::TempDir() + "none/trace";
  TraceFile unwritable(settings_, say());
  EXPECT_FALSE(unwritable.goes_on());
  unwritable.append(row_);
  unwritable.end("once more");
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(said_[0], "cannot write the trace to " + settings_.trace_path);

  if (!std::filesystem::exists("/dev/full")) return;
  settings_.trace_path = "/dev/full";
  TraceFile full(settings_, say());
  EXPECT_FALSE(full.goes_on());
  EXPECT_EQ(said_.back(), "cannot write the trace to /dev/full");
  settings_.trace_path.clear();
}

TEST_F(TraceFileTest, ThreadsTakeTurns) {
  settings_.trace_mb = 16;
  TraceFile file(settings_, say());
  const std::size_t header = written().size();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, row = row_]() mutable {
      for (int i = 0; i < 20; ++i) {
        row.step = file.next_step();
        file.append(row);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string all = written();
  std::size_t at = header;
  for (int record = 0; record < 80; ++record) {
    ASSERT_EQ(all.substr(at, 9), "{\"step\": ") << record;
    at = all.find('\n', at) + 1 + kArrayBytes;
  }
  EXPECT_EQ(at, all.size());
  EXPECT_EQ(file.next_step(), 80);
}

}  // namespace
}  // namespace locks::llamacpp
