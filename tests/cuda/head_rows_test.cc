// Queries and outputs in the types of engines.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "device_step.h"

namespace locks {
namespace {

using test::DeviceArray;
using test::DeviceStep;
using test::StepData;
using test::StepSpec;

class CudaHeadRows : public test::CudaTest {};

std::uint16_t rounded(float value, DType dtype) {
  if (dtype == DType::kF16) return std::bit_cast<std::uint16_t>(__half_raw(__float2half_rn(value)));
  return std::bit_cast<std::uint16_t>(__nv_bfloat16_raw(__float2bfloat16_rn(value)));
}

/// Rows of two bytes an element, heads outermost and a gap behind each row.
struct HeadsFirst {
  HeadsFirst(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, DType dtype)
      : memory(static_cast<std::size_t>(rows * heads * (head_dim + 8))) {
    view.data = reinterpret_cast<std::byte*>(memory.data());
    view.dtype = dtype;
    view.shape = {rows, heads, head_dim};
    view.stride = {head_dim + 8, rows * (head_dim + 8), 1};
  }
  void expect(const std::vector<float>& floats) const {
    const std::vector<std::uint16_t> all = memory.read();
    std::vector<std::uint16_t> want(all.size(), 0xFFFF);  // what nobody writes stays
    auto from = floats.begin();
    for (std::int64_t row = 0; row < view.shape[0]; ++row) {
      for (std::int64_t head = 0; head < view.shape[1]; ++head) {
        for (std::int64_t dim = 0; dim < view.shape[2]; ++dim) {
          want[static_cast<std::size_t>(row * view.stride[0] + head * view.stride[1] + dim)] = rounded(*from++, view.dtype);
        }
      }
    }
    EXPECT_EQ(all, want);
  }
  DeviceArray<std::uint16_t> memory;
  cuda::HeadRows view;
};

/// A few requests have leaves, many have groups of them; both with and without a completion.
TEST_F(CudaHeadRows, OutputsAreThoseOfFloatsRounded) {
  for (const std::size_t requests : {2, 40}) {
    for (const float completion : {0.0F, 0.1F}) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        SCOPED_TRACE(std::to_string(requests) + ", " + std::to_string(completion) + ", " + std::string(dtype_name(dtype)));
        StepSpec spec;
        spec.lengths.assign(requests, 700);
        const StepData data(spec);
        DecodeConfig config;
        config.select.part_tokens = kPageTokens;
        config.select.budget_tokens = 256;
        config.select.completion_fraction = completion;
        config.min_context_tokens = 0;
        const DecodePlan plan(config, data.geometry, {static_cast<int>(requests), 700, 1});
        DeviceStep step(data);
        step.queue(plan);
        const std::vector<float> floats = step.out();
        const HeadsFirst out(static_cast<std::int64_t>(requests), data.geometry.query_heads, data.geometry.head_dim, dtype);
        const DeviceArray<std::byte> workspace(cuda::decode_workspace_bytes(plan));
        cuda::run(plan, step.inputs, out.view, {}, workspace.span(), nullptr);
        out.expect(floats);
      }
    }
  }
}

TEST_F(CudaHeadRows, AreCopiedAndRounded) {
  std::vector<float> floats(3 * 4 * 64);
  std::iota(floats.begin(), floats.end(), -1.0F / 3);
  const DeviceArray<float> memory(floats);
  const View<float, 3> from = contiguous(memory.data(), 3, 4, 64);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const HeadsFirst to(3, 4, 64, dtype);
    cuda::copy_rows(from, to.view, nullptr);
    to.expect(floats);
    const DeviceArray<float> back(floats.size());
    cuda::copy_rows(to.view, contiguous(back.data(), 3, 4, 64), nullptr);
    const HeadsFirst again(3, 4, 64, dtype);
    cuda::copy_rows(contiguous(back.data(), 3, 4, 64), again.view, nullptr);
    EXPECT_EQ(to.memory.read(), again.memory.read());
  }
  std::vector<float> bytes(256);
  std::iota(bytes.begin(), bytes.end(), -128.0F);
  const DeviceArray<float> wide(bytes);
  const DeviceArray<std::uint8_t> narrow(256);
  const DeviceArray<float> scale(std::vector<float>{0.25F});
  cuda::HeadRows e4m3(contiguous(wide.data(), 1, 4, 64));
  e4m3.data = reinterpret_cast<std::byte*>(narrow.data());
  e4m3.dtype = DType::kE4M3;
  e4m3.scale = scale.data();
  cuda::copy_rows(contiguous(wide.data(), 1, 4, 64), e4m3, nullptr);
  const DeviceArray<float> read(256);
  cuda::copy_rows(e4m3, contiguous(read.data(), 1, 4, 64), nullptr);
  const std::vector<float> got = read.read();
  for (std::size_t i = 0; i < got.size(); ++i) {  // three bits of a fraction; 448 quarters at most
    EXPECT_NEAR(got[i], std::clamp(bytes[i], -112.0F, 112.0F), std::max(0.25F * 0x1p-9F, std::abs(bytes[i]) / 16)) << i;
  }
}

TEST_F(CudaHeadRows, WhatIsNoneIsRefused) {
  const DeviceArray<float> memory(2 * 64);
  const cuda::HeadRows good(contiguous(memory.data(), 1, 2, 64));
  const auto message = [](const cuda::HeadRows& from, const cuda::HeadRows& to) {
    try {
      cuda::copy_rows(from, to, nullptr);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(good, good), "");
  cuda::HeadRows bad = good;
  bad.data = nullptr;
  EXPECT_NE(message(good, bad).find("to: "), std::string::npos) << message(good, bad);
  bad = good;
  bad.dtype = DType::kQ8_0;
  EXPECT_NE(message(bad, good).find("from.dtype"), std::string::npos) << message(bad, good);
  bad = good;
  bad.shape = {1, 1, 64};
  EXPECT_NE(message(good, bad).find("to.shape"), std::string::npos) << message(good, bad);
  bad = good;
  bad.shape[0] = 65536;
  EXPECT_NE(message(bad, bad).find("65535"), std::string::npos) << message(bad, bad);

  const StepData data(StepSpec{});
  DeviceStep step(data);
  const DecodePlan plan(DecodeConfig{}, data.geometry, {1, 1500, 1});
  const DeviceArray<std::byte> workspace(cuda::decode_workspace_bytes(plan));
  cuda::HeadRows out(step.out_view());
  out.dtype = DType::kE4M3;
  EXPECT_THROW(cuda::run(plan, step.inputs, out, {}, workspace.span(), nullptr), std::invalid_argument);
  test::expect_cuda(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace locks
