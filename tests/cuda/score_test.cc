// Scores on the GPU against the CPU's definition in the same process.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "logits.h"
#include "records.h"

namespace locks {
namespace {

using test::DeviceArray;
using test::RandomRecords;
using test::TableOnDevice;

constexpr float kUntouched = -12345.0F;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One call's arguments, on the host and on the device. Rows of log_mass are wider than needed.
struct Case {
  RandomRecords& records;
  const test::TableData& table;
  TableOnDevice device_table;
  std::vector<float> queries;
  DeviceArray<float> device_queries;
  ScoreArgs host;
  test::Workspace workspace;
  int longest = 0;
  std::int64_t stride = 0;

  Case(RandomRecords& records, int kv_heads, int group, const test::TableData& table, std::vector<float> query_values,
       float softmax_scale = 0.0F)
      : records(records),
        table(table),
        device_table(table),
        queries(std::move(query_values)),
        device_queries(queries),
        workspace(
            score_workspace_bytes({records.host().head_dim, kv_heads, kv_heads * group, 1.0F}, table.table.num_requests())) {
    const int head_dim = records.host().head_dim;
    host.geometry = {head_dim, kv_heads, kv_heads * group,
                     softmax_scale > 0.0F ? softmax_scale : 1.0F / std::sqrt(static_cast<float>(head_dim))};
    host.summaries = records.host();
    host.table = table.table;
    host.workspace = workspace.span();
    const int requests = table.table.num_requests();
    host.queries = contiguous<const float>(queries.data(), requests, kv_heads * group, head_dim);
    for (int request = 0; request < requests; ++request) longest = std::max(longest, table.table.filled_pages(request));
    stride = longest + 5;
  }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(host.table.num_requests() * host.geometry.query_heads * stride);
  }
  [[nodiscard]] View<float, 3> log_mass(float* data) const {
    const std::int64_t heads = host.geometry.query_heads;
    return {data, {host.table.num_requests(), heads, longest}, {heads * stride, stride, 1}};
  }
  [[nodiscard]] ScoreArgs device() {
    ScoreArgs args = host;
    args.queries.data = device_queries.data();
    args.summaries = records.device();
    args.table = device_table.table();
    args.workspace = {};
    return args;
  }
  std::vector<float> run() {
    const std::vector<float> untouched(size(), kUntouched);
    DeviceArray<float> out(untouched);
    ScoreArgs args = device();
    args.log_mass = log_mass(out.data());
    cuda::score(args, nullptr);
    return out.read();
  }
  std::vector<float> run_reference() {
    std::vector<float> out(size(), kUntouched);
    host.log_mass = log_mass(out.data());
    check_score(host);
    prepare_queries(host, Team{}, Target::kReference);
    score(host, Team{}, Target::kReference);
    return out;
  }
};

void expect_right(Case& c) {
  const std::vector<float> got = c.run();
  const std::vector<float> want = c.run_reference();
  double worst = -1.0;
  std::string report;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (want[i] == kUntouched || want[i] == kInfinity) {
      ASSERT_EQ(got[i], want[i]) << "a store past the pages, or a flag not seen, at " << i;
      continue;
    }
    const auto row = static_cast<std::int64_t>(i) / c.stride;
    const auto index = static_cast<int>(static_cast<std::int64_t>(i) % c.stride);
    const int request = static_cast<int>(row) / c.host.geometry.query_heads;
    const int head = static_cast<int>(row) % c.host.geometry.query_heads;
    const std::int64_t page = c.table.table.page(request, index);
    const test::Bounded bounded = test::page_log_mass(test::page_logits(c.host, request, head, page));
    const double excess = std::abs(got[i] - double{want[i]}) / bounded.bound;
    if (!(excess <= worst)) {
      worst = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
      report = "request " + std::to_string(request) + ", head " + std::to_string(head) + ", page " + std::to_string(index) +
               ": got " + std::to_string(got[i]) + ", want " + std::to_string(want[i]) + ", bound " +
               std::to_string(bounded.bound);
    }
  }
  EXPECT_LE(worst, 1.0) << report;
}

std::vector<float> queries_for(int requests, int kv_heads, int group, int head_dim, std::uint64_t seed,
                               float deviation = 1.0F) {
  return test::normal_floats(static_cast<std::size_t>(requests * kv_heads * group * head_dim), seed, deviation);
}

struct Shape {
  const SummaryFormat* format;
  int head_dim;
};
std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) shapes.push_back({format, head_dim});
  }
  return shapes;
}
std::string shape_name(const testing::TestParamInfo<Shape>& info) {
  return std::string(info.param.format->name) + "_d" + std::to_string(info.param.head_dim);
}

class CudaScoreTest : public test::CudaTest, public testing::WithParamInterface<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaScoreTest, testing::ValuesIn(all_shapes()), shape_name);
using CudaScore = test::CudaTest;

TEST_P(CudaScoreTest, MatchesTheReferenceOnRandomRecords) {
  const auto [format, head_dim] = GetParam();
  for (const int group : {1, 3, 8, 11, 16, 19}) {
    const int kv_heads = group == 1 ? 3 : 2;
    RandomRecords records(*format, head_dim, kv_heads, 64, group % 2 * 48, 7);
    records.flag(5, 1);
    records.flag(40, 0);
    const int block_tokens = group == 1 ? 64 : group == 3 ? 32 : 16;
    const test::TableData table({0, 15, 16, 333, 65}, 64, block_tokens, 3);
    Case c(records, kv_heads, group, table, queries_for(5, kv_heads, group, head_dim, 11));
    expect_right(c);
  }
}

TEST_P(CudaScoreTest, LimitsDeviationsAsTheReferenceDoes) {
  const auto [format, head_dim] = GetParam();
  RandomRecords records(*format, head_dim, 1, 40, 16, 8, 30.0F);
  const test::TableData table({640}, 40, 16, 3);
  Case c(records, 1, 4, table, queries_for(1, 1, 4, head_dim, 12, 20.0F));
  expect_right(c);
}

TEST_P(CudaScoreTest, TokenLogitsMatchTheReference) {
  const auto [format, head_dim] = GetParam();
  constexpr int kKvHeads = 2;
  constexpr int kCapacity = 40;
  for (const int group : {3, 10}) {
    RandomRecords records(*format, head_dim, kKvHeads, 100, 16, 9);
    const test::TableData table({100, 1210}, 100, 16, 4);
    Case c(records, kKvHeads, group, table, queries_for(2, kKvHeads, group, head_dim, 13));
    prepare_queries(c.host, Team{}, Target::kReference);
    for (const int lists : {kKvHeads, kKvHeads * group}) {
      const int heads = kKvHeads * group / lists;
      std::vector<std::int32_t> counts;
      std::vector<std::int32_t> pages;
      for (int row = 0; row < 2 * lists; ++row) {
        const int filled = c.table.table.filled_pages(row / lists);
        counts.push_back(row % 3 == 0 ? 0 : row < lists ? 2 : kCapacity - row % 5);
        for (int i = 0; i < kCapacity; ++i) pages.push_back(i < counts.back() ? (i * 7 + row) % filled : -1000000);
      }
      const DeviceArray<std::int32_t> device_counts(counts);
      const DeviceArray<std::int32_t> device_pages(pages);
      const std::size_t floats = static_cast<std::size_t>(2 * lists * kCapacity * heads * kPageTokens);
      const DeviceArray<float> out(std::vector<float>(floats, kUntouched));
      const ScoreArgs device = c.device();
      cuda::TokenScoreArgs args{device.geometry, device.queries, device.summaries, device.table, lists, {}, {}, {}};
      args.pages = contiguous<const std::int32_t>(device_pages.data(), 2, lists, kCapacity);
      args.num_pages = contiguous<const std::int32_t>(device_counts.data(), 2, lists);
      args.logits = contiguous<float>(out.data(), 2, lists, kCapacity, heads, kPageTokens);
      cuda::score_tokens(args, nullptr);
      const std::vector<float> memory = out.read();
      const auto got = contiguous<const float>(memory.data(), 2, lists, kCapacity, heads, kPageTokens);
      for (int row = 0; row < 2 * lists; ++row) {
        for (int i = 0; i < kCapacity; ++i) {
          for (int head = 0; head < heads; ++head) {
            const float* const logits = got.at(row / lists, row % lists, i, head);
            if (i >= counts[static_cast<std::size_t>(row)]) {
              for (int token = 0; token < kPageTokens; ++token) ASSERT_EQ(logits[token], kUntouched);
              continue;
            }
            const int query_head = row % lists * heads + head;
            const std::int32_t index = pages[static_cast<std::size_t>(row * kCapacity + i)];
            const test::PageLogits want =
                test::page_logits(c.host, row / lists, query_head, c.table.table.page(row / lists, index));
            for (int token = 0; token < kPageTokens; ++token) {
              const double value = want.mean.value + want.deviation[token].value;
              ASSERT_NEAR(logits[token], value, want.mean.bound + want.deviation[token].bound + test::kEps * std::abs(value))
                  << "list " << row << ", entry " << i << ", head " << query_head << ", token " << token;
            }
          }
        }
      }
    }
  }
}

/// Of 800 lists each has few blocks, which take several times as many pages as they hold; alone it has enough of them.
TEST_P(CudaScoreTest, TokenLogitsAreThoseOfARequestAlone) {
  const auto [format, head_dim] = GetParam();
  constexpr int kRequests = 40;
  constexpr int kLists = 20;
  constexpr int kCapacity = 100;
  constexpr int kPages = 120;
  RandomRecords records(*format, head_dim, kLists, kPages, 16, 9);
  std::vector<std::int32_t> lengths;
  for (int i = 0; i < kRequests; ++i) lengths.push_back((1 + i % 3) * kPageTokens + i % 5);
  const test::TableData table(lengths, kPages, 16, 4);
  Case c(records, kLists, 1, table, queries_for(kRequests, kLists, 1, head_dim, 13));
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> pages;
  for (int row = 0; row < kRequests * kLists; ++row) {
    counts.push_back(row % 7 == 0 ? row % 3 : kCapacity - row % 5);
    for (int i = 0; i < kCapacity; ++i) pages.push_back((i * 7 + row) % table.table.filled_pages(row / kLists));
  }
  const DeviceArray<std::int32_t> device_counts(counts);
  const DeviceArray<std::int32_t> device_pages(pages);
  constexpr std::size_t kFloats = std::size_t{kRequests} * kLists * kCapacity * kPageTokens;
  const ScoreArgs device = c.device();
  cuda::TokenScoreArgs args{device.geometry, device.queries, device.summaries, device.table, kLists, {}, {}, {}};
  args.pages = contiguous<const std::int32_t>(device_pages.data(), kRequests, kLists, kCapacity);
  args.num_pages = contiguous<const std::int32_t>(device_counts.data(), kRequests, kLists);
  const DeviceArray<float> together(std::vector<float>(kFloats, kUntouched));
  args.logits = contiguous<float>(together.data(), kRequests, kLists, kCapacity, 1, kPageTokens);
  cuda::score_tokens(args, nullptr);

  const DeviceArray<float> alone(std::vector<float>(kFloats, kUntouched));
  args.logits.data = alone.data();
  for (int request = 0; request < kRequests; ++request) {
    cuda::TokenScoreArgs one = args;
    const auto cut = [&](auto& view) {
      view.data += request * view.stride[0];
      view.shape[0] = 1;
    };
    cut(one.queries);
    cut(one.table.blocks);
    one.table.context_tokens = args.table.context_tokens.subspan(static_cast<std::size_t>(request), 1);
    cut(one.pages);
    cut(one.num_pages);
    cut(one.logits);
    cuda::score_tokens(one, nullptr);
  }
  EXPECT_EQ(together.read(), alone.read());
}

/// The same pages and queries in another order, in another batch and with other block sizes.
TEST_P(CudaScoreTest, APagesBitsDependOnItAlone) {
  const auto [format, head_dim] = GetParam();
  constexpr int kPages = 96;
  RandomRecords records(*format, head_dim, 2, kPages, 0, 10);
  for (const int group : {8, 12}) {
    const std::vector<float> queries = queries_for(1, 2, group, head_dim, 14);
    const test::TableData alone({kPages * kPageTokens}, kPages, 16, 5);
    Case first(records, 2, group, alone, queries);
    const std::vector<float> want = first.run();
    std::vector<float> twice(queries);
    twice.insert(twice.end(), queries.begin(), queries.end());
    const test::TableData batch({21 * kPageTokens, 75 * kPageTokens}, kPages, 16, 6);
    Case second(records, 2, group, batch, twice);
    const std::vector<float> got = second.run();
    std::vector<int> place(kPages);
    for (int index = 0; index < kPages; ++index) place[static_cast<std::size_t>(alone.table.page(0, index))] = index;
    for (int request = 0; request < 2; ++request) {
      for (int head = 0; head < 2 * group; ++head) {
        for (int index = 0; index < batch.table.filled_pages(request); ++index) {
          const auto page = static_cast<std::size_t>(batch.table.page(request, index));
          const std::int64_t at = (request * 2 * group + head) * second.stride + index;
          ASSERT_EQ(got[static_cast<std::size_t>(at)], want[static_cast<std::size_t>(head * first.stride + place[page])])
              << "request " << request << ", head " << head << ", page " << index;
        }
      }
    }
  }
}

/// Scales of one and integer queries: what comes out is the integer sum itself, as long as it has 16 bits. Formats that
/// rotate make no integers of a query.
class CudaScoreIntegers : public test::CudaTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, CudaScoreIntegers, testing::Values(64, 80, 96, 128, 192, 256));

TEST_P(CudaScoreIntegers, AreExact) {
  const SummaryFormat* const format = &kPaper;
  const int head_dim = GetParam();
  RandomRecords records(*format, head_dim, 1, 3, 0, 21);
  const RecordLayout& at = records.layout();
  for (int page = 0; page < 3; ++page) {
    std::byte* record = records.host().record(page, 0);
    for (int i = 0; i < format->rank; ++i) store_u16(record + at.basis_scales_at + 2 * i, float_to_bf16(1.0F));
    for (int i = 0; i < kPageTokens; ++i) store_u16(record + at.coefficient_scales_at + 2 * i, float_to_bf16(1.0F));
    store_u16(record + at.mean_scale_at, float_to_bf16(page < 2 ? 0.0F : 1.0F));
    for (int i = 0; i < format->rank * kPageTokens; ++i) {  // token t picks rank t % 8; page 2 has its mean alone
      record[at.coefficients_at + i] = static_cast<std::byte>(page < 2 && i % kPageTokens % 8 == i / kPageTokens);
    }
    if (page == 1) std::memset(record, 0xFF, static_cast<std::size_t>(at.mean_at));  // every code 15
  }
  const test::TableData table({48}, 3, 16, 1);
  for (const float largest : {127.0F, 32767.0F}) {
    std::vector<float> query(static_cast<std::size_t>(head_dim));
    for (int dim = 0; dim < head_dim; ++dim) query[dim] = static_cast<float>(dim * 91 % 41 - 20);
    query[head_dim - 1] = largest;
    Case c(records, 1, 1, table, query, 1.0F);
    const ScoreArgs device = c.device();
    const DeviceArray<std::int32_t> pages(std::vector<std::int32_t>{0, 1, 2});
    const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{3});
    const DeviceArray<float> out(3 * kPageTokens);
    cuda::TokenScoreArgs args{device.geometry, device.queries, device.summaries, device.table, 1, {}, {}, {}};
    args.pages = contiguous<const std::int32_t>(pages.data(), 1, 1, 3);
    args.num_pages = contiguous<const std::int32_t>(count.data(), 1, 1);
    args.logits = contiguous<float>(out.data(), 1, 1, 3, 1, kPageTokens);
    cuda::score_tokens(args, nullptr);
    const std::vector<float> got = out.read();
    for (int index = 0; index < 3; ++index) {
      const std::int64_t page = table.table.page(0, index);
      const DecodedSummary summary = decode_record(*format, head_dim, records.host().record(page, 0));
      for (int token = 0; token < kPageTokens; ++token) {
        double want = 0.0;
        for (int dim = 0; dim < head_dim; ++dim) {
          // Of the basis with a query beyond 8 bits only the mean's page is exact.
          want += page == 2 ? summary.mean[dim] * query[dim] : summary.basis[token % 8][dim] * query[dim];
        }
        if (page == 2 ? largest > 127.0F : largest == 127.0F) {
          ASSERT_EQ(got[static_cast<std::size_t>(index * kPageTokens + token)], want) << "page " << page << ", " << token;
        }
      }
    }
  }
}

TEST_F(CudaScore, QueriesWithoutInformationGiveEveryPageTheMassOfSixteenEqualTokens) {
  for (const SummaryFormat* format : summary_formats()) {
    RandomRecords records(*format, 64, 1, 20, 0, 9);
    const test::TableData table({320}, 20, 16, 5);
    for (const float poison : {0.0F, 1e-40F, 1e-36F, kInfinity, std::nanf("")}) {
      std::vector<float> query(3 * 64, poison < 1e-30F ? poison : 1.0F);
      for (int head = 0; head < 3; ++head) query[static_cast<std::size_t>(head * 64 + 10 * head)] = poison;
      Case c(records, 1, 3, table, query);
      const std::vector<float> got = c.run();
      for (int head = 0; head < 3; ++head) {
        for (int index = 0; index < 20; ++index) {
          ASSERT_NEAR(got[static_cast<std::size_t>(head * c.stride + index)], std::log(16.0), 1e-6) << format->name;
        }
      }
    }
  }
}

TEST_F(CudaScore, HugeQueriesGiveNoNaN) {
  for (const SummaryFormat* format : summary_formats()) {
    RandomRecords records(*format, 128, 1, 20, 0, 9);
    const test::TableData table({320}, 20, 16, 5);
    Case c(records, 1, 2, table, queries_for(1, 1, 2, 128, 3, 1e33F));
    for (const float value : c.run()) ASSERT_FALSE(std::isnan(value)) << format->name;
  }
}

TEST_F(CudaScore, AGraphReadsLengthsWhenItIsReplayed) {
  RandomRecords records(kGraded8, 128, 2, 80, 0, 9);
  const test::TableData table({40 * kPageTokens, 40 * kPageTokens}, 80, 16, 5);
  Case c(records, 2, 4, table, queries_for(2, 2, 4, 128, 3));
  const std::vector<float> want = c.run();
  const std::vector<float> untouched(c.size(), kUntouched);
  DeviceArray<float> out(untouched);
  ScoreArgs args = c.device();
  args.log_mass = c.log_mass(out.data());
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  test::expect_cuda(cudaStreamCreate(&stream));
  test::expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cuda::score(args, stream);
  test::expect_cuda(cudaStreamEndCapture(stream, &graph));
  test::expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
  for (const std::vector<std::int32_t>& lengths : {std::vector{0, 5}, std::vector{333, 0}, std::vector{16, 640}}) {
    out.write(untouched);
    c.device_table.set_lengths(lengths);
    test::expect_cuda(cudaGraphLaunch(replay, stream));
    const std::vector<float> got = out.read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i) % c.stride;
      const auto request = i / static_cast<std::size_t>(c.stride) / 8;
      ASSERT_EQ(got[i], index < lengths[request] / kPageTokens ? want[i] : kUntouched) << i;
    }
  }
  test::expect_cuda(cudaGraphExecDestroy(replay));
  test::expect_cuda(cudaGraphDestroy(graph));
  test::expect_cuda(cudaStreamDestroy(stream));
}

TEST_F(CudaScore, ManyRequestsOfAllLengths) {
  std::vector<std::int32_t> lengths;
  int pages = 0;
  for (int i = 0; i < 150; ++i) {
    lengths.push_back(i * 37 % 101 * (i % 7 == 0 ? 10 : 1));
    pages += (lengths.back() + kPageTokens - 1) / kPageTokens;
  }
  RandomRecords records(kGraded8, 64, 2, pages, 0, 9);
  const test::TableData table(lengths, pages, 16, 5);
  Case c(records, 2, 3, table, queries_for(150, 2, 3, 64, 3));
  expect_right(c);
}

std::string refusal(const ScoreArgs& args) {
  try {
    cuda::score(args, nullptr);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CudaScoreDoor, NamesTheArgument) {
  RandomRecords records(kGraded8, 64, 2, 4, 0, 9);
  const test::TableData table({64}, 4, 16, 5);
  std::vector<float> queries(2 * 64);
  std::vector<float> out(8);
  // The door does not look where pointers lead, so the host's will do.
  ScoreArgs good;
  good.geometry = {64, 2, 2, 0.125F};
  good.queries = contiguous<const float>(queries.data(), 1, 2, 64);
  good.summaries = records.host();
  good.summaries.data = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  good.table = table.table;
  good.log_mass = contiguous<float>(out.data(), 1, 2, 4);
  const auto expect = [&](const std::string& name, auto&& change) {
    ScoreArgs args = good;
    change(args);
    EXPECT_EQ(refusal(args).find(name), 0U) << name << ": " << refusal(args);
  };
  expect("head_dim", [](ScoreArgs& args) { args.geometry.head_dim = 100; });
  expect("query_heads", [](ScoreArgs& args) { args.geometry.query_heads = 3; });
  expect("softmax_scale", [](ScoreArgs& args) { args.geometry.softmax_scale = 0.0F; });
  expect("queries", [](ScoreArgs& args) { args.queries.data = nullptr; });
  expect("queries", [](ScoreArgs& args) { args.queries.stride[2] = 2; });
  expect("queries", [](ScoreArgs& args) { args.queries.shape[0] = 0; });
  expect("summaries.format", [](ScoreArgs& args) { args.summaries.format = nullptr; });
  expect("summaries.head_dim", [](ScoreArgs& args) { args.summaries.head_dim = 128; });
  expect("summaries.data", [](ScoreArgs& args) { args.summaries.data = nullptr; });
  expect("summaries", [](ScoreArgs& args) { args.summaries.data += 8; });
  expect("summaries.page_stride", [](ScoreArgs& args) { args.summaries.page_stride += 8; });
  expect("summaries.page_stride", [](ScoreArgs& args) { args.summaries.page_stride = std::int64_t{1} << 31; });
  expect("summaries.head_stride", [](ScoreArgs& args) { args.summaries.head_stride += 8; });
  expect("summaries.head_stride", [](ScoreArgs& args) { args.summaries.head_stride = 16; });
  expect("table.block_tokens", [](ScoreArgs& args) { args.table.block_tokens = 24; });
  expect("table.blocks", [](ScoreArgs& args) { args.table.blocks.data = nullptr; });
  expect("table.blocks", [](ScoreArgs& args) { args.table.blocks.shape[0] = 0; });
  expect("log_mass", [](ScoreArgs& args) { args.log_mass.data = nullptr; });
  expect("log_mass", [](ScoreArgs& args) { args.log_mass.stride[2] = 2; });
  expect("log_mass.shape[1]", [](ScoreArgs& args) { args.log_mass.shape[1] = 1; });
}

}  // namespace
}  // namespace locks
