// Quest's bounds and scores and the oracle's masses on the GPU, against their formulas in double precision.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpu/element.h"
#include "device_bounds.h"
#include "device_summaries.h"
#include "records.h"

namespace locks {
namespace {

using test::DeviceArray;
using test::DeviceBounds;
using test::DeviceCache;
using test::Layout;
using test::StepData;
using test::StepSpec;

constexpr float kUntouchedScore = -12345.0F;
constexpr double kEps = 0x1p-24;

// ---- bounds

struct Shape {
  DType dtype;
  Layout layout;
  int head_dim;
  int block_tokens;
};
constexpr Shape kShapes[] = {
    {DType::kBF16, Layout::kTokenMajor, 128, 16}, {DType::kF16, Layout::kHeadMajor, 64, 64},
    {DType::kF32, Layout::kScattered, 80, 16},    {DType::kE4M3, Layout::kTokenMajor, 96, 32},
    {DType::kBF16, Layout::kHeadMajor, 256, 32},  {DType::kE4M3, Layout::kHeadMajor, 192, 16},
    {DType::kF32, Layout::kTokenMajor, 192, 16},  {DType::kF16, Layout::kScattered, 256, 16},
};

class CudaBounds : public test::CudaTest {
 protected:
  static constexpr int kPages = 12;
  static constexpr int kHeads = 3;
};

void expect_bounds(const DeviceBounds& bounds, const test::CacheData& keys, std::int64_t page, int kv_head, int head_dim) {
  const double scale = keys.scale().empty() ? 1.0 : static_cast<double>(keys.scale()[0]);
  for (int dim = 0; dim < head_dim; ++dim) {
    float most = keys.value(page, 0, kv_head, dim);
    float least = most;
    for (int token = 1; token < kPageTokens; ++token) {
      most = std::max(most, keys.value(page, token, kv_head, dim));
      least = std::min(least, keys.value(page, token, kv_head, dim));
    }
    const DType dtype = bounds.view().dtype;
    ASSERT_EQ(static_cast<float>(row_element(dtype, bounds.row(page, kv_head, 0), dim) * scale), most) << dim;
    ASSERT_EQ(static_cast<float>(row_element(dtype, bounds.row(page, kv_head, 1), dim) * scale), least) << dim;
  }
}

TEST_F(CudaBounds, AreTheLargestAndSmallestKeysOfEachDimension) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(dtype_name(shape.dtype));
    const test::CacheData keys(shape.dtype, shape.layout, kPages, kHeads, shape.head_dim, shape.block_tokens,
                               test::Content::kNormal, 4);
    const DeviceCache cache(keys.view(), kHeads, shape.head_dim);
    DeviceBounds bounds(shape.dtype, shape.head_dim, kHeads, kPages);
    const std::vector<std::int32_t> listed{7, 0, 11, 3};
    const DeviceArray<std::int32_t> pages(listed);
    cuda::bound_pages({shape.head_dim, kHeads, cache.view(), pages.span(), bounds.view()}, nullptr);
    bounds.read();
    for (int page = 0; page < kPages; ++page) {
      for (int head = 0; head < kHeads; ++head) {
        if (std::find(listed.begin(), listed.end(), page) == listed.end()) {
          ASSERT_TRUE(bounds.is_untouched(page, head)) << page;
        } else {
          expect_bounds(bounds, keys, page, head, shape.head_dim);
        }
      }
    }
  }
}

TEST_F(CudaBounds, AStepWritesThoseOfThePagesThatItFills) {
  const test::CacheData keys(DType::kBF16, Layout::kTokenMajor, kPages, kHeads, 128, 16, test::Content::kNormal, 5);
  const DeviceCache cache(keys.view(), kHeads, 128);
  DeviceBounds bounds(DType::kBF16, 128, kHeads, kPages);
  // A page that fills, one that does not, nothing, the last page, and one that is not there.
  const DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{5 * 16 + 15, 6 * 16 + 14, -1, 11 * 16 + 15, 12 * 16 + 15});
  cuda::bound_filled({128, kHeads, cache.view(), {}, bounds.view()}, slots.span(), nullptr);
  bounds.read();
  for (int page = 0; page < kPages; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      if (page == 5 || page == 11) {
        expect_bounds(bounds, keys, page, head, 128);
      } else {
        ASSERT_TRUE(bounds.is_untouched(page, head)) << page;
      }
    }
  }
}

// ---- scores and masses

struct Number {
  double value = 0.0;
  double size = 0.0;  // of what was added up
};

float query_of(const StepData& data, int request, int head, int dim) {
  return data.queries[static_cast<std::size_t>((request * data.geometry.query_heads + head) * data.geometry.head_dim + dim)];
}

Number quest_bound(const StepData& data, int request, int head, int index) {
  const std::int64_t page = data.table.table.page(request, index);
  Number out;
  for (int dim = 0; dim < data.geometry.head_dim; ++dim) {
    double most = -INFINITY;
    for (int token = 0; token < kPageTokens; ++token) {
      const double key = data.keys.value(page, token, head / data.geometry.group_size(), dim);
      most = std::max(most, key * query_of(data, request, head, dim));
    }
    out.value += most;
    out.size += std::abs(most);
  }
  return out;
}

Number logit_of(const StepData& data, int request, int head, int token) {
  const std::int64_t page = data.table.table.page(request, token / kPageTokens);
  Number out;
  for (int dim = 0; dim < data.geometry.head_dim; ++dim) {
    const double key = data.keys.value(page, token % kPageTokens, head / data.geometry.group_size(), dim);
    const double product = key * query_of(data, request, head, dim) * static_cast<double>(data.geometry.softmax_scale);
    out.value += product;
    out.size += std::abs(product);
  }
  return out;
}

std::vector<StepSpec> step_specs() {
  std::vector<StepSpec> specs;
  int at = 0;
  for (const Shape& shape : kShapes) {
    constexpr int kGroups[] = {1, 3, 8, 19};
    specs.push_back({.head_dim = shape.head_dim,
                     .kv_heads = 2,
                     .group = kGroups[at++ / 2],
                     .dtype = shape.dtype,
                     .layout = shape.layout,
                     .block_tokens = shape.block_tokens,
                     .lengths = {333, 15, 0, 640, 17}});
  }
  return specs;
}

std::string spec_name(const testing::TestParamInfo<StepSpec>& info) {
  return std::string(dtype_name(info.param.dtype)) + "_" + std::to_string(info.param.head_dim) + "_group" +
         std::to_string(info.param.group);
}

class CudaSelectorScores : public test::CudaTest, public testing::WithParamInterface<StepSpec> {};
INSTANTIATE_TEST_SUITE_P(All, CudaSelectorScores, testing::ValuesIn(step_specs()), spec_name);

// A lane adds 16 products, and at most 32 lanes meet in five additions; then heads are added, and a scale may round once.
TEST_P(CudaSelectorScores, QuestsBoundsAreThoseOfTheFormula) {
  const StepData data(GetParam());
  const test::DeviceStep step(data);
  const DeviceBounds bounds = test::bounds_of(data, step.inputs);
  const Geometry& geometry = data.geometry;
  const int requests = data.table.table.num_requests();
  const int pages = 640 / kPageTokens;
  for (const GroupCombine combine : {GroupCombine::kPerQueryHead, GroupCombine::kSum, GroupCombine::kMax}) {
    const int lists = combine == GroupCombine::kPerQueryHead ? geometry.query_heads : geometry.kv_heads;
    const DeviceArray<float> out(std::vector<float>(static_cast<std::size_t>(requests * lists * pages), kUntouchedScore));
    cuda::score_bounds({geometry, step.inputs.queries, bounds.view(), step.inputs.keys.scale, step.inputs.table, combine,
                        contiguous(out.data(), requests, lists, pages)},
                       nullptr);
    const std::vector<float> got = out.read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const int request = static_cast<int>(i) / (lists * pages);
      const int list = static_cast<int>(i) / pages % lists;
      const int page = static_cast<int>(i) % pages;
      if (page >= data.table.table.filled_pages(request)) {
        ASSERT_EQ(got[i], kUntouchedScore) << "request " << request << ", page " << page;
        continue;
      }
      const int heads = geometry.query_heads / lists;
      Number want = quest_bound(data, request, list * heads, page);
      for (int head = 1; head < heads; ++head) {
        const Number own = quest_bound(data, request, list * heads + head, page);
        want.value = combine == GroupCombine::kMax ? std::max(want.value, own.value) : want.value + own.value;
        want.size += own.size;
      }
      ASSERT_NEAR(got[i], want.value, (23 + heads) * kEps * want.size) << "request " << request << ", list " << list;
    }
  }
}

// A logit: 8 products a lane, five additions, the scale. Its mass: that, the exponentials' 2^-22 + 2^-23 a unit, a
// logarithm.
TEST_P(CudaSelectorScores, TheOraclesMassesAndLogitsAreThoseOfTheKeys) {
  const StepData data(GetParam());
  const test::DeviceStep step(data);
  const Geometry& geometry = data.geometry;
  const int requests = data.table.table.num_requests();
  const int pages = 640 / kPageTokens;
  constexpr int kFirst = 2;
  for (const int lists : {geometry.kv_heads, geometry.query_heads}) {
    const int heads = geometry.query_heads / lists;
    const DeviceArray<float> out(
        std::vector<float>(static_cast<std::size_t>(requests * geometry.query_heads * pages), kUntouchedScore));
    const auto capacity = pages - kFirst - 1;
    const DeviceArray<float> logits(std::vector<float>(
        static_cast<std::size_t>(requests * geometry.query_heads * capacity * kPageTokens), kUntouchedScore));
    cuda::KeyMassArgs args{geometry, step.inputs.queries, step.inputs.keys, step.inputs.table, {}, {}, kFirst};
    args.log_mass = contiguous(out.data(), requests, geometry.query_heads, pages);
    args.logits = contiguous(logits.data(), requests, lists, capacity, heads, kPageTokens);
    cuda::key_masses(args, nullptr);
    const std::vector<float> got = out.read();
    const std::vector<float> logit_memory = logits.read();
    const auto got_logits = contiguous<const float>(logit_memory.data(), requests, lists, capacity, heads, kPageTokens);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const int request = static_cast<int>(i) / (geometry.query_heads * pages);
      const int head = static_cast<int>(i) / pages % geometry.query_heads;
      const int page = static_cast<int>(i) % pages;
      const float* const own = page >= kFirst && page - kFirst < capacity
                                   ? got_logits.at(request, head / heads, page - kFirst, head % heads)
                                   : nullptr;
      if (page >= data.table.table.filled_pages(request)) {
        ASSERT_EQ(got[i], kUntouchedScore) << "request " << request << ", page " << page;
        if (own != nullptr) {
          ASSERT_EQ(*own, kUntouchedScore);
        }
        continue;
      }
      double most = -INFINITY;
      double bound = 0.0;
      std::vector<double> all;
      for (int token = 0; token < kPageTokens; ++token) {
        const Number logit = logit_of(data, request, head, page * kPageTokens + token);
        if (own != nullptr) {
          ASSERT_NEAR(own[token], logit.value, 16 * kEps * logit.size) << token;
        }
        all.push_back(logit.value);
        most = std::max(most, logit.value);
        bound = std::max(bound, 16 * kEps * logit.size);
      }
      double sum = 0.0;
      double spread = 0.0;
      for (const double logit : all) {
        sum += std::exp(logit - most);
        spread += std::exp(logit - most) * (most - logit);
      }
      const double want = most + std::log(sum);
      ASSERT_NEAR(got[i], want, bound + 4 * kEps * (8 + spread / sum + std::abs(want))) << "request " << request;
    }
  }
}

// ---- the doors, which do not look where pointers lead

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

struct Arguments {
  const test::TableData table{{64}, 4, 16, 5};
  std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const Geometry geometry{64, 2, 4, 0.125F};
  PagedCache keys{.data = memory, .num_pages = 4, .block_stride = 4096, .token_stride = 256, .head_stride = 128};
  cuda::PageBounds bounds = cuda::make_bounds(DType::kF16, 64, 2, 4, memory);
  const View<const float, 3> queries = contiguous<const float>(reinterpret_cast<float*>(memory), 1, 4, 64);
  const View<float, 3> scores = contiguous(reinterpret_cast<float*>(memory), 1, 4, 4);
  const std::vector<std::int32_t> pages{0};
};

TEST(CudaSelectorDoors, BoundsNameTheArgument) {
  const Arguments good;
  const auto expect = [&](const std::string& name, auto&& change) {
    cuda::BoundArgs args{64, 2, good.keys, good.pages, good.bounds};
    change(args);
    const std::string pages = refusal([&] { cuda::bound_pages(args, nullptr); });
    EXPECT_EQ(pages.find(name), 0U) << name << ": " << pages;
    const std::string slots = refusal([&] { cuda::bound_filled(args, {}, nullptr); });
    EXPECT_EQ(slots.find(name), 0U) << name << ": " << slots;
  };
  expect("head_dim", [](auto& args) { args.head_dim = 100; });
  expect("kv_heads", [](auto& args) { args.kv_heads = 0; });
  expect("keys", [](auto& args) { args.keys.data = nullptr; });
  expect("keys", [](auto& args) { args.keys.data += 8; });
  expect("keys.dtype", [](auto& args) { args.keys.dtype = DType::kQ8_0; });
  expect("keys.token_stride", [](auto& args) { args.keys.token_stride += 8; });
  expect("keys.block_stride", [](auto& args) { args.keys.block_stride += 8; });
  expect("out", [](auto& args) { args.out.data = nullptr; });
  expect("out.dtype", [](auto& args) { args.out.dtype = DType::kBF16; });
  expect("out.dtype", [](auto& args) { args.out.dtype = DType::kQ8_0; });
  expect("out.head_dim", [](auto& args) { args.out.head_dim = 128; });
  expect("out.head_stride", [](auto& args) { args.out.head_stride = 128; });
  expect("out.page_stride", [](auto& args) { args.out.page_stride = 128; });
}

TEST(CudaSelectorDoors, ScoresNameTheArgument) {
  const Arguments good;
  const auto expect = [&](const std::string& name, auto&& change) {
    cuda::BoundScoreArgs args{
        good.geometry, good.queries, good.bounds, nullptr, good.table.table, GroupCombine::kPerQueryHead, good.scores};
    change(args);
    const std::string got = refusal([&] { cuda::score_bounds(args, nullptr); });
    EXPECT_EQ(got.find(name), 0U) << name << ": " << got;
  };
  const float scale = 1.0F;
  expect("softmax_scale", [](auto& args) { args.geometry.softmax_scale = 0.0F; });
  expect("queries", [](auto& args) { args.queries.stride[2] = 2; });
  expect("bounds", [](auto& args) { args.bounds.data += 8; });
  expect("bounds.head_dim", [](auto& args) { args.bounds.head_dim = 128; });
  expect("key_scale", [&](auto& args) { args.key_scale = &scale; });
  expect("table.block_tokens", [](auto& args) { args.table.block_tokens = 24; });
  expect("combine", [](auto& args) { args.combine = static_cast<GroupCombine>(3); });
  expect("scores", [](auto& args) { args.scores.data = nullptr; });
  expect("scores.shape[1]", [](auto& args) { args.scores.shape[1] = 2; });
}

TEST(CudaSelectorDoors, MassesNameTheArgument) {
  const Arguments good;
  const auto expect = [&](const std::string& name, auto&& change) {
    cuda::KeyMassArgs args{good.geometry, good.queries, good.keys, good.table.table, good.scores, {}, 0};
    args.logits = contiguous(reinterpret_cast<float*>(good.memory), 1, 2, 4, 2, kPageTokens);
    change(args);
    const std::string got = refusal([&] { cuda::key_masses(args, nullptr); });
    EXPECT_EQ(got.find(name), 0U) << name << ": " << got;
  };
  expect("query_heads", [](auto& args) { args.geometry.query_heads = 3; });
  expect("keys.dtype", [](auto& args) { args.keys.dtype = DType::kQ8_0; });
  expect("keys.block_tokens", [](auto& args) { args.keys.block_tokens = 32; });
  expect("table.blocks", [](auto& args) { args.table.blocks.data = nullptr; });
  expect("log_mass.shape[1]", [](auto& args) { args.log_mass.shape[1] = 2; });
  expect("num_lists", [](auto& args) { args.logits.shape[1] = 3; });
  expect("logits", [](auto& args) { args.logits.stride[3] = 32; });
  expect("first_page", [](auto& args) { args.first_page = -1; });
}

}  // namespace
}  // namespace locks
