#include "measure.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

namespace locks::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kStreamBytes = std::size_t{640} * 1000 * 1000;
constexpr std::align_val_t kAlignment{64};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The reads themselves; what they return only keeps them from being left out.
std::uint64_t read_plain(const std::byte* data, std::size_t bytes) {
  std::uint64_t sums[4]{};
  for (std::size_t at = 0; at + 32 <= bytes; at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, data + at, 32);
    for (int i = 0; i < 4; ++i) sums[i] += words[i];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* data, std::size_t bytes) {
  __m256i sums[4]{};
  for (std::size_t at = 0; at + 128 <= bytes; at += 128) {
    for (int i = 0; i < 4; ++i) {
      sums[i] = _mm256_add_epi64(sums[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
    }
  }
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words),
                     _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3])));
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::byte* data, std::size_t bytes) {
  __m512i sums[4]{};
  for (std::size_t at = 0; at + 256 <= bytes; at += 256) {
    for (int i = 0; i < 4; ++i) sums[i] = _mm512_add_epi64(sums[i], _mm512_loadu_si512(data + at + 64 * i));
  }
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3])));
  std::uint64_t all = 0;
  for (const std::uint64_t word : words) all ^= word;
  return all;
}

double step_seconds(ThreadPool& pool, const Work& work) {
  const auto start = Clock::now();
  pool.run(work.run);
  return seconds_since(start) / work.steps;
}

}  // namespace

Memory::Memory(std::size_t bytes) : data_(new(kAlignment) std::byte[bytes]), bytes_(bytes) {}

void Memory::Free::operator()(std::byte* data) const noexcept { ::operator delete[](data, kAlignment); }

void repeat(std::span<std::byte> memory, std::size_t period) {
  for (std::size_t done = period; done < memory.size();) {
    const std::size_t count = std::min(done, memory.size() - done);
    std::memcpy(memory.data() + done, memory.data(), count);
    done += count;
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ReadBandwidth::ReadBandwidth(Target target)
    : memory_(kStreamBytes),
      read_(target == Target::kAvx512 ? read_avx512
            : target == Target::kAvx2 ? read_avx2
                                      : read_plain) {
  std::memset(memory_.data(), 1, kStreamBytes);
}

double ReadBandwidth::measure(ThreadPool& pool) {
  std::atomic<std::uint64_t> total = 0;
  const auto start = Clock::now();
  pool.run([&](Team team) {
    const auto [first, last] = team.share(static_cast<std::int64_t>(kStreamBytes / 256));
    total += read_(memory_.data() + first * 256, static_cast<std::size_t>(last - first) * 256);
  });
  const double elapsed = seconds_since(start);
  total_ += total;
  return static_cast<double>(kStreamBytes) / elapsed;
}

Timing measure(ThreadPool& pool, ReadBandwidth& bandwidth, const Work& work, const Work& baseline, double bytes_per_step,
               double seconds, int min_rounds) {
  std::vector<double> steps;
  std::vector<double> baselines;
  std::vector<double> ratios;
  std::vector<double> bandwidths;
  std::vector<double> shares;
  pool.run(work.run);  // page tables and code are warm from here on
  const auto start = Clock::now();
  while (static_cast<int>(steps.size()) < min_rounds || seconds_since(start) < seconds) {
    if (baseline.run) {
      bandwidth.measure(pool);
      baselines.push_back(step_seconds(pool, baseline));
    }
    bandwidths.push_back(bandwidth.measure(pool));
    steps.push_back(step_seconds(pool, work));
    if (baseline.run) ratios.push_back(baselines.back() / steps.back());
    shares.push_back(bytes_per_step / steps.back() / bandwidths.back());
  }
  Timing timing;
  timing.rounds = static_cast<int>(steps.size());
  timing.step_us = 1e6 * median(steps);
  timing.baseline_us = 1e6 * median(baselines);
  timing.baseline_ratio = median(ratios);
  timing.bandwidth = median(bandwidths);
  timing.bandwidth_share = median(shares);
  return timing;
}

}  // namespace locks::cli
