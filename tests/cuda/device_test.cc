#include "device.h"

namespace locks {
namespace {

TEST(CudaDevice, SaysWhatItIsOrWhyNot) {
  const std::string reason = cuda::why_unavailable();
  if (!reason.empty()) {
    EXPECT_THROW((void)cuda::current_device(), cuda::CudaError);
    return;
  }
  const cuda::Device device = cuda::current_device();
  EXPECT_GE(device.compute_capability, 80);
  EXPECT_GT(device.multiprocessors, 0);
}

TEST(CudaDevice, StoresAreAlignedForTheGpu) {
  alignas(16) static std::byte memory[16];
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
      const SummaryStore store = cuda::make_store(*format, head_dim, 3, 5, true, memory);
      EXPECT_EQ(store.head_stride % 16, 0);
      EXPECT_EQ(store.value_head_stride % 16, 0);
      EXPECT_GE(store.head_stride, record_layout(*format, head_dim).record_bytes);
      EXPECT_EQ(cuda::summary_bytes(*format, head_dim, 3, 5, true), 5 * (store.page_stride + store.value_page_stride));
    }
  }
}

}  // namespace
}  // namespace locks
