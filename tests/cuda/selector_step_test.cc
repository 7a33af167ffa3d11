// What Quest and the oracle choose on the GPU, and whole steps by them, against the selectors on the CPU.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/rank.h"
#include "device_bounds.h"
#include "support/selectors.h"

namespace locks {
namespace {

using test::DeviceArray;
using test::DeviceBounds;
using test::DeviceStep;
using test::Layout;
using test::StepData;
using test::StepSpec;
using test::Vector;

struct Case {
  StepSpec spec;
  SelectorConfig config;
  [[nodiscard]] bool is_quest() const { return config.id == SelectorId::kQuest; }
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << (c.is_quest() ? "quest" : "oracle") << " d " << c.spec.head_dim << " group " << c.spec.group << " dtype "
       << dtype_name(c.spec.dtype) << " part " << c.config.part_tokens << " combine " << static_cast<int>(c.config.combine);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  // Lengths around the budget and around full pages, and one that no budget here holds.
  const auto add = [&](const std::string& name, GroupCombine combine, int part, StepSpec spec) {
    spec.lengths = {1500, 1504, 0, 256, 257, 3001};
    SelectorConfig config = test::config_of(name, 256);
    config.combine = combine;
    config.part_tokens = part;
    all.push_back({spec, config});
  };
  const StepSpec vllm{.head_dim = 128, .kv_heads = 2, .group = 4, .dtype = DType::kBF16, .block_tokens = 32};
  const StepSpec heads{.head_dim = 64, .kv_heads = 2, .group = 3, .layout = Layout::kHeadMajor, .block_tokens = 64};
  const StepSpec wide{.head_dim = 192, .kv_heads = 1, .group = 18, .dtype = DType::kF32, .layout = Layout::kScattered};
  for (const GroupCombine combine : {GroupCombine::kPerQueryHead, GroupCombine::kSum, GroupCombine::kMax}) {
    add("quest", combine, kPageTokens, vllm);
    add("quest", combine, kPageTokens, heads);
    add("oracle", combine, kPageTokens, heads);
    add("oracle", combine, 4, vllm);
  }
  add("quest", GroupCombine::kSum, kPageTokens, wide);
  add("oracle", GroupCombine::kSum, 4, wide);
  add("oracle", GroupCombine::kPerQueryHead, 1, heads);
  return all;
}

cuda::SelectorPlan plan_of(const SelectorConfig& config, const StepData& data) {
  const auto& lengths = data.table.context_tokens;
  return {config,
          data.geometry,
          {static_cast<int>(lengths.size()), std::max(1, *std::max_element(lengths.begin(), lengths.end())), 1},
          0};
}

class CudaSelectors : public test::CudaTest, public testing::WithParamInterface<Case> {};
INSTANTIATE_TEST_SUITE_P(All, CudaSelectors, testing::ValuesIn(cases()));

/// What is chosen for each list of a step, besides what is always attended: by the stages, as a step has them.
class Lists {
 public:
  Lists(const Case& c, const StepData& data, const DeviceStep& step)
      : config_(plan_of(c.config, data).step().config().select),
        requests_(data.table.table.num_requests()),
        num_lists_(c.config.combine == GroupCombine::kPerQueryHead ? data.geometry.query_heads : data.geometry.kv_heads),
        longest_(*std::max_element(data.table.context_tokens.begin(), data.table.context_tokens.end())),
        capacity_(select_limits(config_, longest_).candidate_pages) {
    const Geometry& geometry = data.geometry;
    const int pages = longest_ / kPageTokens;
    const int heads = geometry.query_heads / num_lists_;
    const auto lists = static_cast<std::size_t>(requests_ * num_lists_);
    const auto all_heads = static_cast<std::size_t>(requests_ * geometry.query_heads);
    const auto entries = lists * static_cast<std::size_t>(capacity_);
    const DeviceArray<float> log_mass(all_heads * static_cast<std::size_t>(pages));
    const DeviceArray<float> logits(c.config.part_tokens < kPageTokens ? entries * heads * kPageTokens : 0);
    const DeviceArray<float> states(always_states(data));
    const DeviceArray<std::int32_t> candidates(entries), counts(lists), num_selected(lists), completed(lists);
    const DeviceArray<SelectedPage> selected(entries);
    const DeviceArray<float> skipped(all_heads), coverage(all_heads);
    const DeviceArray<std::byte> workspace(cuda::select_workspace_bytes(config_, geometry, requests_, num_lists_, longest_));
    cuda::SelectArgs args;
    args.config = config_;
    args.context_tokens = step.inputs.table.context_tokens;
    args.num_lists = num_lists_;
    args.states = contiguous(states.data(), requests_, geometry.query_heads, 2);
    args.candidates = contiguous(candidates.data(), requests_, num_lists_, capacity_);
    args.num_candidates = contiguous(counts.data(), requests_, num_lists_);
    args.selected = contiguous(selected.data(), requests_, num_lists_, capacity_);
    args.num_selected = contiguous(num_selected.data(), requests_, num_lists_);
    args.num_completed = contiguous(completed.data(), requests_, num_lists_);
    args.skipped_log_mass = contiguous(skipped.data(), requests_, geometry.query_heads);
    args.coverage = contiguous(coverage.data(), requests_, geometry.query_heads);
    args.workspace = workspace.span();
    if (c.is_quest()) {
      const DeviceBounds bounds = test::bounds_of(data, step.inputs);
      const auto scores = contiguous(log_mass.data(), requests_, num_lists_, pages);
      cuda::score_bounds(
          {geometry, step.inputs.queries, bounds.view(), nullptr, step.inputs.table, c.config.combine, scores}, nullptr);
      args.log_mass = scores;
      cuda::rank_pages(args, cuda::Start::kAfterPrevious, nullptr);
      read(selected, num_selected);
      return;
    }
    const auto masses = contiguous(log_mass.data(), requests_, geometry.query_heads, pages);
    View<float, 5> of_tokens;
    if (c.config.part_tokens < kPageTokens) {
      of_tokens = contiguous(logits.data(), requests_, num_lists_, capacity_, heads, kPageTokens);
    }
    cuda::key_masses({geometry, step.inputs.queries, step.inputs.keys, step.inputs.table, masses, of_tokens,
                      pages_for(config_.sink_tokens)},
                     nullptr);
    args.log_mass = masses;
    args.logits = of_tokens;
    cuda::select_pages(args, nullptr);
    cuda::select_tokens(args, nullptr);
    read(selected, num_selected);
  }
  [[nodiscard]] int num_lists() const { return num_lists_; }
  [[nodiscard]] AlwaysAttended always(int tokens) const { return always_attended(config_, tokens); }
  [[nodiscard]] SelectedList of(int request, int list) const {
    const auto row = static_cast<std::size_t>(request * num_lists_ + list);
    const auto first = selected_.begin() + static_cast<std::ptrdiff_t>(row) * capacity_;
    return {first, first + counts_[row]};
  }

 private:
  void read(const DeviceArray<SelectedPage>& selected, const DeviceArray<std::int32_t>& counts) {
    selected_ = selected.read();
    counts_ = counts.read();
  }
  /// The exact mass of what is always attended, as the largest logit of a state.
  [[nodiscard]] std::vector<float> always_states(const StepData& data) const {
    std::vector<float> states;
    for (int request = 0; request < requests_; ++request) {
      const AlwaysAttended forced = always(data.table.context_tokens[static_cast<std::size_t>(request)]);
      for (int head = 0; head < data.geometry.query_heads; ++head) {
        const test::Plain plain(data, request, head / data.geometry.group_size());
        double sum = 0.0;
        for (int token = 0; token < plain.tokens() && !forced.everything; ++token) {
          const bool selectable = token >= forced.sink_pages * kPageTokens && token < forced.first_recent_page * kPageTokens;
          if (!selectable) sum += std::exp(plain.logit(head % data.geometry.group_size(), token));
        }
        states.insert(states.end(), {static_cast<float>(std::log(sum)), 1.0F});
      }
    }
    return states;
  }

  SelectConfig config_;
  int requests_;
  int num_lists_;
  int longest_;
  int capacity_;
  std::vector<SelectedPage> selected_;
  std::vector<std::int32_t> counts_;
};

/// In double: what the parts of the selectable pages of a list count, by the rule of the method.
Vector part_scores(const Case& c, const test::Plain& plain, const AlwaysAttended& always, int first_head, int heads,
                   int head_dim) {
  const int part = c.config.part_tokens;
  const int first = always.sink_pages * kPageTokens;
  Vector all(static_cast<std::size_t>(always.selectable_pages() * kPageTokens / part));
  for (int head = first_head; head < first_head + heads; ++head) {
    const Vector weights = c.is_quest() ? Vector() : plain.weights(head);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int from = first + static_cast<int>(i) * part;
      double own = 0.0;
      if (c.is_quest()) {
        for (int dim = 0; dim < head_dim; ++dim) {
          double most = -INFINITY;
          for (int token = from; token < from + part; ++token) {
            most = std::max(most, plain.query(head, dim) * plain.key(token, dim));
          }
          own += most;
        }
      } else {
        for (int token = from; token < from + part; ++token) own += weights[static_cast<std::size_t>(token)];
      }
      all[i] = head == first_head ? own : c.config.combine == GroupCombine::kMax ? std::max(all[i], own) : all[i] + own;
    }
  }
  return all;
}

// Where two parts are equal to the last digits of a float, either may be taken; all others are those of the CPU.
TEST_P(CudaSelectors, ChooseWhatTheCpuChooses) {
  const StepData data(GetParam().spec);
  const DeviceStep step(data);
  const Lists lists(GetParam(), data, step);
  const SelectorConfig& config = GetParam().config;
  const int per_kv_head = lists.num_lists() / data.geometry.kv_heads;
  const int heads = data.geometry.query_heads / lists.num_lists();
  int differ = 0;
  int chosen = 0;
  for (int request = 0; request < data.table.table.num_requests(); ++request) {
    const int tokens = data.table.context_tokens[static_cast<std::size_t>(request)];
    const AlwaysAttended always = lists.always(tokens);
    if (tokens <= config.budget_tokens) continue;
    const test::View1 view(data, request, tokens);
    const auto selector = make_selector(config, data.geometry);
    for (int kv_head = 0; kv_head < data.geometry.kv_heads; ++kv_head) {
      selector->append(view.sequence, kv_head);
      const Selection want = selector->select(view.sequence, kv_head, test::queries_of(data, request, kv_head));
      for (int list = 0; list < per_kv_head; ++list) {
        SCOPED_TRACE(testing::Message() << "request " << request << ", KV head " << kv_head << ", list " << list);
        std::vector<int> got = test::tokens_in(lists.of(request, kv_head * per_kv_head + list));
        for (int token = 0; token < tokens; ++token) {
          const int page = token / kPageTokens;
          if (page < always.sink_pages || page >= always.first_recent_page) got.push_back(token);
        }
        std::sort(got.begin(), got.end());
        const std::vector<int> all = test::tokens_in(want.lists[static_cast<std::size_t>(list)]);
        ASSERT_EQ(got.size(), all.size());
        chosen += static_cast<int>(got.size());
        std::vector<int> difference;
        std::set_symmetric_difference(got.begin(), got.end(), all.begin(), all.end(), std::back_inserter(difference));
        if (difference.empty()) continue;
        differ += static_cast<int>(difference.size());
        const test::Plain plain(data, request, kv_head);
        const Vector scores = part_scores(GetParam(), plain, always, list * heads, heads, data.geometry.head_dim);
        const int part = config.part_tokens;
        Vector ordered = scores;
        const auto wanted = (static_cast<int>(all.size()) - always.tokens) / part;
        std::nth_element(ordered.begin(), ordered.begin() + wanted - 1, ordered.end(), std::greater<>());
        const double least = ordered[static_cast<std::size_t>(wanted - 1)];
        for (const int token : difference) {
          const double own = scores[static_cast<std::size_t>((token - always.sink_pages * kPageTokens) / part)];
          EXPECT_NEAR(own, least, 2e-5 * std::abs(least)) << "token " << token;
        }
      }
    }
  }
  EXPECT_GT(chosen, 0);
  EXPECT_LE(differ, chosen / 100);
}

// Attention over the same tokens, but for the few that are equal to the last digits.
TEST_P(CudaSelectors, StepsAgreeWithTheCpu) {
  const StepData data(GetParam().spec);
  const test::StepResult want = test::run_selectors(GetParam().config, data, 1, 0);
  DeviceStep step(data);
  const DeviceBounds bounds = test::bounds_of(data, step.inputs);
  step.queue(plan_of(GetParam().config, data), bounds.view());
  const std::vector<double> all = test::errors(data, step.out(), want.out);
  const auto close = static_cast<double>(std::count_if(all.begin(), all.end(), [](double error) { return error < 2e-4; }));
  EXPECT_GE(close / static_cast<double>(all.size()), 0.95);
  EXPECT_LT(*std::max_element(all.begin(), all.end()), 0.05);
  const std::vector<DecodeReport> reports = step.reports();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(reports[i].context_tokens, want.reports[i].context_tokens);
    EXPECT_EQ(reports[i].dense, want.reports[i].dense);
    EXPECT_NEAR(reports[i].attended_tokens, want.reports[i].attended_tokens, 1e-3);
    EXPECT_NEAR(reports[i].coverage, want.reports[i].coverage, 1e-4);
    EXPECT_EQ(reports[i].dense_bytes, want.reports[i].dense_bytes);
    if (GetParam().is_quest()) {
      EXPECT_EQ(reports[i].score_bytes, want.reports[i].score_bytes);
    }
    if (GetParam().config.combine != GroupCombine::kPerQueryHead) {
      EXPECT_EQ(reports[i].attend_bytes, want.reports[i].attend_bytes);
    }
    EXPECT_EQ(reports[i].completed_pages, 0.0F);
    EXPECT_EQ(reports[i].complete_bytes, 0);
  }
}

class CudaSelectorStep : public test::CudaTest {};

std::vector<SelectorConfig> configs(int budget) {
  SelectorConfig parts = test::config_of("oracle", budget);
  parts.part_tokens = 4;
  return {test::config_of("quest", budget), test::config_of("oracle", budget), parts};
}

TEST_F(CudaSelectorStep, ABudgetForEverythingHasTheBitsOfDenseAttention) {
  const StepData data({.head_dim = 128, .group = 4, .dtype = DType::kBF16, .lengths = {300, 17, 0, 256}});
  DecodeConfig dense;
  dense.min_context_tokens = 301;
  DeviceStep whole(data);
  whole.queue(DecodePlan(dense, data.geometry, {4, 300, 1}));
  const std::vector<float> want = whole.out();
  for (const SelectorConfig& config : configs(300)) {
    DeviceStep step(data);
    const DeviceBounds bounds = test::bounds_of(data, step.inputs);
    step.queue(plan_of(config, data), bounds.view());
    EXPECT_EQ(step.out(), want);
    for (const DecodeReport& report : step.reports()) EXPECT_TRUE(report.dense);
  }
}

TEST_F(CudaSelectorStep, ShortContextsAreAttendedWhole) {
  const StepData data({.lengths = {999, 1000}});
  for (const SelectorConfig& config : configs(128)) {
    DeviceStep step(data);
    const DeviceBounds bounds = test::bounds_of(data, step.inputs);
    step.queue(cuda::SelectorPlan(config, data.geometry, {2, 1000, 1}, 1000), bounds.view());
    EXPECT_TRUE(step.reports()[0].dense);
    EXPECT_FALSE(step.reports()[1].dense);
  }
}

TEST_F(CudaSelectorStep, AReplayedGraphTakesOtherLengths) {
  const StepData data({.head_dim = 64, .group = 3, .lengths = {3000, 1500, 100}});
  for (const SelectorConfig& config : configs(256)) {
    const cuda::SelectorPlan plan = plan_of(config, data);
    DeviceStep step(data);
    const DeviceBounds bounds = test::bounds_of(data, step.inputs);
    step.queue(plan, bounds.view());  // loads the kernels
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    test::expect_cuda(cudaDeviceSynchronize());
    test::expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    test::expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step.queue(plan, bounds.view(), stream);
    test::expect_cuda(cudaStreamEndCapture(stream, &graph));
    test::expect_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (const std::vector<std::int32_t>& lengths : {std::vector{3000, 1500, 100}, std::vector{257, 1499, 0}}) {
      step.set_lengths(lengths);
      test::expect_cuda(cudaGraphLaunch(replay, stream));
      const std::vector<float> replayed = step.out();
      step.queue(plan, bounds.view());
      EXPECT_EQ(replayed, step.out());
    }
    test::expect_cuda(cudaGraphExecDestroy(replay));
    test::expect_cuda(cudaGraphDestroy(graph));
    test::expect_cuda(cudaStreamDestroy(stream));
  }
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CudaSelectorDoor, PlansNameTheSetting) {
  const Geometry geometry{64, 2, 4, 0.125F};
  const auto plan = [&](const SelectorConfig& config) {
    return refusal([&] { (void)cuda::SelectorPlan(config, geometry, {1, 1000, 1}, 0); });
  };
  EXPECT_EQ(plan(test::config_of("quest", 48)), "accepted");
  EXPECT_EQ(plan(test::config_of("oracle", 256)), "accepted");
  EXPECT_EQ(plan(test::config_of("quest", 47)).find("budget_tokens"), 0U);
  EXPECT_EQ(plan(test::config_of("oracle", 100)).find("budget_tokens"), 0U);
  for (const SelectorInfo& info : selector_infos()) {
    if (info.id == SelectorId::kQuest || info.id == SelectorId::kOracle) continue;
    EXPECT_EQ(plan(selector_config(info.name)).find("id"), 0U) << info.name;
  }
  SelectorConfig parts = test::config_of("quest", 256);
  parts.part_tokens = 4;
  EXPECT_EQ(plan(parts).find("part_tokens"), 0U);
}

/// Nothing is queued, so the pointers may lead nowhere.
TEST(CudaSelectorDoor, StepsNameTheArgument) {
  const StepData data({.lengths = {1500}});
  const cuda::SelectorPlan plan = plan_of(test::config_of("quest", 256), data);
  auto* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const auto num_pages = data.keys.view().num_pages;
  const std::size_t bytes = cuda::decode_workspace_bytes(plan);
  const auto expect = [&](const std::string& name, std::size_t workspace, auto&& change) {
    DecodeInputs inputs = data.inputs();
    cuda::PageBounds bounds = cuda::make_bounds(DType::kF16, 64, data.geometry.kv_heads, num_pages, memory);
    change(inputs, bounds);
    const auto out = contiguous(reinterpret_cast<float*>(memory), 1, data.geometry.query_heads, 64);
    const std::string got = refusal([&] { cuda::run(plan, inputs, bounds, out, {}, {memory, workspace}, nullptr); });
    EXPECT_EQ(got.find(name), 0U) << name << ": " << got;
  };
  expect("workspace", bytes - 64, [](auto&, auto&) {});
  expect("bounds.dtype", bytes, [](auto&, auto& bounds) { bounds.dtype = DType::kBF16; });
  expect("bounds.num_pages", bytes, [](auto&, auto& bounds) { --bounds.num_pages; });
  expect("bounds", bytes, [](auto&, auto& bounds) { bounds.data = nullptr; });
  expect("keys.block_tokens", bytes, [](auto& inputs, auto&) { inputs.keys.block_tokens = 32; });
  expect("queries", bytes, [](auto& inputs, auto&) { inputs.queries.data = nullptr; });
}

}  // namespace
}  // namespace locks
