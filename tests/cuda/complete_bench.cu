// Completion beside a plain read of the bytes of the records that it reads: a tenth of the pages of one request, at random.
#include <algorithm>
#include <string>

#include "bench.cuh"

namespace locks::bench {
namespace {

void measure(const SummaryFormat& format, int head_dim, int kv_heads, int group, int tokens) {
  const std::int64_t pages = tokens / kPageTokens;
  const std::int64_t listed = pages / 10;
  constexpr int kCopies = 8;  // lists of other pages, so that the L2 cache does not serve them
  const SummaryStore store = random_store(format, head_dim, kv_heads, pages, true);
  std::int32_t* const blocks = upload(shuffled(pages));
  std::int32_t* const length = upload(std::vector<std::int32_t>{tokens});
  const int query_heads = kv_heads * group;
  float* const queries = upload(normal_floats(static_cast<std::size_t>(query_heads * head_dim)));
  std::vector<SelectedPage> host;
  std::mt19937 random(3);
  for (int list = 0; list < kCopies * kv_heads; ++list) {
    std::vector<std::int32_t> order = shuffled(pages);
    std::rotate(order.begin(), order.begin() + static_cast<std::int64_t>(random() % static_cast<unsigned>(pages)),
                order.end());
    std::sort(order.begin(), order.begin() + listed);
    for (std::int64_t i = 0; i < listed; ++i) host.push_back({order[static_cast<std::size_t>(i)], kWholePage});
  }
  SelectedPage* const lists = upload(host);
  std::int32_t* const counts =
      upload(std::vector<std::int32_t>(static_cast<std::size_t>(kv_heads), static_cast<int>(listed)));
  float* const skipped = upload(normal_floats(static_cast<std::size_t>(query_heads)));
  float* const states = upload(normal_floats(static_cast<std::size_t>(query_heads * (2 + head_dim))));
  const Geometry geometry{head_dim, kv_heads, query_heads, 0.0883883476F};
  const std::size_t workspace_bytes = cuda::completion_workspace_bytes(geometry, 1, kv_heads);
  auto* const workspace = allocate<std::byte>(workspace_bytes);

  const std::int64_t bytes = listed * kv_heads * (store.head_stride + store.value_head_stride) / 512 * 512;
  const int copies =
      static_cast<int>(std::min<std::int64_t>(8, pages * (store.page_stride + store.value_page_stride) / bytes));
  const double read = read_microseconds(store.data, bytes, copies);
  const double time = microseconds(16, [&](int i, cudaStream_t stream) {
    cuda::CompletionArgs args;
    args.geometry = geometry;
    args.queries = contiguous<const float>(queries, 1, query_heads, head_dim);
    args.summaries = store;
    args.table = {contiguous<const std::int32_t>(blocks, 1, pages), kPageTokens, {length, 1}};
    args.num_lists = kv_heads;
    args.completed = contiguous<const SelectedPage>(lists + i % kCopies * kv_heads * listed, 1, kv_heads, listed);
    args.num_completed = contiguous<const std::int32_t>(counts, 1, kv_heads);
    args.skipped_log_mass = contiguous<const float>(skipped, 1, query_heads);
    args.workspace = {workspace, workspace_bytes};
    cuda::complete(args, contiguous<float>(states, 1, query_heads, 2 + head_dim), stream);
  });
  std::printf("%-9s d %3d  %d KV x %2d  %6d pages a list  %7.2f us  read %7.2f us  %5.2f x\n",
              std::string(format.name).c_str(), head_dim, kv_heads, group, static_cast<int>(listed), time, read,
              time / read);
  std::fflush(stdout);
  for (void* memory : {static_cast<void*>(store.data), static_cast<void*>(blocks), static_cast<void*>(length),
                       static_cast<void*>(queries), static_cast<void*>(lists), static_cast<void*>(counts),
                       static_cast<void*>(skipped), static_cast<void*>(states), static_cast<void*>(workspace)}) {
    require(cudaFree(memory));
  }
}

}  // namespace
}  // namespace locks::bench

int main() {
  using namespace locks;
  using namespace locks::bench;
  constexpr int kMillion = 1 << 20;
  for (const SummaryFormat* format : {&kPaper, &kGraded8}) {
    measure(*format, 128, 4, 8, kMillion);
    measure(*format, 128, 8, 4, kMillion);
    measure(*format, 128, 2, 16, kMillion);
    measure(*format, 64, 8, 4, kMillion);
    measure(*format, 128, 4, 8, kMillion / 8);
  }
}
