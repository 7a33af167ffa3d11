// Exact attention on the GPU against the definition on the CPU.
#include "attend_case.h"
#include "cuda/step.h"

namespace locks {
namespace {

using test::AttendCase;
using test::AttendShape;
using test::Content;
using test::DeviceCase;
using test::expect_close;
using test::Layout;
using test::Lists;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3};

class CudaAttend : public test::CudaTest {};
class CudaAttendRows : public test::CudaTest, public testing::WithParamInterface<std::tuple<DType, int>> {};

TEST_P(CudaAttendRows, MatchTheDefinition) {
  const auto [dtype, head_dim] = GetParam();
  int variant = head_dim / 16;
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead, Lists::kPerQueryHead}) {
    for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor, Layout::kScattered}) {
      ++variant;
      AttendShape shape;
      shape.dtype = dtype;
      shape.head_dim = head_dim;
      shape.group = 1 + variant % 10;
      shape.block_tokens = layout == Layout::kScattered ? 16 : 16 << variant % 3;
      shape.layout = layout;
      if (lists == Lists::kPerKvHead && layout == Layout::kTokenMajor) shape.lengths = {17, 0, 1000, 1, 0};
      if (lists == Lists::kDense && layout == Layout::kTokenMajor) shape.lengths = {257, 0, 1200, 64};
      shape.seed = static_cast<std::uint64_t>(variant);
      const AttendCase c(shape, lists);
      DeviceCase device(c, layout == Layout::kTokenMajor ? variant % 3 : 0);
      expect_close(device.run(), c,
                   "lists " + std::to_string(static_cast<int>(lists)) + ", layout " +
                       std::to_string(static_cast<int>(layout)) + ", group " + std::to_string(shape.group));
    }
  }
}

std::string row_name(const testing::TestParamInfo<std::tuple<DType, int>>& info) {
  return std::string(dtype_name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Rows, CudaAttendRows,
                         testing::Combine(testing::ValuesIn(kTypes), testing::Values(64, 80, 96, 128, 192, 256)), row_name);

TEST_F(CudaAttend, TakesAnyGroupSize) {
  for (const DType dtype : kTypes) {
    for (int group = 1; group <= 20; ++group) {
      AttendShape shape;
      shape.dtype = dtype;
      shape.head_dim = group % 4 == 0 ? 128 : group % 4 == 1 ? 80 : 64;
      shape.group = group;
      shape.lengths = {37, 130};
      const AttendCase c(shape, group % 2 == 0 ? Lists::kDense : Lists::kPerKvHead);
      DeviceCase device(c);
      expect_close(device.run(), c, std::string(dtype_name(dtype)) + ", group " + std::to_string(group));
    }
  }
}

TEST_F(CudaAttend, MatchesTheDefinitionOnOddContents) {
  for (const Content content :
       {Content::kLowRank, Content::kConstant, Content::kZero, Content::kDenormal, Content::kOneOutlier, Content::kHuge}) {
    for (const DType dtype : kTypes) {
      if (dtype != DType::kF16 && content == Content::kHuge) continue;  // logits of 1e19 have no digits left
      AttendShape shape;
      shape.dtype = dtype;
      shape.content = content;
      const AttendCase c(shape);
      DeviceCase device(c);
      expect_close(device.run(), c,
                   "content " + std::to_string(static_cast<int>(content)) + ", " + std::string(dtype_name(dtype)));
    }
  }
}

TEST_F(CudaAttend, HugeKeysStayFinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttendShape shape;
    shape.dtype = dtype;
    shape.content = Content::kHuge;
    const AttendCase c(shape);
    DeviceCase device(c);
    for (const float value : device.run()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_F(CudaAttend, TakesLongContexts) {
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
    AttendShape shape;
    shape.dtype = DType::kBF16;
    shape.kv_heads = 1;
    shape.group = 2;
    shape.lengths = {40'000, 3, 8'193};
    const AttendCase c(shape, lists);
    DeviceCase device(c);
    expect_close(device.run(), c, "lists " + std::to_string(static_cast<int>(lists)));
  }
}

/// One element of a query meets one element of each key: the logits show how many digits of either survive.
TEST_F(CudaAttend, LogitsHaveTheDigitsOfFp32) {
  for (const DType dtype : kTypes) {
    for (const float size : {1e-6F, 1.0F, 3e4F}) {
      AttendShape shape;
      shape.dtype = dtype;
      shape.lengths = {16};
      shape.kv_heads = shape.group = 1;
      AttendCase c(shape);
      c.args.geometry.softmax_scale = 30.0F / size;
      for (float& value : c.queries) value = 0.0F;
      c.queries[3] = size * 1.2345678F;
      for (int token = 0; token < kPageTokens; ++token) {
        const std::int64_t page = c.table.table.page(0, 0);
        for (int dim = 0; dim < shape.head_dim; ++dim) {
          c.keys.set_value(page, token, 0, dim, dim == 3 ? 1.0F - static_cast<float>(token) / 16 : 0.0F);
        }
      }
      DeviceCase device(c);
      expect_close(device.run(), c, std::string(dtype_name(dtype)) + ", " + std::to_string(size));
    }
  }
}

/// One KV head, one query e_0 and softmax scale 1: logits are what the test wants them to be; values are unit vectors.
struct LogitCase : AttendCase {
  LogitCase(DType dtype, const std::vector<float>& logits) : AttendCase(shape_for(dtype, logits.size())) {
    args.geometry.softmax_scale = geometry.softmax_scale = 1.0F;
    std::fill(queries.begin(), queries.end(), 0.0F);
    queries[0] = 1.0F;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const std::int64_t page = table.table.page(0, static_cast<int>(i) / kPageTokens);
      const int token = static_cast<int>(i) % kPageTokens;
      for (int dim = 0; dim < 64; ++dim) {
        keys.set_value(page, token, 0, dim, dim == 0 ? logits[i] : 0.0F);
        values.set_value(page, token, 0, dim, dim == static_cast<int>(i) ? 1.0F : 0.0F);
      }
    }
  }
  static AttendShape shape_for(DType dtype, std::size_t tokens) {
    AttendShape shape;
    shape.dtype = dtype;
    shape.kv_heads = shape.group = 1;
    shape.lengths = {static_cast<std::int32_t>(tokens)};
    return shape;
  }
};

/// e4m3 has no infinity.
TEST_F(CudaAttend, E4m3ThatIsNoNumber) {
  for (const std::size_t at : {0U, 3U, 19U}) {
    std::vector<float> logits(20, 0.5F);
    logits[at] = std::numeric_limits<float>::quiet_NaN();
    const LogitCase c(DType::kE4M3, logits);
    DeviceCase device(c);
    for (const float value : device.run()) EXPECT_TRUE(std::isnan(value)) << at;
  }
}

/// As a key and as a value, in every place of what the kernel takes together.
TEST_F(CudaAttend, EveryNumberOfE4m3) {
  for (const int head_dim : {64, 80}) {
    AttendShape shape;
    shape.dtype = DType::kE4M3;
    shape.head_dim = head_dim;
    shape.lengths = {256};
    shape.kv_heads = shape.group = 1;
    AttendCase c(shape);
    c.args.geometry.softmax_scale = c.geometry.softmax_scale = 0.001F;
    for (int token = 0; token < 256; ++token) {
      const std::int64_t page = c.table.table.page(0, token / kPageTokens);
      for (int dim = 0; dim < head_dim; ++dim) {
        const int code = (token + 37 * dim) % 256;
        const auto number = static_cast<std::byte>((code & 0x7F) == 0x7F ? 0 : code);
        for (const PagedCache& cache : {c.args.keys, c.args.values}) {
          const_cast<std::byte*>(cache.token(page, token % kPageTokens, 0))[dim] = number;
        }
      }
    }
    DeviceCase device(c);
    expect_close(device.run(), c, std::to_string(head_dim));
    const test::DeviceArray<float> one(std::vector<float>{1.0F});
    device.args.keys.scale = device.args.values.scale = one.data();
    const std::vector<float> scaled = device.run();
    device.args.keys.scale = device.args.values.scale = nullptr;
    EXPECT_EQ(device.run(), scaled);
  }
}

TEST_F(CudaAttend, LogitsThatAreNotFinite) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> logits(20, 0.5F);
    for (const std::size_t at : {0U, 3U, 19U}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        auto with_bad = logits;
        with_bad[at] = bad;
        const LogitCase c(dtype, with_bad);
        DeviceCase device(c);
        for (const float value : device.run()) EXPECT_TRUE(std::isnan(value)) << bad << " at " << at;
      }
      auto masked = logits;
      masked[at] = -kInfinity;  // weighs nothing
      const LogitCase c(dtype, masked);
      DeviceCase device(c);
      const std::vector<float> out = device.run();
      for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(out[i], i == at ? 0.0F : 1.0F / 19.0F, 1e-7F);
    }
    const LogitCase nothing(dtype, std::vector<float>(20, -kInfinity));
    DeviceCase empty(nothing);
    const std::vector<float> states = empty.run_states();
    EXPECT_EQ(states[0], -kInfinity);
    for (std::size_t i = 1; i < states.size(); ++i) EXPECT_EQ(states[i], 0.0F);
    auto late = std::vector<float>(20, -kInfinity);
    late[18] = 3.0F;
    const LogitCase one(dtype, late);
    DeviceCase device(one);
    EXPECT_EQ(device.run()[18], 1.0F);
  }
}

TEST_F(CudaAttend, LogitsOfTenThousandAreFine) {
  const LogitCase c(DType::kF32, {1e4F, -1e4F, 1e4F, 9999.0F});
  DeviceCase device(c);
  const std::vector<float> out = device.run();
  const double sum = 2.0 + std::exp(-1.0);
  EXPECT_NEAR(out[0], 1.0 / sum, 3e-7);
  EXPECT_EQ(out[1], 0.0F);
  EXPECT_NEAR(out[3], std::exp(-1.0) / sum, 3e-7);
}

TEST_F(CudaAttend, NeverUsesATokenOutsideTheMask) {
  for (const DType dtype : kTypes) {
    for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
      AttendShape shape;
      shape.dtype = dtype;
      AttendCase c(shape, lists);
      std::vector<float> before;
      {
        DeviceCase device(c);
        before = device.run();
      }
      std::vector<bool> listed(static_cast<std::size_t>(c.args.keys.num_pages * kPageTokens * shape.kv_heads));
      const auto index = [&](std::int64_t page, int token, int head) {
        return static_cast<std::size_t>((page * kPageTokens + token) * shape.kv_heads + head);
      };
      for (int request = 0; request < c.args.table.num_requests(); ++request) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          c.for_each_token(request, head * shape.group,
                           [&](std::int64_t page, int token) { listed[index(page, token, head)] = true; });
        }
      }
      for (std::int64_t page = 0; page < c.args.keys.num_pages; ++page) {
        for (int token = 0; token < kPageTokens; ++token) {
          for (int head = 0; head < shape.kv_heads; ++head) {
            if (listed[index(page, token, head)]) continue;
            c.keys.set_value(page, token, head, 1, NAN);
            c.values.set_value(page, token, head, 1, NAN);
          }
        }
      }
      DeviceCase device(c);
      EXPECT_EQ(device.run(), before);
    }
  }
}

/// A type that has no kernel for few rows takes the other one, whose blocks have more leaves than one.
TEST_F(CudaAttend, TakesFewLongRowsOfEveryType) {
  for (const DType dtype : kTypes) {
    for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
      for (const std::vector<std::int32_t>& lengths :
           {std::vector<std::int32_t>{8192}, std::vector<std::int32_t>{3000, 3100}}) {
        AttendShape shape;
        shape.dtype = dtype;
        shape.kv_heads = 8;
        shape.group = 1;
        shape.lengths = lengths;
        const AttendCase c(shape, lists);
        DeviceCase device(c);
        expect_close(device.run(), c, std::string(dtype_name(dtype)) + " of " + std::to_string(lengths[0]) + " tokens");
      }
    }
  }
}

/// Rows of one request, alone and among others: the same bits, whether a block takes a leaf, some, or a group.
TEST_F(CudaAttend, ARequestHasTheSameBitsInEveryBatch) {
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
    for (const std::int32_t tokens : {1, 64, 500, 1000, 3000, 9000}) {
      AttendShape shape;
      shape.dtype = tokens == 3000 ? DType::kF32 : tokens % 3 == 1 ? DType::kBF16 : DType::kE4M3;
      shape.lengths = {tokens};
      const AttendCase alone(shape, lists);
      DeviceCase device(alone);
      const std::vector<float> want = device.run_states();
      for (const std::size_t others : {3U, 15U, 40U}) {
        // The same cache, table and lists for a request in the middle of `others` copies of different lengths.
        std::vector<std::int32_t> lengths(others + 1);
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          lengths[i] = i == 2 ? tokens : static_cast<std::int32_t>(i * 97 % static_cast<std::size_t>(tokens + 1));
        }
        const auto copies = lengths.size();
        const test::DeviceArray<std::int32_t> context(lengths);
        std::vector<float> queries;
        std::vector<SelectedPage> selected;
        std::vector<std::int32_t> counts;
        for (std::size_t i = 0; i < copies; ++i) {
          queries.insert(queries.end(), alone.queries.begin(), alone.queries.end());
          selected.insert(selected.end(), alone.selected.begin(), alone.selected.end());
          for (const std::int32_t count : alone.num_selected) {
            counts.push_back(i == 2 ? count : count * static_cast<std::int32_t>(i) / static_cast<std::int32_t>(copies));
          }
        }
        const test::DeviceArray<float> device_queries(queries);
        const test::DeviceArray<SelectedPage> device_selected(selected);
        const test::DeviceArray<std::int32_t> device_counts(counts);
        AttendArgs args = device.args;
        args.table.context_tokens = context.span();
        args.table.blocks.shape[0] = static_cast<std::int64_t>(copies);
        args.table.blocks.stride[0] = 0;
        args.queries.data = device_queries.data();
        args.queries.shape[0] = static_cast<std::int64_t>(copies);
        if (lists != Lists::kDense) {
          args.selected.data = device_selected.data();
          args.selected.shape[0] = static_cast<std::int64_t>(copies);
          args.num_selected.data = device_counts.data();
          args.num_selected.shape[0] = static_cast<std::int64_t>(copies);
        }
        const test::DeviceArray<std::byte> workspace(
            cuda::attend_workspace_bytes(args.geometry, static_cast<int>(copies), args.num_lists));
        args.workspace = workspace.span();
        const test::DeviceArray<float> states(copies * want.size());
        cuda::attend(args, contiguous(states.data(), copies, alone.geometry.query_heads, 66), false, nullptr);
        const std::vector<float> all = states.read();
        const std::vector<float> got(all.begin() + static_cast<std::ptrdiff_t>(2 * want.size()),
                                     all.begin() + static_cast<std::ptrdiff_t>(3 * want.size()));
        EXPECT_EQ(got, want) << tokens << " tokens among " << others << ", lists " << static_cast<int>(lists);
      }
    }
  }
}

/// In a step short contexts are attended whole, with the bits of a list of all pages, whatever their lists say.
class CudaAttendWhole : public test::CudaTest, public testing::WithParamInterface<std::tuple<DType, Layout, int, int>> {};

TEST_P(CudaAttendWhole, HasTheBitsOfAllPagesListed) {
  const auto [dtype, layout, requests, whole] = GetParam();
  constexpr int kListed = 500;  // more than contexts that are attended whole have, or fewer
  AttendShape shape;
  shape.dtype = dtype;
  shape.layout = layout;
  shape.block_tokens = layout == Layout::kScattered ? 16 : 32;
  shape.lengths = {1700, whole};
  for (int i = 2; i < requests; ++i) shape.lengths.push_back(i * 137 % 1700);
  AttendCase c(shape, Lists::kPerKvHead);
  std::vector<std::int32_t> counts;
  std::vector<SelectedPage> lists;
  const auto capacity = static_cast<std::size_t>(c.args.selected.shape[2]);
  for (std::size_t row = 0; row < c.num_selected.size(); ++row) {
    const int tokens = shape.lengths[row / static_cast<std::size_t>(c.args.num_lists)];
    SelectedPage* const entries = &c.selected[row * capacity];
    if (tokens > whole) {
      int left = kListed;
      int count = 0;
      while (count < c.num_selected[row] && left >= std::popcount(entries[count].mask)) {
        left -= std::popcount(entries[count++].mask);
      }
      c.num_selected[row] = count;
      counts.push_back(count);
      lists.insert(lists.end(), entries, entries + capacity);
      continue;
    }
    counts.push_back(row % 2 == 0 ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int32_t>::min());
    lists.insert(lists.end(), capacity, {std::numeric_limits<std::int32_t>::max(), kWholePage});
    c.num_selected[row] = (tokens + kPageTokens - 1) / kPageTokens;
    for (int page = 0; page < c.num_selected[row]; ++page) {
      const int left = std::min(tokens - page * kPageTokens, kPageTokens);
      entries[page] = {page, static_cast<std::uint16_t>((1U << left) - 1U)};
    }
  }
  DeviceCase device(c);
  cuda::attend(device.args, device.state_view, false, device.out_view, nullptr);
  const std::vector<float> want = device.out.read();
  expect_close(want, c, "lists of all pages");
  device.num_selected.write(counts);
  device.selected.write(lists);
  device.out.write(std::vector<float>(want.size(), -1.0F));
  device.args.most_row_tokens = kListed;
  cuda::attend_in_step(device.args, whole, nullptr, device.state_view, device.out_view, nullptr);
  EXPECT_EQ(device.out.read(), want);
}
INSTANTIATE_TEST_SUITE_P(All, CudaAttendWhole,
                         testing::Combine(testing::Values(DType::kBF16, DType::kE4M3, DType::kF32),
                                          testing::Values(Layout::kTokenMajor, Layout::kScattered),
                                          testing::Values(2, 12, 40),  // leaves of eight warps, some leaves, and groups
                                          testing::Values(200, 1000)));

/// Tokens attended in two calls, the second joining the first, are tokens attended in one.
TEST_F(CudaAttend, JoinsWhatTheStatesHold) {
  AttendShape shape;
  shape.lengths = {0, 5, 300, 2000};
  AttendCase c(shape, Lists::kPerKvHead);
  DeviceCase whole(c);
  const std::vector<float> want = whole.run();
  expect_close(want, c, "whole");
  const std::vector<SelectedPage> all = c.selected;
  for (SelectedPage& entry : c.selected) entry.mask &= 0x33F0;
  DeviceCase first(c);
  cuda::attend(first.args, first.state_view, false, nullptr);
  std::vector<SelectedPage> rest = all;
  for (SelectedPage& entry : rest) entry.mask &= static_cast<std::uint16_t>(~0x33F0);
  first.selected.write(rest);
  cuda::attend(first.args, first.state_view, true, nullptr);
  cuda::finish(first.state_view, first.out_view, nullptr);
  c.selected = all;
  expect_close(first.out.read(), c, "in two calls");
}

/// attend() that writes the output is attend() and finish().
TEST_F(CudaAttend, FinishesWithTheSameBits) {
  for (const Lists lists : {Lists::kDense, Lists::kPerKvHead}) {
    for (const std::size_t requests : {3U, 40U}) {
      AttendShape shape;
      shape.head_dim = 80;
      shape.lengths.assign(requests, 300);
      shape.lengths[1] = 0;
      const AttendCase c(shape, lists);
      DeviceCase device(c);
      const std::vector<float> want = device.run();
      const std::vector<float> states = device.states.read();
      const test::DeviceArray<float> out(want.size());
      const View<float, 3> view = contiguous(out.data(), requests, c.geometry.query_heads, 80);
      cuda::attend(device.args, device.state_view, false, view, nullptr);
      EXPECT_EQ(out.read(), want);
      EXPECT_EQ(device.states.read(), states);  // not written
      cuda::attend(device.args, device.state_view, true, view, nullptr);
      const std::vector<float> twice = out.read();
      cuda::attend(device.args, device.state_view, true, nullptr);
      cuda::finish(device.state_view, view, nullptr);
      EXPECT_EQ(out.read(), twice);
    }
  }
}

TEST_F(CudaAttend, AGraphIsReplayedWithOtherLengthsAndLists) {
  for (const Lists lists : {Lists::kDense, Lists::kPerQueryHead}) {
    for (const int requests : {2, 40}) {
      AttendShape shape;
      shape.lengths.assign(static_cast<std::size_t>(requests), 500);
      shape.lengths[1] = 0;
      AttendCase c(shape, lists);
      DeviceCase device(c);
      cudaStream_t stream = nullptr;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      test::expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      test::expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      cuda::attend(device.args, device.state_view, false, stream);
      cuda::finish(device.state_view, device.out_view, stream);
      test::expect_cuda(cudaStreamEndCapture(stream, &graph));
      test::expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < c.table.context_tokens.size(); ++i) {
          c.table.context_tokens[i] = shape.lengths[i] * (3 - round) / 3;
        }
        c.args.table.context_tokens = c.table.context_tokens;
        if (lists != Lists::kDense) {
          for (std::size_t row = 0; row < c.num_selected.size(); ++row) {
            const std::int32_t tokens = c.table.context_tokens[row / static_cast<std::size_t>(c.args.num_lists)];
            c.num_selected[row] = std::min(c.num_selected[row], tokens / kPageTokens);
            SelectedPage* const entries = c.selected.data() + row * static_cast<std::size_t>(c.args.selected.shape[2]);
            for (int i = 0; i < c.num_selected[row]; ++i) {
              entries[i] = {i, static_cast<std::uint16_t>(0xFFFF >> (i + round) % 9)};
            }
          }
          device.selected.write(c.selected);
          device.num_selected.write(c.num_selected);
        }
        device.context_tokens.write(c.table.context_tokens);
        test::expect_cuda(cudaGraphLaunch(replay, stream));
        expect_close(device.out.read(), c, "round " + std::to_string(round));
      }
      test::expect_cuda(cudaGraphExecDestroy(replay));
      test::expect_cuda(cudaGraphDestroy(graph));
      test::expect_cuda(cudaStreamDestroy(stream));
    }
  }
}

TEST_F(CudaAttend, ManyRequestsAtOnce) {
  AttendShape shape;
  shape.dtype = DType::kBF16;
  shape.head_dim = 128;
  shape.lengths.resize(300);
  for (std::size_t i = 0; i < shape.lengths.size(); ++i) shape.lengths[i] = static_cast<std::int32_t>(i * 37 % 200);
  const AttendCase c(shape);
  DeviceCase device(c);
  expect_close(device.run(), c, "300 requests");
}

std::string message(const AttendArgs& args, SoftmaxStates states) {
  try {
    cuda::attend(args, states, false, nullptr);
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const cuda::CudaError&) {
    return "accepted";  // as far as a machine without a GPU can tell
  }
  return "accepted";
}

TEST(CudaAttendDoor, NamesTheArgument) {
  const AttendShape shape;
  AttendCase c(shape, Lists::kPerKvHead);  // host memory: nothing is launched
  test::Workspace workspace(cuda::attend_workspace_bytes(c.geometry, 6, 2));
  std::vector<float> memory(6 * 6 * 66);
  const SoftmaxStates states = contiguous(memory.data(), 6, 6, 66);
  c.args.workspace = workspace.span();
  const auto aligned = reinterpret_cast<const std::byte*>(workspace.span().data());
  c.args.keys.data = c.args.values.data = aligned;
  const auto with = [&](auto&& change) {
    AttendArgs args = c.args;
    change(args);
    return message(args, states);
  };
  EXPECT_EQ(with([](auto& a) { a.geometry.head_dim = 72; }), "head_dim: expected 64, 80, 96, 128, 192 or 256, got 72");
  EXPECT_EQ(with([](auto& a) { a.keys.data = nullptr; }), "keys: expected data, got a null pointer");
  EXPECT_EQ(with([](auto& a) { a.keys.data += 8; }), "keys: expected data aligned to 16 bytes, got an address that is not");
  EXPECT_EQ(with([](auto& a) { a.values.dtype = DType::kQ8_0; }),
            "values.dtype: expected f32, f16, bf16 or e4m3 on the GPU, got q8_0");
  EXPECT_EQ(with([&](auto& a) { a.values.scale = memory.data(); }),
            "values.scale: expected none, as only e4m3 has a scale, got one for f16");
  EXPECT_EQ(with([](auto& a) { a.values.dtype = DType::kBF16; }),
            "values.dtype: expected that of the keys (f16) on the GPU, got bf16");
  EXPECT_EQ(with([](auto& a) { a.keys.token_stride = 264; }), "keys.token_stride: expected a multiple of 16 bytes, got 264");
  EXPECT_EQ(with([](auto& a) { a.keys.num_pages = 1LL << 27; }),
            "keys.num_pages: expected fewer than 2^27 pages, got 134217728");
  EXPECT_EQ(with([](auto& a) { a.keys.block_tokens = 32; }), "keys.block_tokens: expected table.block_tokens (16), got 32");
  EXPECT_EQ(with([](auto& a) { a.num_lists = 3; }), "num_lists: expected kv_heads (2) or query_heads (6), got 3");
  EXPECT_EQ(with([](auto& a) { a.selected.data = nullptr, a.num_lists = 6; }),
            "num_lists: expected kv_heads (2) if nothing is listed, got 6");
  EXPECT_EQ(
      with([](auto& a) { a.selected.shape[1] = 1; }),
      "selected: expected [requests, lists, capacity] = [6, 2, any] with a contiguous last axis, got [6, 1, 11] with last "
      "stride 1");
  EXPECT_EQ(with([](auto& a) { a.num_selected.data = nullptr; }),
            "num_selected: expected [requests, lists] = [6, 2], got no data");
  EXPECT_EQ(with([](auto& a) { a.table.blocks.data = nullptr; }), "table.blocks: expected data, got a null pointer");
  EXPECT_EQ(
      with([](auto& a) { a.queries.stride[2] = 2; }),
      "queries: expected [requests, query_heads, head_dim] = [6, 6, 64] with a contiguous last axis, got [6, 6, 64] with "
      "last stride 2");
  EXPECT_EQ(
      with([](auto& a) { a.workspace = a.workspace.first(64); }),
      "workspace: expected at least " + std::to_string(cuda::attend_workspace_bytes(c.geometry, 6, 2)) + " bytes, got 64");
  EXPECT_EQ(
      message(c.args, contiguous(memory.data(), 6, 6, 65)),
      "states: expected [requests, query_heads, 2 + head_dim] = [6, 6, 66] with a contiguous last axis, got [6, 6, 65] "
      "with last stride 1");
}

}  // namespace
}  // namespace locks
