// Decode attention over an engine's own paged cache: 16384 tokens, of which 512 are read, and among them is the one that
// the query looks for.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <locks/locks.h>

int main() {
  constexpr int kTokens = 16384, kHeadDim = 128, kKvHeads = 2, kQueryHeads = 8, kPages = kTokens / locks::kPageTokens;
  constexpr std::int64_t kRow = sizeof(float) * kHeadDim;
  std::vector<float> keys(std::size_t{kTokens} * kKvHeads * kHeadDim), values(keys.size());  // [tokens, kv_heads, head_dim]
  std::vector<float> query(kQueryHeads * kHeadDim), out(query.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto* data : {&keys, &values, &query}) std::generate(data->begin(), data->end(), [&] { return normal(random); });
  for (int i = 0; i < kHeadDim; ++i) keys[7777 * kKvHeads * kHeadDim + i] = 2.0F * query[i];  // query head 0 looks for this
  for (int i = 0; i < kHeadDim; ++i) values[7777 * kKvHeads * kHeadDim + i] = 3.0F;

  // The library borrows the cache as it lies. Here blocks of 16 tokens are in order; the table may name them in any.
  locks::PagedCache k{.data = reinterpret_cast<const std::byte*>(keys.data()),
                      .dtype = locks::DType::kF32,
                      .num_pages = kPages,
                      .block_stride = 16 * kKvHeads * kRow,
                      .token_stride = kKvHeads * kRow,
                      .head_stride = kRow};
  locks::PagedCache v = k;
  v.data = reinterpret_cast<const std::byte*>(values.data());
  std::vector<std::int32_t> blocks(kPages);
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::int32_t context_tokens[] = {kTokens};

  // When pages fill: their summaries, 8 to 13 % of an f16 cache.
  locks::DecodeConfig config;
  std::vector<std::byte> memory(locks::summary_bytes(*config.format, kHeadDim, kKvHeads, kPages, true));
  const auto summaries = locks::make_store(*config.format, kHeadDim, kKvHeads, kPages, true, memory.data());
  locks::ThreadPool pool(2);
  pool.run([&](locks::Team team) {
    locks::summarize({kHeadDim, kKvHeads, k, &v, blocks, summaries}, team, locks::active_target());
  });

  // Once: a plan and its workspace. Then every step.
  const locks::DecodePlan plan(config, {kHeadDim, kKvHeads, kQueryHeads, 1 / std::sqrt(float{kHeadDim})}, {1, kTokens, 2});
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(64, (plan.workspace_bytes() + 63) / 64 * 64), std::free);
  const locks::DecodeInputs step{locks::contiguous<const float>(query.data(), 1, kQueryHeads, kHeadDim),
                                 k,
                                 v,
                                 summaries,
                                 {locks::contiguous<const std::int32_t>(blocks.data(), 1, kPages), 16, context_tokens}};
  locks::check_decode(plan, step, true);
  locks::DecodeReport report;
  pool.run([&](locks::Team team) {
    locks::run(plan, step, locks::contiguous(out.data(), 1, kQueryHeads, kHeadDim), {&report, 1},
               {static_cast<std::byte*>(workspace.get()), plan.workspace_bytes()}, team, locks::active_target());
  });
  std::printf("attended %.0f of %d tokens, coverage %.2f, head 0 found %.2f\n", report.attended_tokens,
              report.context_tokens, report.coverage, out[0]);
  return std::abs(out[0] - 3.0F) < 0.1F && report.attended_tokens <= config.select.budget_tokens ? 0 : 1;
}
