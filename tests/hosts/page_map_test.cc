// The map from cells to pages, against a host that does to its cells everything that llama.cpp does.
#include "page_map.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace locks::llamacpp {
namespace {

/// A KV cache as llama.cpp manages one: cells with a position and the set of sequences that own them.
class Cache {
 public:
  struct Cell {
    int position = -1;
    std::set<int> owners;
    std::int64_t contents = 0;  // a new number whenever it is written
  };
  struct Row {
    int sequence;
    std::int64_t cell;
  };

  Cache(std::int64_t stream_cells, int streams)
      : cells(static_cast<std::size_t>(stream_cells * streams)), stream_cells_(stream_cells) {}

  std::int64_t base(int sequence) const { return sequence % num_streams() * stream_cells_; }
  int num_streams() const { return static_cast<int>(static_cast<std::int64_t>(cells.size()) / stream_cells_); }

  int next_position(int sequence) const {
    int next = 0;
    for (const Cell& cell : cells) {
      if (cell.owners.contains(sequence)) next = std::max(next, cell.position + 1);
    }
    return next;
  }
  /// A free cell for the sequence's next token: the first one, or with `scatter` any. -1 if none is left.
  std::int64_t append(int sequence, bool scatter, std::mt19937_64& random) {
    std::vector<std::int64_t> free;
    for (std::int64_t cell = base(sequence); cell < base(sequence) + stream_cells_; ++cell) {
      if (cells[cell].owners.empty()) free.push_back(cell);
    }
    if (free.empty()) return -1;
    const std::int64_t cell = scatter ? free[random() % free.size()] : free.front();
    cells[cell].position = next_position(sequence);
    cells[cell].owners = {sequence};
    return cell;
  }
  void remove(int sequence, int first_position, int last_position) {
    for (Cell& cell : cells) {
      if (cell.position >= first_position && cell.position < last_position) cell.owners.erase(sequence);
    }
  }
  void copy(int from, int to) {
    remove(to, 0, 1 << 30);
    for (Cell& cell : cells) {
      if (cell.owners.contains(from)) cell.owners.insert(to);
    }
  }
  std::vector<std::uint64_t> seen(int sequence, int position) const {
    std::vector<std::uint64_t> bits(static_cast<std::size_t>(stream_cells_ + 63) / 64);
    for (std::int64_t i = 0; i < stream_cells_; ++i) {
      const Cell& cell = cells[base(sequence) + i];
      if (cell.owners.contains(sequence) && cell.position <= position) bits[i / 64] |= std::uint64_t{1} << (i % 64);
    }
    return bits;
  }
  std::vector<std::int32_t> in_token_order(int sequence, int position) const {
    std::vector<std::int32_t> found;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].owners.contains(sequence) && cells[i].position <= position) found.push_back(static_cast<std::int32_t>(i));
    }
    std::sort(found.begin(), found.end(), [this](int a, int b) { return cells[a].position < cells[b].position; });
    return found;
  }

  std::vector<Cell> cells;
  std::int64_t clock = 0;

 private:
  std::int64_t stream_cells_;
};

/// What one layer would keep of the pages: their contents when they were last summarised.
class Summaries {
 public:
  explicit Summaries(const PageMap& map) : contents_(static_cast<std::size_t>(map.num_pages())) {}

  void apply_changes(PageMap& map) {
    if (map.all_changed()) has_.clear();
    for (const std::int32_t page : map.changed_pages()) has_.erase(page);
    map.clear_changes();
  }
  /// Summarises what is new of a sequence, as the plug-in does: pages behind the last one known are not looked at again.
  void update(const PageMap& map, int sequence, const Cache& cache) {
    auto& known = verified_[sequence];
    const bool holds = known.identity == map.identity(sequence) && known.epoch == map.epoch();
    const std::int32_t filled = map.tokens(sequence) / kPageTokens;
    for (std::int32_t i = holds ? known.pages : 0; i < filled; ++i) {
      const std::int32_t page = map.pages(sequence)[static_cast<std::size_t>(i)];
      if (has_.insert(page).second) contents_[static_cast<std::size_t>(page)] = contents_of(map, page, cache);
    }
    known = {map.identity(sequence), map.epoch(), filled};
  }
  /// Whatever counts as summarised still has the contents that were summarised, in use or not.
  void expect_no_stale(const PageMap& map, const Cache& cache, const std::string& where) const {
    for (const std::int32_t page : has_) {
      ASSERT_EQ(contents_[static_cast<std::size_t>(page)], contents_of(map, page, cache))
          << where << ": page " << page << " is stale";
    }
  }
  void expect_summarized(const PageMap& map, int sequence, const std::string& where) const {
    for (std::int32_t i = 0; i < map.tokens(sequence) / kPageTokens; ++i) {
      const std::int32_t page = map.pages(sequence)[static_cast<std::size_t>(i)];
      ASSERT_TRUE(has_.contains(page)) << where << ": page " << page << " of sequence " << sequence << " has no summary";
    }
  }

 private:
  struct Verified {
    std::uint64_t identity = 0;
    std::uint64_t epoch = 0;
    std::int32_t pages = 0;
  };
  static std::vector<std::int64_t> contents_of(const PageMap& map, std::int32_t page, const Cache& cache) {
    std::vector<std::int64_t> contents;
    for (int i = 0; i < kPageTokens; ++i) contents.push_back(cache.cells[map.page_slots()[page * kPageTokens + i]].contents);
    return contents;
  }
  std::vector<std::vector<std::int64_t>> contents_;
  std::set<std::int32_t> has_;
  std::map<int, Verified> verified_;
};

/// Maps one row and compares with what the cache says. Fills `mapped`.
void map_and_check(PageMap& map, const Cache& cache, int sequence, int position, bool may_refuse, MappedRow& mapped,
                   const std::string& where) {
  const bool is_mapped = map.map_row(cache.base(sequence), cache.seen(sequence, position), mapped);
  ASSERT_TRUE(is_mapped || may_refuse) << where;
  if (!is_mapped) return;
  const auto expected = cache.in_token_order(sequence, position);
  ASSERT_EQ(mapped.tokens, static_cast<std::int32_t>(expected.size())) << where;
  const auto cells = map.cells(mapped.sequence);
  ASSERT_GE(cells.size(), expected.size()) << where;
  ASSERT_TRUE(std::equal(expected.begin(), expected.end(), cells.begin())) << where << ": not in token order";
}

void check_pages(const PageMap& map, int sequence, const std::string& where) {
  const auto cells = map.cells(sequence);
  const auto pages = map.pages(sequence);
  ASSERT_EQ(pages.size(), (cells.size() + kPageTokens - 1) / kPageTokens) << where;
  bool in_order = true;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::int32_t page = pages[i / kPageTokens];
    ASSERT_TRUE(page >= 0 && page < map.num_pages()) << where;
    ASSERT_EQ(map.page_slots()[page * kPageTokens + static_cast<int>(i % kPageTokens)], cells[i])
        << where << ": token " << i;
    in_order = in_order && cells[i] == page * kPageTokens + static_cast<int>(i % kPageTokens);
  }
  for (std::size_t i = cells.size(); i < pages.size() * kPageTokens; ++i) {
    const std::int32_t cell = map.page_slots()[pages.back() * kPageTokens + static_cast<int>(i % kPageTokens)];
    ASSERT_TRUE(cell >= 0 && cell < map.num_cells()) << where << ": an unused slot names no cell";
  }
  EXPECT_EQ(map.in_cell_order(sequence), in_order) << where;
}

struct Case {
  std::int64_t stream_cells;
  int streams;
  int sequences;
  bool scatter;
  int spare_pages;
  bool may_refuse;  // sequences that parted inside pages can need more pages than there are
  const char* name;
};

class PageMapHistoryTest : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(PageMapHistoryTest, KeepsOrderPagesAndSummaries) {
  const auto& [setup, seed] = GetParam();
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  Cache cache(setup.stream_cells, setup.streams);
  PageMap map(setup.stream_cells * setup.streams, setup.stream_cells, setup.spare_pages);
  Summaries summaries(map);

  for (int step = 0; step < 200; ++step) {
    const std::string where = "step " + std::to_string(step);
    const int sequence = static_cast<int>(random() % static_cast<unsigned>(setup.sequences));
    const int length = cache.next_position(sequence);
    switch (random() % 13) {
      case 0:
        cache.remove(sequence, static_cast<int>(random() % static_cast<unsigned>(length + 1)), 1 << 30);
        break;
      case 1: {  // the same stream: only there cells can be shared
        const int to = static_cast<int>(random() % static_cast<unsigned>(setup.sequences));
        if (to != sequence && cache.base(to) == cache.base(sequence)) cache.copy(sequence, to);
        break;
      }
      case 2:
        if (random() % 4 == 0) cache.remove(sequence, 0, 1 << 30);
        break;
      case 3:
        cache.remove(sequence, std::max(0, length - static_cast<int>(random() % 5)), 1 << 30);
        break;
      case 4: {  // a piece in the middle, without a shift
        const int first = static_cast<int>(random() % static_cast<unsigned>(length + 1));
        cache.remove(sequence, first, first + 1 + static_cast<int>(random() % 20));
        break;
      }
      default:
        break;
    }

    // One batch: some sequences get some tokens, as a prompt or one each.
    std::vector<Cache::Row> rows;
    const bool all_decode = random() % 2 == 0;
    for (int s = 0; s < setup.sequences; ++s) {
      if (!all_decode && s != sequence) continue;
      const int tokens = all_decode ? 1 : 1 + static_cast<int>(random() % 40);
      for (int i = 0; i < tokens; ++i) {
        const std::int64_t cell = cache.append(s, setup.scatter, random);
        if (cell < 0) {
          cache.remove(s, 0, 1 << 30);
          break;
        }
        rows.push_back({s, cell});
      }
    }
    // A cell of a row can be lost when its sequence ran out of room and was removed.
    std::erase_if(rows, [&](const Cache::Row& row) { return !cache.cells[row.cell].owners.contains(row.sequence); });
    std::vector<std::int64_t> written;
    for (const auto& row : rows) {
      written.push_back(row.cell);
      cache.cells[row.cell].contents = ++cache.clock;
    }

    map.write(written);
    map.begin_step();
    summaries.apply_changes(map);
    summaries.expect_no_stale(map, cache, where + " after the write");
    if (HasFatalFailure()) return;
    std::set<int> mapped_sequences;
    for (const auto& row : rows) {
      MappedRow mapped;
      map_and_check(map, cache, row.sequence, cache.cells[row.cell].position, setup.may_refuse, mapped, where);
      if (HasFatalFailure()) return;
      if (mapped.sequence >= 0) mapped_sequences.insert(mapped.sequence);
    }
    summaries.apply_changes(map);
    for (const int slot : mapped_sequences) {
      check_pages(map, slot, where);
      summaries.update(map, slot, cache);
      summaries.expect_summarized(map, slot, where);
      if (HasFatalFailure()) return;
    }
    summaries.expect_no_stale(map, cache, where);
    if (HasFatalFailure()) return;
    EXPECT_EQ(map.adoptions(), 0U) << where;
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, PageMapHistoryTest,
                         testing::Combine(testing::Values(Case{512, 1, 1, false, 8, false, "OneSequence"},
                                                          Case{512, 1, 4, false, 128, false, "UnifiedCache"},
                                                          Case{512, 1, 4, true, 128, false, "ScatteredCells"},
                                                          Case{512, 1, 4, true, 8, true, "TooFewPages"},
                                                          Case{256, 3, 3, false, 8, false, "Streams"},
                                                          Case{1000, 1, 9, true, 600, false, "ManySequences"}),
                                          testing::Range(1, 7)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
                         });

std::vector<std::int64_t> range(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> cells;
  for (std::int64_t cell = first; cell < last; ++cell) cells.push_back(cell);
  return cells;
}

std::vector<std::uint64_t> bits_of(const std::vector<std::int64_t>& cells, std::int64_t num_cells) {
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(num_cells + 63) / 64);
  for (const std::int64_t cell : cells) bits[cell / 64] |= std::uint64_t{1} << (cell % 64);
  return bits;
}

TEST(PageMapTest, OneSequenceStaysInCellOrderAndKeepsItsPages) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(0, 100));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 100), 256), row));
  const std::uint64_t identity = map.identity(row.sequence);
  for (std::int64_t cell = 100; cell < 256; ++cell) {
    const std::array<std::int64_t, 1> written{cell};
    map.write(written);
    map.begin_step();
    map.clear_changes();
    ASSERT_TRUE(map.map_row(0, bits_of(range(0, cell + 1), 256), row));
    EXPECT_TRUE(map.in_cell_order(row.sequence));
    EXPECT_EQ(map.identity(row.sequence), identity) << "the sequence was built again at cell " << cell;
    EXPECT_LE(map.changed_pages().size(), 1U);
  }
}

TEST(PageMapTest, TwoSequencesThatInterleaveGetPurePages) {
  PageMap map(512, 512, 8);
  std::vector<std::int64_t> even;
  std::vector<std::int64_t> odd;
  MappedRow row;
  for (std::int64_t i = 0; i < 200; ++i) {
    even.push_back(2 * i);
    odd.push_back(2 * i + 1);
    const std::array<std::int64_t, 2> written{2 * i, 2 * i + 1};
    map.write(written);
    map.begin_step();
    ASSERT_TRUE(map.map_row(0, bits_of(even, 512), row));
    ASSERT_TRUE(map.map_row(0, bits_of(odd, 512), row));
  }
  ASSERT_EQ(row.tokens, 200);
  for (const std::int32_t cell : map.cells(row.sequence)) EXPECT_EQ(cell % 2, 1);
  EXPECT_FALSE(map.in_cell_order(row.sequence));
}

TEST(PageMapTest, ACellWrittenAgainChangesItsPageAndNoOther) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(0, 160));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 160), 256), row));
  map.clear_changes();
  const std::uint64_t epoch = map.epoch();
  map.write(range(100, 101));  // in page 6; the mask looks the same afterwards
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 160), 256), row));
  EXPECT_GT(map.epoch(), epoch);
  const auto changed = map.changed_pages();
  EXPECT_NE(std::find(changed.begin(), changed.end(), 6), changed.end());
  EXPECT_EQ(std::find(changed.begin(), changed.end(), 0), changed.end());
  EXPECT_EQ(map.cells(row.sequence).back(), 100) << "the token written last comes last";
}

TEST(PageMapTest, TokensTakenBackAreWrittenAgainInPlace) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(0, 200));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 200), 256), row));
  const std::uint64_t identity = map.identity(row.sequence);
  for (const std::int64_t kept : {199, 192, 176, 150}) {  // drafted tokens that were refused
    map.write(range(kept, 200));
    map.begin_step();
    ASSERT_TRUE(map.map_row(0, bits_of(range(0, 200), 256), row));
    EXPECT_EQ(map.identity(row.sequence), identity) << "the sequence was built again";
    EXPECT_TRUE(map.in_cell_order(row.sequence));
    check_pages(map, row.sequence, "kept " + std::to_string(kept));
  }
}

TEST(PageMapTest, OlderCellsThatComeIntoSightGoFirst) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(0, 40));
  map.write(range(40, 70));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(40, 70), 256), row));
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 70), 256), row));
  EXPECT_EQ(map.cells(row.sequence).front(), 0);
  EXPECT_EQ(map.cells(row.sequence).back(), 69);
  EXPECT_EQ(row.tokens, 70);
}

TEST(PageMapTest, APromptReadAgainFindsItsPages) {
  PageMap map(512, 512, 8);
  MappedRow row;
  map.write(range(0, 320));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 320), 512), row));
  map.clear_changes();
  map.write(range(200, 330));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 330), 512), row));
  for (const std::int32_t page : map.changed_pages()) EXPECT_GE(page, 200 / kPageTokens);
  EXPECT_TRUE(map.in_cell_order(row.sequence));
}

TEST(PageMapTest, RestoredCellsAreAdoptedInCellOrderBeforeNewOnes) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(3, 4));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 200), 256), row));
  EXPECT_EQ(map.adoptions(), 1U);
  EXPECT_EQ(map.cells(row.sequence).back(), 3);
  EXPECT_EQ(map.cells(row.sequence).front(), 0);
  EXPECT_EQ(map.cells(row.sequence)[3], 4);
}

TEST(PageMapTest, AdoptionDistrustsTheWholeStreamAndOnlyIt) {
  PageMap map(512, 256, 4);
  MappedRow row;
  map.write(range(0, 64));
  map.write(range(256, 320));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 64), 256), row));
  ASSERT_TRUE(map.map_row(256, bits_of(range(0, 64), 256), row));
  map.clear_changes();
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 96), 256), row));
  std::set<std::int32_t> changed(map.changed_pages().begin(), map.changed_pages().end());
  for (const std::int32_t page : {0, 1, 2, 3}) EXPECT_TRUE(changed.contains(page));
  for (const std::int32_t page : {16, 17, 18, 19}) EXPECT_FALSE(changed.contains(page));
}

TEST(PageMapTest, ShiftChangesEveryPageAndKeepsTheOrder) {
  PageMap map(256, 256, 4);
  MappedRow row;
  map.write(range(0, 200));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 200), 256), row));
  map.clear_changes();
  map.shift();
  EXPECT_TRUE(map.all_changed());
  // 16 to 111 were discarded, and new tokens go into the freed cells.
  std::vector<std::int64_t> left = range(0, 16);
  for (const std::int64_t cell : range(112, 200)) left.push_back(cell);
  for (const std::int64_t cell : range(16, 40)) left.push_back(cell);
  map.write(range(16, 40));
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(left, 256), row));
  EXPECT_EQ(map.slides(), 0U);
  EXPECT_TRUE(std::equal(left.begin(), left.end(), map.cells(row.sequence).begin()));
}

TEST(PageMapTest, ASlidingWindowIsNoticed) {
  PageMap map(512, 512, 8);
  MappedRow row;
  map.write(range(0, 300));
  map.begin_step();
  for (std::int64_t position = 0; position < 300; ++position) {
    const auto seen = range(std::max<std::int64_t>(0, position - 255), position + 1);
    if (!map.map_row(0, bits_of(seen, 512), row)) break;
  }
  EXPECT_GE(map.slides(), 2U);
}

TEST(PageMapTest, RowsWithNothingInCommonAreRefusedAndTheMapStaysValid) {
  PageMap map(4096, 4096, 8);
  map.write(range(0, 4096));
  map.begin_step();
  bool refused = false;
  MappedRow row;
  for (std::int64_t i = 0; i < 128 && !refused; ++i)
    refused = !map.map_row(0, bits_of(range(17 * i, 17 * i + 900), 4096), row);
  EXPECT_TRUE(refused);
  map.begin_step();
  EXPECT_TRUE(map.map_row(0, bits_of(range(0, 4096), 4096), row));
  check_pages(map, row.sequence, "after refusal");
}

TEST(PageMapTest, TooFewPagesAreRefusedAndTheMapStaysValid) {
  PageMap map(64, 64, 0);
  map.write(range(0, 64));
  map.begin_step();
  MappedRow row;
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 64), 64), row));
  EXPECT_FALSE(map.map_row(0, bits_of(range(1, 64), 64), row)) << "all four pages belong to this step's first sequence";
  map.begin_step();
  ASSERT_TRUE(map.map_row(0, bits_of(range(1, 64), 64), row));
  EXPECT_EQ(row.tokens, 63);
}

TEST(PageMapTest, ARowThatSeesNothingIsRefused) {
  PageMap map(64, 64, 0);
  MappedRow row;
  EXPECT_FALSE(map.map_row(0, bits_of({}, 64), row));
}

TEST(PageMapTest, RowsThatAllSeeEachOtherShareOneSequence) {
  PageMap map(64, 64, 0);
  map.write(range(0, 20));
  map.begin_step();
  MappedRow first;
  MappedRow second;
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 20), 64), first));
  ASSERT_TRUE(map.map_row(0, bits_of(range(0, 20), 64), second));
  EXPECT_EQ(first.sequence, second.sequence);
  EXPECT_EQ(second.tokens, 20);
}

}  // namespace
}  // namespace locks::llamacpp
