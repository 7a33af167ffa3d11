// Completion on the GPU against the CPU's definition in the same process.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "complete_case.h"
#include "logits.h"

namespace locks {
namespace {

using test::kEps;
using test::kRequests;
using Case = test::CompleteCase;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The reference's states, and what the GPU may make different in the mean of a head.
struct Expected {
  std::vector<float> states;
  std::vector<double> bounds;  // [requests, query_heads]
};

/// A weight is off, relatively, by twice the error of a logit (bounded in logits.h), and by exp's 2^-22 and the rounding of
/// its argument; it is split in two bf16 parts, and so are the sums over a page's tokens: 2^-16 each; the tensor core may
/// lose 2^-22 of the largest summand at each of 16 + 2 (1 + rank) additions a page, and the sums of pages, warps and parts
/// 2^-22 each; the rotation back is 10 roundings, and the errors of a block of n dimensions may meet in one: sqrt(n) of
/// them.
Expected expected(Case& c) {
  Expected out{c.states, std::vector<double>(static_cast<std::size_t>(kRequests * c.geometry.query_heads), 0.0)};
  const auto view = contiguous<float>(out.states.data(), kRequests, c.geometry.query_heads, 2 + c.geometry.head_dim);
  ScoreArgs score = c.score_args();
  test::Workspace workspace(score_workspace_bytes(c.geometry, kRequests));
  score.workspace = workspace.span();
  prepare_queries(score, Team{}, Target::kReference);
  const SummaryFormat& format = *c.records.host().format;
  for (int row = 0; row < kRequests * c.lists; ++row) {
    const int request = row / c.lists;
    const int first_head = c.list_of(row) * c.heads;
    const int kv_head = first_head / c.geometry.group_size();
    const auto entries = c.entries(row);
    std::vector<float> logits(entries.size() * static_cast<std::size_t>(c.heads * kPageTokens));
    for (int head = 0; head < c.heads; ++head) {
      double mass = 0.0, error = 0.0, largest = -kInfinity;
      std::vector<test::PageLogits> pages;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::int64_t page = c.table.table.page(request, entries[i].page);
        pages.push_back(test::page_logits(score, request, first_head + head, page));
        for (int token = 0; token < kPageTokens; ++token) {
          const double logit = pages[i].mean.value + pages[i].deviation[token].value;
          logits[(i * c.heads + head) * kPageTokens + token] = static_cast<float>(logit);
          if ((entries[i].mask >> token & 1) != 0) largest = std::max(largest, logit);
        }
      }
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::int64_t page = c.table.table.page(request, entries[i].page);
        const DecodedSummary keys = decode_record(format, c.geometry.head_dim, c.records.host().record(page, kv_head));
        const DecodedValues values =
            decode_value_record(format, c.geometry.head_dim, c.records.host().value_record(page, kv_head));
        for (int token = 0; token < kPageTokens; ++token) {
          if ((entries[i].mask >> token & 1) == 0) continue;
          const double logit = pages[i].mean.value + pages[i].deviation[token].value;
          const double weight = std::exp(logit - largest);
          const double logit_error =
              pages[i].mean.bound + pages[i].deviation[token].bound + 2 * kEps * (std::abs(logit) + std::abs(largest));
          double size = 0.0;
          for (int dim = 0; dim < c.geometry.head_dim; ++dim) {
            double own = std::abs(values.mean[dim]);
            for (int rank = 0; rank < format.rank; ++rank) {
              own += std::abs(values.slopes[rank][dim] * keys.coefficients[token][rank]);
            }
            size = std::max(size, own);
          }
          mass += weight;
          error += weight * size *
                   (2 * (logit_error + 0x1p-22 + (largest - logit) * 0x1p-22) + 2 * 0x1p-16 +
                    (16 + 2 * (1 + format.rank) + static_cast<double>(entries.size()) / 8 + 8 + 32 + 10) * 0x1p-22);
        }
      }
      out.bounds[static_cast<std::size_t>(request * c.geometry.query_heads + first_head + head)] =
          mass == 0.0 ? 0.0 : error / mass * std::sqrt(std::bit_floor(static_cast<unsigned>(c.geometry.head_dim)));
    }
    CompleteArgs args;
    args.head_dim = c.geometry.head_dim;
    args.summaries = c.records.host();
    args.table = c.table.table;
    args.request = request;
    args.kv_head = kv_head;
    args.first_query_head = first_head;
    args.completed = entries;
    args.logits = contiguous<const float>(logits.data(), entries.size(), c.heads, kPageTokens);
    args.skipped_log_mass =
        std::span(c.skipped).subspan(static_cast<std::size_t>(request * c.geometry.query_heads + first_head), c.heads);
    complete(args, view, Target::kReference);
  }
  return out;
}

void expect_right(Case& c, const std::string& what) {
  const std::vector<float> got = c.run();
  const Expected want = expected(c);
  const int floats = 2 + c.geometry.head_dim;
  for (int head = 0; head < kRequests * c.geometry.query_heads; ++head) {
    const float* const own = got.data() + head * floats;
    const float* const reference = want.states.data() + head * floats;
    const std::string where = what + ", head " + std::to_string(head);
    if (std::equal(reference, reference + floats, c.states.data() + head * floats)) {
      ASSERT_TRUE(std::equal(own, own + floats, reference)) << where << " should not have been touched";
      continue;
    }
    EXPECT_EQ(own[0], reference[0]) << where;
    EXPECT_NEAR(own[1], reference[1], reference[1] * 16 * kEps * (1 + std::abs(reference[0]))) << where;
    const double bound = want.bounds[static_cast<std::size_t>(head)];
    for (int dim = 0; dim < c.geometry.head_dim; ++dim) {
      const double rounding =
          16 * kEps * (std::abs(reference[2 + dim]) + 10.0 * std::abs(c.states[head * floats + 2 + dim]));
      ASSERT_NEAR(own[2 + dim], reference[2 + dim], bound + rounding) << where << ", dimension " << dim;
    }
  }
}

class CudaCompleteTest : public test::CudaTest, public testing::WithParamInterface<std::tuple<const SummaryFormat*, int>> {};
std::vector<std::tuple<const SummaryFormat*, int>> record_kinds() {
  std::vector<std::tuple<const SummaryFormat*, int>> kinds;
  for (const SummaryFormat* format : summary_formats()) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) kinds.emplace_back(format, head_dim);
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Records, CudaCompleteTest, testing::ValuesIn(record_kinds()), [](const auto& info) {
  return std::string(std::get<0>(info.param)->name) + "_d" + std::to_string(std::get<1>(info.param));
});
using CudaComplete = test::CudaTest;

TEST_P(CudaCompleteTest, MatchesTheReference) {
  const auto [format, head_dim] = GetParam();
  for (const int group : {1, 5, 8, 11}) {
    for (const bool list_per_head : {false, true}) {
      if (list_per_head && group != 5) continue;
      Case c(*format, head_dim, 2, group, list_per_head, 60);
      expect_right(c, "group " + std::to_string(group) + (list_per_head ? ", a list a head" : ""));
    }
  }
}

TEST_P(CudaCompleteTest, LongListsAndSharpWeights) {
  const auto [format, head_dim] = GetParam();
  Case c(*format, head_dim, 1, 2, false, 440, 6.0F);
  expect_right(c, "long lists");
}

/// 24 parts and 71 times a part's pages, which is more parts than there may be.
TEST_F(CudaComplete, ListsOfManyParts) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int longest : {1500, 4500}) {
      Case c(kGraded8, head_dim, 1, 2, false, longest, 2.0F, longest * 14 / 9 + 14);
      expect_right(c, std::to_string(longest) + " pages");
    }
  }
}

TEST_F(CudaComplete, MergesNothingWithoutMassOrTokens) {
  Case no_mass(kGraded8, 64, 2, 3, false, 40);
  no_mass.skipped.assign(no_mass.skipped.size(), -kInfinity);
  EXPECT_EQ(no_mass.run(), no_mass.states);

  Case no_tokens(kGraded8, 64, 2, 3, false, 40);
  for (SelectedPage& entry : no_tokens.completed) entry.mask = 0;
  EXPECT_EQ(no_tokens.run(), no_tokens.states);

  Case no_pages(kGraded8, 64, 2, 3, false, 40);
  no_pages.counts.assign(no_pages.counts.size(), 0);
  EXPECT_EQ(no_pages.run(), no_pages.states);
}

TEST_F(CudaComplete, TheEmptyStateBecomesTheCompletion) {
  Case c(kGraded8, 128, 2, 4, false, 40);
  for (std::size_t i = 0; i < c.states.size(); ++i) c.states[i] = i % 130 == 0 ? -kInfinity : 0.0F;
  expect_right(c, "empty states");
}

TEST_F(CudaComplete, GivesTheSameBitsAgain) {
  Case c(kGraded8, 128, 2, 4, false, 300);
  EXPECT_EQ(c.run(), c.run());
}

/// complete() that writes the output is complete() and finish().
TEST_F(CudaComplete, FinishesWithTheSameBits) {
  for (const int longest : {0, 300}) {
    Case c(kGraded8, 96, 2, 5, false, std::max(1, longest));
    if (longest == 0) c.counts.assign(c.counts.size(), 0);
    const auto outputs = [&](bool at_once) {
      const test::DeviceArray<float> out(static_cast<std::size_t>(kRequests * c.geometry.query_heads * 96));
      const auto view = contiguous(out.data(), kRequests, c.geometry.query_heads, 96);
      (void)c.run([&](const cuda::CompletionArgs& args, SoftmaxStates states) {
        if (at_once) return cuda::complete(args, states, view, nullptr);
        cuda::complete(args, states, nullptr);
        cuda::finish(states, view, nullptr);
      });
      return out.read();
    };
    EXPECT_EQ(outputs(true), outputs(false));
  }
}

TEST(CudaCompleteDoor, NamesTheArgument) {
  const auto refusal = [](auto&& change) -> std::string {
    cuda::CompletionArgs args;
    args.geometry = {64, 2, 4, 0.125F};
    auto* const floats = reinterpret_cast<float*>(std::uintptr_t{1} << 20);  // the door does not look where it leads
    auto* const integers = reinterpret_cast<std::int32_t*>(floats);
    args.queries = contiguous<const float>(floats, 1, 4, 64);
    args.summaries = cuda::make_store(kGraded8, 64, 2, 8, true, reinterpret_cast<std::byte*>(floats));
    args.table = {contiguous<const std::int32_t>(integers, 1, 8), 16, {integers, 1}};
    args.num_lists = 2;
    args.completed = contiguous<const SelectedPage>(reinterpret_cast<SelectedPage*>(floats), 1, 2, 4);
    args.num_completed = contiguous<const std::int32_t>(integers, 1, 2);
    args.skipped_log_mass = contiguous<const float>(floats, 1, 4);
    args.workspace = {reinterpret_cast<std::byte*>(floats), cuda::completion_workspace_bytes(args.geometry, 1, 2)};
    SoftmaxStates states = contiguous<float>(floats, 1, 4, 66);
    change(args, states);
    try {
      cuda::complete(args, states, nullptr);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  using Args = cuda::CompletionArgs;
  const auto names = [](const std::string& message, const std::string& name) {
    EXPECT_EQ(message.find(name), 0U) << name << ": " << message;
  };
  names(refusal([](Args& args, SoftmaxStates&) { args.num_lists = 3; }), "num_lists");
  names(refusal([](Args& args, SoftmaxStates&) { args.summaries.value_data = nullptr; }), "summaries.value_data");
  names(refusal([](Args& args, SoftmaxStates&) { args.summaries.value_page_stride += 4; }),
        "summaries.value_data.page_stride");
  names(refusal([](Args& args, SoftmaxStates&) { args.completed.data = nullptr; }), "completed");
  names(refusal([](Args& args, SoftmaxStates&) { args.completed.shape[1] = 1; }), "completed.shape[1]");
  names(refusal([](Args& args, SoftmaxStates&) { args.num_completed.data = nullptr; }), "num_completed");
  names(refusal([](Args& args, SoftmaxStates&) { args.skipped_log_mass.data = nullptr; }), "skipped_log_mass");
  names(refusal([](Args& args, SoftmaxStates&) { args.workspace = args.workspace.first(64); }), "workspace");
  names(refusal([](Args&, SoftmaxStates& states) { states.shape[2] = 64; }), "states.shape[2]");
}

}  // namespace
}  // namespace locks
