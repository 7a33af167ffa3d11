// The plug-in in a real ggml, with either front end: exact where it is dense, never stale where it is sparse, and out of
// the way where it does not apply.
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ggml_host.h"

namespace locks::test {
namespace {

using Outputs = std::vector<std::vector<float>>;

template <class Expected>
double relative_error(const Outputs& got, const std::vector<std::vector<Expected>>& expected) {
  double worst = 0.0;
  for (std::size_t layer = 0; layer < got.size(); ++layer) {
    double difference = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < got[layer].size(); ++i) {
      const double d = static_cast<double>(got[layer][i]) - static_cast<double>(expected[layer][i]);
      difference += d * d;
      size += static_cast<double>(expected[layer][i]) * static_cast<double>(expected[layer][i]);
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

/// Runs the graph and compares with double precision.
double error_of_run(Graph& graph, const std::vector<Row>& rows, std::uint64_t seed) {
  const Outputs got = graph.run(rows, seed);
  return relative_error(got, graph.reference(rows));
}

// Sums of up to 2,000 products in float, each term off by half an ulp at most and the errors random: far below this.
constexpr double kExact = 1e-5;
// The host's own attention in f16.
constexpr double kHalf = 1e-2;
// Two runs over the same pages: the same selection, and sums in the same order.
constexpr double kSame = 1e-6;

#ifdef __SANITIZE_THREAD__
constexpr int kThreads = 2;
#else
constexpr int kThreads = 1;
#endif

class PluginTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!host().has_plugin()) GTEST_SKIP() << "GGML_HOST_PLUGIN and GGML_HOST_FRONT_END name the plug-in to test";
    // More only where it matters, because ggml's idle threads spin; everywhere under the thread sanitizer.
    host().set_threads(kThreads);
    host().reset_statistics();
  }
  static Host& host() { return Host::instance(); }
  static double statistic(const std::string& key) { return host().statistic(key); }

  /// A prompt in pieces of 128 tokens over an empty stream.
  static void read_prompt(KvCache& cache, std::int64_t tokens, std::uint64_t seed, int stream = 0) {
    for (std::int64_t first = 0; first < tokens; first += 128) {
      const std::int64_t last = std::min(first + 128, tokens);
      Graph graph({&cache}, last - first, stream, 1, (last + 255) / 256 * 256);
      graph.run(causal_rows(first, last), seed + static_cast<std::uint64_t>(first));
    }
  }
  /// Runs the rows on a cache that has never been seen but holds the same, and expects the same outputs. Only for
  /// sequences whose cells lie in token order, since nothing tells a new cache another.
  static void expect_as_on_a_new_cache(const KvCache& cache, const KvCache& before, const Outputs& got, std::int64_t rows,
                                       int first_stream, int streams, std::int64_t seen, const std::vector<Row>& step,
                                       std::uint64_t seed, const std::string& where) {
    KvCache copy(cache.spec());
    copy.copy_from(before);
    Graph graph({&copy}, rows, first_stream, streams, seen);
    EXPECT_LT(relative_error(got, graph.run(step, seed)), kSame) << where << ": not what fresh summaries give";
  }
};

// ---- exact

struct ExactCase {
  const char* name;
  CacheSpec spec;
  int threads;
};

class PluginExactTest : public PluginTest, public testing::WithParamInterface<ExactCase> {};

TEST_P(PluginExactTest, PromptAndDecodeAreExactDenseAttention) {
  host().set_threads(GetParam().threads);
  KvCache cache(GetParam().spec);
  {
    Graph prompt({&cache}, 100, 0, 1, 256);
    const auto rows = causal_rows(0, 100);
    EXPECT_LT(error_of_run(prompt, rows, 1), kExact);
    EXPECT_EQ(prompt.num_splits(), 1);
  }
  const double canary_hits = statistic("canary_hits");
  EXPECT_LE(canary_hits, 1) << "the pages of an older cache, should this one have its address";
  Graph decode({&cache}, 1, 0, 1, 256);
  for (std::int64_t cell = 100; cell < 140; ++cell) {
    const std::vector<Row> rows{{cell, cells(0, cell + 1)}};
    ASSERT_LT(error_of_run(decode, rows, static_cast<std::uint64_t>(cell)), kExact) << "cell " << cell;
  }
  const int layers = GetParam().spec.layers;
  EXPECT_EQ(statistic("prefill_calls"), layers);
  EXPECT_EQ(statistic("decode_calls"), 40 * layers);
  EXPECT_EQ(statistic("decode_steps"), 40);
  EXPECT_EQ(statistic("calls_taken"), 41 * layers);
  EXPECT_EQ(statistic("exact_calls"), 0);
  EXPECT_EQ(statistic("canary_hits"), canary_hits);
  EXPECT_EQ(statistic("stale_events") + statistic("adoptions"), 0);
}

CacheSpec with(ggml_type keys, ggml_type values, int head_dim, int kv_heads, int query_heads) {
  CacheSpec spec;
  spec.key_type = keys;
  spec.value_type = values;
  spec.head_dim = head_dim;
  spec.kv_heads = kv_heads;
  spec.query_heads = query_heads;
  return spec;
}

INSTANTIATE_TEST_SUITE_P(Caches, PluginExactTest,
                         testing::Values(ExactCase{"F16", {}, 1}, ExactCase{"F16TwoThreads", {}, 2},
                                         ExactCase{"F16ThreeThreads", {}, 3},
                                         ExactCase{"Q8", with(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 2, 8), 1},
                                         ExactCase{"Q8AndF16", with(GGML_TYPE_Q8_0, GGML_TYPE_F16, 128, 2, 2), 1},
                                         ExactCase{"BF16", with(GGML_TYPE_BF16, GGML_TYPE_BF16, 128, 1, 8), 1},
                                         ExactCase{"F32", with(GGML_TYPE_F32, GGML_TYPE_F32, 96, 4, 4), 1},
                                         ExactCase{"D80", with(GGML_TYPE_F16, GGML_TYPE_F16, 80, 2, 6), 1},
                                         ExactCase{"D256", with(GGML_TYPE_F16, GGML_TYPE_F16, 256, 1, 4), 1}),
                         [](const auto& info) { return info.param.name; });

TEST_F(PluginTest, TwoSequencesInOneUnifiedCacheAreExact) {
  KvCache cache({});
  std::vector<std::vector<std::int64_t>> seen(2);
  Graph decode({&cache}, 2, 0, 1, 256);
  for (std::int64_t step = 0; step < 50; ++step) {
    std::vector<Row> rows;
    for (std::int64_t s = 0; s < 2; ++s) {
      seen[s].push_back(2 * step + s);
      rows.push_back({2 * step + s, seen[s]});
    }
    ASSERT_LT(error_of_run(decode, rows, static_cast<std::uint64_t>(step)), kExact) << "step " << step;
  }
  EXPECT_EQ(statistic("exact_calls"), 0);
}

TEST_F(PluginTest, SeparateStreamsAreExact) {
  CacheSpec spec;
  spec.streams = 3;
  spec.stream_cells = 512;
  KvCache cache(spec);
  read_prompt(cache, 70, 1, 1);
  read_prompt(cache, 33, 2, 2);
  Graph decode({&cache}, 1, 1, 2, 256);
  for (std::int64_t step = 0; step < 20; ++step) {
    const std::vector<Row> rows{{70 + step, cells(0, 71 + step)}, {33 + step, cells(0, 34 + step)}};
    ASSERT_LT(error_of_run(decode, rows, static_cast<std::uint64_t>(step)), kExact) << "step " << step;
  }
  EXPECT_EQ(statistic("exact_calls"), 0);
}

TEST_F(PluginTest, APromptOfOneSequenceBesideATokenOfAnotherIsExact) {
  KvCache cache({});
  read_prompt(cache, 50, 1);
  Graph graph({&cache}, 41, 0, 1, 256);
  std::vector<Row> rows{{50, cells(0, 51)}};
  for (const Row& row : causal_rows(51, 91, 51)) rows.push_back(row);
  EXPECT_LT(error_of_run(graph, rows, 9), kExact);
  EXPECT_EQ(statistic("exact_calls"), 0);
}

TEST_F(PluginTest, RowsThatShareNothingAreStillExact) {
  CacheSpec spec;  // of a size of its own: such rows look like those of a sliding window, which is remembered
  spec.stream_cells = 1024;
  KvCache cache(spec);
  cache.fill(0, 1024, 5);
  Graph graph({&cache}, 100, 0, 1, 1024);
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < 100; ++i) rows.push_back({i, cells(7 * i, 7 * i + 100)});
  EXPECT_LT(error_of_run(graph, rows, 9), kExact);
  EXPECT_EQ(statistic("exact_calls"), cache.spec().layers);
}

// ---- sparse, and never stale

TEST_F(PluginTest, LongContextsAreAttendedSparsely) {
  host().set_threads(2);
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  EXPECT_EQ(statistic("summarized_pages"), 1500 / 16 * cache.spec().layers);
  host().reset_statistics();
  KvCache before(cache.spec());
  Graph decode({&cache}, 1, 0, 1, 1536);
  for (std::int64_t cell = 1500; cell < 1530; ++cell) {
    if (cell % 10 == 0) before.copy_from(cache);
    const std::vector<Row> rows{{cell, cells(0, cell + 1)}};
    const auto got = decode.run(rows, static_cast<std::uint64_t>(cell));
    if (cell % 10 != 0) continue;
    const double error = relative_error(got, decode.reference(rows));
    EXPECT_GT(error, 1e-3) << "this was not sparse";
    EXPECT_LT(error, 0.9) << "this has nothing to do with attention";
    expect_as_on_a_new_cache(cache, before, got, 1, 0, 1, 1536, rows, static_cast<std::uint64_t>(cell), "decode");
  }
  EXPECT_EQ(statistic("canary_hits") + statistic("stale_events"), 0);
  EXPECT_LE(statistic("attended_tokens"), 160);
  EXPECT_LT(statistic("coverage"), 1.0);
  EXPECT_LT(statistic("score_bytes") + statistic("attend_bytes") + statistic("complete_bytes"),
            0.5 * statistic("dense_bytes"));
}

TEST_F(PluginTest, SaysWhatIsHeldBesideTheCache) {
  const char* const variable = std::getenv("LOCKS_SELECTOR");
  const std::string selector = variable == nullptr ? "locks" : variable;
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  host().reset_statistics();
  Graph decode({&cache}, 1, 0, 1, 1536);
  for (std::int64_t cell = 1500; cell < 1502; ++cell) decode.run({{cell, cells(0, cell + 1)}}, 5);
  const CacheSpec& spec = cache.spec();
  const double vectors = 1502 / 16 + 1;  // of every page, the one being filled too
  const double row = spec.head_dim * 2;
  const double f16_page = 16 * 2 * row;
  double of_head = 1502 / 16 * statistic("summary_share") * f16_page;
  if (selector == "quest") of_head = vectors * 2 * row;
  if (selector == "compkv") of_head = vectors * (2 * row + 4 * 2);
  EXPECT_NEAR(statistic("held_bytes"), 2.0 * spec.layers * spec.kv_heads * of_head, 1.0);
}

TEST_F(PluginTest, TheFirstLayersMayBeDense) {
  const char* const dense_layers = std::getenv("LOCKS_DENSE_LAYERS");
  if (dense_layers == nullptr || std::string(dense_layers) != "1") GTEST_SKIP() << "LOCKS_DENSE_LAYERS is not 1";
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  Graph decode({&cache}, 1, 0, 1, 1536);
  const std::vector<Row> rows{{1500, cells(0, 1501)}};
  const auto got = decode.run(rows, 5);
  const auto expected = decode.reference(rows);
  EXPECT_LT(relative_error({got[0]}, std::vector<std::vector<double>>{expected[0]}), kExact);
  EXPECT_GT(relative_error({got[1]}, std::vector<std::vector<double>>{expected[1]}), 1e-3) << "this was not sparse";
  EXPECT_EQ(statistic("sparse_requests"), 1);
  const std::string rest = host().statistics().substr(host().statistics().find("coverage_by_head"));
  const bool estimates = std::string(std::getenv("LOCKS_SELECTOR")) == "locks";
  const std::string second = estimates ? "[0." : "[0, 0, 0]]";
  EXPECT_NE(rest.find("[[1, 1, 1], " + second), std::string::npos) << rest;
  host().reset_statistics();
  EXPECT_NE(host().statistics().find("\"coverage_by_head\": [[], []]"), std::string::npos) << "of layers that did nothing";
}

TEST_F(PluginTest, TokensWrittenAnewAreSummarizedAnew) {
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  KvCache before(cache.spec());
  // The same prompt up to 700, then another one: the mask looks the same before and after.
  for (std::int64_t first = 700; first < 1500; first += 100) {
    Graph graph({&cache}, 100, 0, 1, 1536);
    graph.run(causal_rows(first, first + 100), 77 + static_cast<std::uint64_t>(first));
  }
  before.copy_from(cache);
  Graph decode({&cache}, 1, 0, 1, 1536);
  const std::vector<Row> rows{{1500, cells(0, 1501)}};
  expect_as_on_a_new_cache(cache, before, decode.run(rows, 5), 1, 0, 1, 1536, rows, 5, "rewritten");
}

TEST_F(PluginTest, DraftedTokensTakenBackLeaveNothingBehind) {
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  Graph draft({&cache}, 6, 0, 1, 2048);
  Graph decode({&cache}, 1, 0, 1, 2048);
  std::int64_t next = 1500;
  for (std::int64_t round = 0; round < 12; ++round) {
    draft.run(causal_rows(next, next + 6), 100 + static_cast<std::uint64_t>(round));
    next += 1 + round % 6;  // so many were accepted; the others' cells are written again
  }
  KvCache before(cache.spec());
  before.copy_from(cache);
  const std::vector<Row> rows{{next, cells(0, next + 1)}};
  expect_as_on_a_new_cache(cache, before, decode.run(rows, 5), 1, 0, 1, 2048, rows, 5, "drafted");
  EXPECT_EQ(statistic("exact_calls"), 0);
}

TEST_F(PluginTest, AShiftMakesAllSummariesStale) {
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  scale_keys_in_place(cache, -1.5F);
  KvCache before(cache.spec());
  before.copy_from(cache);
  Graph decode({&cache}, 1, 0, 1, 1536);
  const std::vector<Row> rows{{1500, cells(0, 1501)}};
  expect_as_on_a_new_cache(cache, before, decode.run(rows, 5), 1, 0, 1, 1536, rows, 5, "shifted");
  EXPECT_EQ(statistic("stale_events"), 1);
}

TEST_F(PluginTest, ARestoredStateIsNoticedAndSummarizedInBulk) {
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  Graph decode({&cache}, 1, 0, 1, 1536);
  decode.run({{1500, cells(0, 1501)}}, 5);
  host().reset_statistics();
  cache.fill(0, 1500, 99);  // nobody tells
  KvCache before(cache.spec());
  before.copy_from(cache);
  const std::vector<Row> rows{{1501, cells(0, 1502)}};
  const auto got = decode.run(rows, 6);
  EXPECT_EQ(statistic("canary_hits"), 1);
  expect_as_on_a_new_cache(cache, before, got, 1, 0, 1, 1536, rows, 6, "restored");
  EXPECT_GE(statistic("restored_pages"), 90 * cache.spec().layers);
  EXPECT_GT(statistic("restore_seconds"), 0);
}

TEST_F(PluginTest, OneRestoredPageIsNoticed) {
  KvCache cache({});
  read_prompt(cache, 1500, 1);
  Graph decode({&cache}, 1, 0, 1, 1536);
  decode.run({{1500, cells(0, 1501)}}, 5);
  host().reset_statistics();
  cache.fill(640, 656, 99);
  KvCache before(cache.spec());
  before.copy_from(cache);
  const std::vector<Row> rows{{1501, cells(0, 1502)}};
  const auto got = decode.run(rows, 6);
  EXPECT_EQ(statistic("canary_hits"), 1);
  expect_as_on_a_new_cache(cache, before, got, 1, 0, 1, 1536, rows, 6, "one page");
}

TEST_F(PluginTest, ASequenceRestoredIntoAnEmptyCacheIsTaken) {
  KvCache cache({});
  cache.fill(0, 1400, 3);
  Graph decode({&cache}, 1, 0, 1, 1536);
  const std::vector<Row> rows{{1400, cells(0, 1401)}};
  const auto got = decode.run(rows, 5);
  EXPECT_GT(statistic("adoptions"), 0);
  EXPECT_EQ(statistic("sparse_requests"), cache.spec().layers);
  EXPECT_EQ(statistic("restored_pages"), 1401 / 16 * cache.spec().layers);
}

TEST_F(PluginTest, AShortSequenceRestoredAnewIsRightWhenItIsLong) {
  // No mark shows that the keys changed: nothing may be known of a sequence that is still attended whole.
  KvCache cache({});
  read_prompt(cache, 100, 1);
  {
    Graph decode({&cache}, 1, 0, 1, 256);
    decode.run({{100, cells(0, 101)}}, 5);
  }
  cache.fill(0, 101, 99);
  for (std::int64_t first = 101; first < 1100; first += 111) {
    Graph graph({&cache}, 111, 0, 1, (first + 111 + 255) / 256 * 256);
    graph.run(causal_rows(first, first + 111), static_cast<std::uint64_t>(first));
  }
  KvCache before(cache.spec());
  before.copy_from(cache);
  Graph decode({&cache}, 1, 0, 1, 1280);
  const std::vector<Row> rows{{1100, cells(0, 1101)}};
  expect_as_on_a_new_cache(cache, before, decode.run(rows, 6), 1, 0, 1, 1280, rows, 6, "short, then long");
}

TEST_F(PluginTest, ARestoredStreamLeavesTheOthersAlone) {
  CacheSpec spec;
  spec.streams = 2;
  KvCache cache(spec);
  read_prompt(cache, 1500, 1, 0);
  read_prompt(cache, 1500, 2, 1);
  Graph decode({&cache}, 1, 0, 2, 1536);
  decode.run({{1500, cells(0, 1501)}, {1500, cells(0, 1501)}}, 5);
  host().reset_statistics();
  cache.fill(spec.stream_cells, spec.stream_cells + 1500, 99);
  KvCache before(spec);
  before.copy_from(cache);
  const std::vector<Row> rows{{1501, cells(0, 1502)}, {1501, cells(0, 1502)}};
  expect_as_on_a_new_cache(cache, before, decode.run(rows, 6), 1, 0, 2, 1536, rows, 6, "one stream");
  EXPECT_LE(statistic("restored_pages"), 2 * 1504 / 16 * spec.layers + 1502 / 16 * spec.layers) << "and the copy's";
}

TEST_F(PluginTest, InterleavedLongSequencesAreAttendedSparselyEachByItsOwnPages) {
  KvCache cache({});
  std::vector<std::vector<std::int64_t>> seen(2);
  for (std::int64_t first = 0; first < 2000; first += 40) {
    Graph graph({&cache}, 40, 0, 1, (first + 40 + 255) / 256 * 256);
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < 40; ++i) {
      auto& own = seen[static_cast<std::size_t>(i % 2)];
      own.push_back(first + i);
      rows.push_back({first + i, own});
    }
    graph.run(rows, static_cast<std::uint64_t>(first));
  }
  KvCache before(cache.spec());
  before.copy_from(cache);
  Graph decode({&cache}, 2, 0, 1, 2048);
  seen[0].push_back(2000);
  seen[1].push_back(2001);
  // 1,001 tokens each are under the least context: dense, so exact.
  std::vector<Row> rows{{2000, seen[0]}, {2001, seen[1]}};
  EXPECT_LT(error_of_run(decode, rows, 3), kExact);
  for (std::int64_t cell = 2002; cell < 2048; cell += 2) {
    seen[0].push_back(cell);
    seen[1].push_back(cell + 1);
    rows = {{cell, seen[0]}, {cell + 1, seen[1]}};
    if (cell == 2046) before.copy_from(cache);
    const auto got = decode.run(rows, static_cast<std::uint64_t>(cell));
    if (cell == 2046)
      expect_as_on_a_new_cache(cache, before, got, 2, 0, 1, 2048, rows, static_cast<std::uint64_t>(cell), "interleaved");
  }
  EXPECT_EQ(statistic("exact_calls"), 0);
  EXPECT_GT(statistic("sparse_requests"), 0);
}

TEST_F(PluginTest, ManyCachesInTurnAtTheSameAddressesAreNeverMixedUp) {
  for (std::uint64_t round = 0; round < 4; ++round) {
    KvCache cache({});
    cache.fill(0, 1300, 50 + round);
    KvCache before(cache.spec());
    before.copy_from(cache);
    Graph decode({&cache}, 1, 0, 1, 1536);
    const std::vector<Row> rows{{1300, cells(0, 1301)}};
    expect_as_on_a_new_cache(cache, before, decode.run(rows, round), 1, 0, 1, 1536, rows, round,
                             "round " + std::to_string(round));
  }
}

TEST_F(PluginTest, MoreCachesThanAreKeptAreStillRight) {
  std::vector<std::unique_ptr<KvCache>> caches;
  for (std::uint64_t i = 0; i < 20; ++i) {
    caches.push_back(std::make_unique<KvCache>(CacheSpec{}));
    caches.back()->fill(0, 1100, i);
    Graph decode({caches.back().get()}, 1, 0, 1, 1280);
    decode.run({{1100, cells(0, 1101)}}, i);
  }
  Graph again({caches[0].get()}, 1, 0, 1, 1280);
  KvCache before(caches[0]->spec());
  before.copy_from(*caches[0]);
  const std::vector<Row> rows{{1101, cells(0, 1102)}};
  expect_as_on_a_new_cache(*caches[0], before, again.run(rows, 7), 1, 0, 1, 1280, rows, 7, "forgotten");
}

TEST_F(PluginTest, TwoContextsAtOnceKeepApart) {
  KvCache one({});
  KvCache two({});
  read_prompt(one, 1300, 1);
  read_prompt(two, 1200, 2);
  Graph decode_one({&one}, 1, 0, 1, 1536);
  Graph decode_two({&two}, 1, 0, 1, 1536);
  KvCache before(one.spec());
  host().reset_statistics();
  for (std::int64_t i = 0; i < 5; ++i) {
    if (i == 4) before.copy_from(two);
    decode_one.run({{1300 + i, cells(0, 1301 + i)}}, static_cast<std::uint64_t>(i));
    const std::vector<Row> rows{{1200 + i, cells(0, 1201 + i)}};
    const auto got = decode_two.run(rows, static_cast<std::uint64_t>(i));
    if (i < 4) continue;
    EXPECT_EQ(statistic("canary_hits"), 0);
    expect_as_on_a_new_cache(two, before, got, 1, 0, 1, 1536, rows, static_cast<std::uint64_t>(i), "second context");
  }
}

TEST_F(PluginTest, NotFiniteKeysDoNoHarm) {
  KvCache cache({});
  cache.fill(0, 1400, 3);
  const std::vector<std::uint16_t> nan(static_cast<std::size_t>(cache.spec().row()), 0x7E00);
  ggml_backend_tensor_set(cache.key_tensors[0], nan.data(), 500 * cache.key_tensors[0]->nb[1], nan.size() * 2);
  Graph decode({&cache}, 1, 0, 1, 1536);
  decode.run({{1400, cells(0, 1401)}}, 5);
  EXPECT_EQ(statistic("not_finite_records"), cache.spec().kv_heads);
}

// ---- declined

TEST_F(PluginTest, WhatItDoesNotKnowStaysWithTheHost) {
  struct Declined {
    const char* reason;
    CacheSpec spec;
    Oddities oddities;
  };
  std::vector<Declined> all(6);
  all[0] = {"soft_cap", {}, {.softcap = 30.0F}};
  all[1] = {"alibi", {}, {.max_bias = 8.0F}};
  all[2] = {"sinks", {}, {.sinks = true}};
  all[3] = {"mla", {}, {.values_in_keys = true}};
  all[4] = {"head_dim", with(GGML_TYPE_F16, GGML_TYPE_F16, 32, 2, 2), {}};
  all[5] = {"no_kv_cache", {}, {}};
  all[5].spec.name = "something_else";
  for (const Declined& declined : all) {
    host().reset_statistics();
    KvCache cache(declined.spec);
    Graph graph({&cache}, 20, 0, 1, 256, declined.oddities);
    graph.run(causal_rows(0, 20), 1);
    EXPECT_GE(statistic(std::string("declined.") + declined.reason), 1) << declined.reason;
    EXPECT_EQ(statistic("calls_taken"), 0) << declined.reason;
  }
}

TEST_F(PluginTest, WritesBesideAttentionLeftToTheHostAreSeen) {
  if (host().front_end() != "callback") GTEST_SKIP() << "only the callback looks at a graph before every run";
  CacheSpec spec;  // of a size of its own: no older cache has had its state
  spec.stream_cells = 1792;
  KvCache cache(spec);
  Graph graph({&cache}, 20, 0, 1, 256, {.softcap = 30.0F});
  for (const std::int64_t first : {0, 20, 40}) graph.run(causal_rows(first, first + 20), 1);
  EXPECT_EQ(statistic("calls_taken"), 0);
  graph.remove_softcap();
  EXPECT_LT(error_of_run(graph, causal_rows(60, 80), 1), kExact);
  EXPECT_EQ(statistic("calls_taken"), spec.layers);
  EXPECT_EQ(statistic("adoptions"), 0) << "a cell counts as written unseen";
}

TEST_F(PluginTest, SlidingWindowLayersStayWithTheHostAndTheOthersAreTaken) {
  CacheSpec window;
  window.stream_cells = 256;
  CacheSpec whole;
  whole.stream_cells = 768;
  KvCache full(whole);
  KvCache small(window);
  // The window of 100 tokens wraps around in its own small cache.
  for (std::int64_t step = 0; step < 8; ++step) {
    Graph graph({&full, &small}, 50, 0, 1, (50 * step + 50 + 255) / 256 * 256);
    const auto rows = causal_rows(50 * step, 50 * step + 50);
    std::vector<Row> of_window;
    for (std::int64_t t = 50 * step; t < 50 * step + 50; ++t) {
      Row row{t % 256, {}};
      for (std::int64_t seen = std::max<std::int64_t>(0, t - 99); seen <= t; ++seen) row.sees.push_back(seen % 256);
      of_window.push_back(row);
    }
    if (step == 1) host().reset_statistics();
    const auto got = graph.run(rows, static_cast<std::uint64_t>(step), of_window);
    const auto expected = graph.reference(rows);
    for (std::size_t layer = 0; layer < got.size(); layer += 2) {
      EXPECT_LT(relative_error({got[layer]}, std::vector<std::vector<double>>{expected[layer]}), kExact)
          << "layer " << layer;
    }
    const auto expected_window = graph.reference(of_window);
    for (std::size_t layer = 1; layer < got.size(); layer += 2) {
      EXPECT_LT(relative_error({got[layer]}, std::vector<std::vector<double>>{expected_window[layer]}), kHalf)
          << "layer " << layer;
    }
  }
  EXPECT_EQ(statistic("calls_taken"), 7 * full.spec().layers);
  EXPECT_GE(statistic("declined.sliding_window"), 6 * full.spec().layers);
}

TEST_F(PluginTest, AWindowInAFullCacheIsNoticedByItsMask) {
  CacheSpec spec;
  spec.stream_cells = 512;
  KvCache cache(spec);
  read_prompt(cache, 200, 1);
  for (std::int64_t first = 200; first < 500; first += 50) {
    Graph graph({&cache}, 50, 0, 1, 512);
    std::vector<Row> rows;
    for (std::int64_t t = first; t < first + 50; ++t) rows.push_back({t, cells(t - 149, t + 1)});
    EXPECT_LT(error_of_run(graph, rows, static_cast<std::uint64_t>(first)), kHalf);
  }
  EXPECT_GE(statistic("declined.sliding_window"), 4 * cache.spec().layers);
}

TEST_F(PluginTest, LoadedASecondTimeItRefuses) {
  if (host().front_end() != "backend") GTEST_SKIP() << "only a backend is loaded";
  testing::internal::CaptureStderr();
  EXPECT_EQ(ggml_backend_load(std::getenv("GGML_HOST_PLUGIN")), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("already loaded"), std::string::npos) << said;
  KvCache cache({});
  Graph graph({&cache}, 20, 0, 1, 256);
  const auto rows = causal_rows(0, 20);
  EXPECT_LT(error_of_run(graph, rows, 1), kExact);
}

}  // namespace
}  // namespace locks::test
