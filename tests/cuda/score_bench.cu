// Scoring beside a plain read of the same bytes: random block tables, one request.
#include <cstring>
#include <string>

#include "bench.cuh"

namespace locks::bench {
namespace {

struct Heads {
  int kv_heads;
  int group;
};

void measure(const SummaryFormat& format, int head_dim, Heads heads, int tokens) {
  const std::int64_t pages = tokens / kPageTokens;
  const SummaryStore one = cuda::make_store(format, head_dim, heads.kv_heads, pages, false, nullptr);
  const std::int64_t bytes = pages * one.page_stride;
  const int copies = std::max(2, static_cast<int>(800'000'000 / bytes));
  const SummaryStore store = random_store(format, head_dim, heads.kv_heads, pages * copies, false);
  std::int32_t* const blocks = upload(shuffled(pages * copies));
  std::int32_t* const length = upload(std::vector<std::int32_t>{tokens});
  const int query_heads = heads.kv_heads * heads.group;
  float* const queries = upload(normal_floats(static_cast<std::size_t>(query_heads * head_dim)));
  float* const out = allocate<float>(static_cast<std::size_t>(query_heads * pages));

  const double read = read_microseconds(store.data, bytes, copies);
  const double time = microseconds(20, [&](int i, cudaStream_t stream) {
    ScoreArgs args;
    args.geometry = {head_dim, heads.kv_heads, query_heads, 0.0883883476F};
    args.queries = contiguous<const float>(queries, 1, query_heads, head_dim);
    args.summaries = store;
    args.table = {contiguous<const std::int32_t>(blocks + i % copies * pages, 1, pages), kPageTokens, {length, 1}};
    args.log_mass = contiguous<float>(out, 1, query_heads, pages);
    cuda::score(args, stream);
  });
  std::printf("%-9s d %3d  %d KV x %2d  %8d tokens  %8.2f us  read %8.2f us  %5.2f x  %5.0f GB/s\n",
              std::string(format.name).c_str(), head_dim, heads.kv_heads, heads.group, tokens, time, read, time / read,
              static_cast<double>(bytes) / time * 1e-3);
  std::fflush(stdout);
  for (void* memory : {static_cast<void*>(store.data), static_cast<void*>(blocks), static_cast<void*>(length),
                       static_cast<void*>(queries), static_cast<void*>(out)}) {
    require(cudaFree(memory));
  }
}

}  // namespace
}  // namespace locks::bench

/// `cuda_score_bench all` has more formats and head dimensions.
int main(int argc, char** argv) {
  using namespace locks;
  using namespace locks::bench;
  constexpr int kMillion = 1 << 20;
  for (const SummaryFormat* format : {&kPaper, &kGraded8}) {
    for (const Heads heads : {Heads{4, 8}, Heads{8, 4}, Heads{2, 16}}) measure(*format, 128, heads, kMillion);
    for (const int tokens : {kMillion / 8, kMillion / 4, kMillion / 2}) measure(*format, 128, {4, 8}, tokens);
  }
  if (argc > 1 && std::strcmp(argv[1], "all") == 0) {
    for (const SummaryFormat* format : {&kGraded12, &kGraded4}) measure(*format, 128, {4, 8}, kMillion);
    for (const SummaryFormat* format : {&kPaper, &kGraded8}) {
      for (const int head_dim : {64, 80, 96, 192, 256}) measure(*format, head_dim, {4, 8}, kMillion);
    }
  }
}
