// Whole decode steps on the GPU against the CPU's. The stages have tests of their own; here it is what is between them.
#include <algorithm>
#include <cmath>

#include "device_step.h"

namespace locks {
namespace {

using test::DeviceArray;
using test::DeviceStep;
using test::StepData;
using test::StepSpec;

DecodePlan plan_of(const DecodeConfig& config, const StepData& data) {
  const auto& lengths = data.table.context_tokens;
  return {config,
          data.geometry,
          {static_cast<int>(lengths.size()), std::max(1, *std::max_element(lengths.begin(), lengths.end())), 1}};
}

struct Case {
  StepSpec spec;
  DecodeConfig config;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.spec.format->name << " d " << c.spec.head_dim << " group " << c.spec.group << " dtype "
       << dtype_name(c.spec.dtype) << " part " << c.config.select.part_tokens << " completion "
       << c.config.select.completion_fraction << " combine " << static_cast<int>(c.config.select.combine);
}

class CudaDecodeStep : public test::CudaTest {};
class CudaDecode : public test::CudaTest, public testing::WithParamInterface<Case> {};

// Scores differ by roundings, so where two parts are equal to the last digits the GPU may choose the other; what is not
// chosen is completed or small. All but such heads agree like exact attention does.
TEST_P(CudaDecode, AgreesWithTheCpu) {
  const StepData data(GetParam().spec);
  const DecodeConfig& config = GetParam().config;
  const test::StepResult want = test::run_step(config, data, Target::kReference, 1);
  DeviceStep step(data);
  step.queue(plan_of(config, data));
  const std::vector<double> all = test::errors(data, step.out(), want.out);
  const auto close = static_cast<double>(std::count_if(all.begin(), all.end(), [](double error) { return error < 2e-4; }));
  EXPECT_GE(close / static_cast<double>(all.size()), 0.9);
  EXPECT_LT(*std::max_element(all.begin(), all.end()), 0.05);

  const std::vector<DecodeReport> reports = step.reports();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(reports[i].context_tokens, want.reports[i].context_tokens);
    EXPECT_EQ(reports[i].dense, want.reports[i].dense);
    EXPECT_NEAR(reports[i].attended_tokens, want.reports[i].attended_tokens, 0.01);
    EXPECT_NEAR(reports[i].completed_pages, want.reports[i].completed_pages, 0.01);
    EXPECT_NEAR(reports[i].coverage, want.reports[i].coverage, 1e-3);
    EXPECT_EQ(reports[i].score_bytes, want.reports[i].score_bytes);
    EXPECT_EQ(reports[i].attend_bytes, want.reports[i].attend_bytes);
    EXPECT_EQ(reports[i].complete_bytes, want.reports[i].complete_bytes);
    EXPECT_EQ(reports[i].dense_bytes, want.reports[i].dense_bytes);
  }
}

TEST_P(CudaDecode, AReplayedGraphTakesOtherLengths) {
  const StepData data(GetParam().spec);
  const DecodePlan plan = plan_of(GetParam().config, data);
  DeviceStep step(data);
  step.queue(plan);  // loads the kernels
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  test::expect_cuda(cudaDeviceSynchronize());
  test::expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  test::expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  step.queue(plan, stream);
  test::expect_cuda(cudaStreamEndCapture(stream, &graph));
  test::expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
  std::vector<std::int32_t> lengths = data.table.context_tokens;
  for (const int less : {0, 37, 700}) {
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = std::max(0, data.table.context_tokens[i] - less);
    step.set_lengths(lengths);
    test::expect_cuda(cudaGraphLaunch(replay, stream));
    const std::vector<float> replayed = step.out();
    step.queue(plan);
    EXPECT_EQ(replayed, step.out()) << less;
  }
  // All are attended whole, of which the kernels of the selection have not written when attention begins.
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = std::min(data.table.context_tokens[i], 500);
  step.set_lengths(lengths);
  test::expect_cuda(cudaGraphLaunch(replay, stream));
  const std::vector<float> replayed = step.out();
  DecodeConfig whole = GetParam().config;
  whole.min_context_tokens = 1 << 20;
  DeviceStep dense(data);
  dense.set_lengths(lengths);
  dense.queue(plan_of(whole, data));
  const std::vector<double> all = test::errors(data, replayed, dense.out());
  EXPECT_LT(*std::max_element(all.begin(), all.end()), 1e-5);
  test::expect_cuda(cudaGraphExecDestroy(replay));
  test::expect_cuda(cudaGraphDestroy(graph));
  test::expect_cuda(cudaStreamDestroy(stream));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](StepSpec spec, DecodeConfig config) {
    spec.format = config.format;
    spec.lengths = {3000, 1500, 100, 5000, 1037};
    all.push_back({spec, config});
  };
  const DecodeConfig ours;
  const DecodeConfig paper = [] {
    DecodeConfig config = DecodeConfig::paper();
    config.select.budget_tokens = 512;
    return config;
  }();
  DecodeConfig pages = ours;
  pages.select.part_tokens = kPageTokens;
  DecodeConfig per_head = ours;
  per_head.select.combine = GroupCombine::kPerQueryHead;
  DecodeConfig maximum = ours;
  maximum.format = &kGraded12;
  maximum.select.combine = GroupCombine::kMax;
  DecodeConfig exact = ours;
  exact.min_context_tokens = 4000;  // a whole context may be longer than a list
  StepSpec spec;
  spec.head_dim = 128;
  spec.group = 8;
  spec.dtype = DType::kBF16;
  add(spec, ours);
  add(spec, exact);
  add(spec, paper);
  add(spec, pages);
  spec.dtype = DType::kE4M3;
  add(spec, ours);
  spec.group = 4;
  spec.kv_heads = 3;
  add(spec, per_head);
  spec.dtype = DType::kBF16;
  add(spec, per_head);
  spec.dtype = DType::kF16;
  spec.head_dim = 64;
  spec.group = 3;
  spec.block_tokens = 32;
  add(spec, ours);
  add(spec, maximum);
  spec.layout = test::Layout::kHeadMajor;
  spec.block_tokens = 64;
  add(spec, paper);
  spec.head_dim = 80;
  spec.group = 1;
  spec.layout = test::Layout::kTokenMajor;
  add(spec, ours);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, CudaDecode, testing::ValuesIn(cases()));

TEST_F(CudaDecodeStep, ARequestDoesNotDependOnTheBatchAroundIt) {
  StepSpec spec;
  spec.head_dim = 128;
  spec.group = 4;
  spec.lengths = {2000, 3000, 900};
  const StepData data(spec);
  const DecodePlan plan = plan_of(DecodeConfig{}, data);
  DeviceStep together(data);
  together.queue(plan);
  const std::vector<float> batch = together.out();
  DeviceStep alone(data);
  alone.set_lengths({0, 3000, 0});
  alone.queue(plan);
  const std::vector<float> single = alone.out();
  const auto row = batch.size() / 3;
  for (std::size_t i = row; i < 2 * row; ++i) ASSERT_EQ(batch[i], single[i]) << i;
}

TEST_F(CudaDecodeStep, WhatDoesNotFitThePlanIsRefused) {
  StepSpec spec;
  const StepData data(spec);
  DeviceStep step(data);
  const auto message = [&](const DecodePlan& plan, std::size_t workspace_bytes) {
    const DeviceArray<std::byte> workspace(workspace_bytes);
    const DeviceArray<float> out(data.queries.size());
    try {
      cuda::run(plan, step.inputs, contiguous(out.data(), 1, data.geometry.query_heads, data.geometry.head_dim), {},
                workspace.span(), nullptr);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const DecodePlan plan = plan_of(DecodeConfig{}, data);
  EXPECT_NE(message(plan, cuda::decode_workspace_bytes(plan) - 64).find("workspace"), std::string::npos);
  DecodeConfig other;
  other.format = &kPaper;
  const DecodePlan wrong = plan_of(other, data);
  EXPECT_NE(message(wrong, cuda::decode_workspace_bytes(wrong)).find("summaries.format"), std::string::npos);
  step.inputs.keys.dtype = DType::kQ8_0;
  EXPECT_NE(message(plan, cuda::decode_workspace_bytes(plan)).find("keys.dtype"), std::string::npos);
  step.inputs.keys.dtype = spec.dtype;
  EXPECT_EQ(message(plan, cuda::decode_workspace_bytes(plan)), "");
  test::expect_cuda(cudaDeviceSynchronize());  // what is refused has queued nothing
}

}  // namespace
}  // namespace locks
