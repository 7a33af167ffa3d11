#include "bench_cuda.h"

#include "bench_cuda_memory.cuh"
#include "locks/cuda_selectors.h"

namespace locks::cli {
namespace {

using namespace cuda_bench;

constexpr int kLaunches = 20;  // of a graph
constexpr double kRotatedBytes =
    6e8;  // what the launches of a graph have read before they come back: ten times an H200's L2

/// A cache of one layer, its summaries, and shuffled tables for several batches that share no page.
class Layer {
 public:
  Layer(Geometry geometry, const SummaryFormat& format, int requests, int context_tokens, double bytes_per_step)
      : geometry_(geometry),
        format_(format),
        requests_(requests),
        context_tokens_(context_tokens),
        pages_((context_tokens + kPageTokens - 1) / kPageTokens),
        batches_(std::clamp(static_cast<int>(kRotatedBytes / bytes_per_step) + 1, 2, kLaunches)),
        num_pages_(std::int64_t{batches_} * requests * pages_),
        records_(
            static_cast<std::size_t>(cuda::summary_bytes(format, geometry.head_dim, geometry.kv_heads, num_pages_, true))),
        keys_(static_cast<std::size_t>(num_pages_ * page_bytes())),
        values_(static_cast<std::size_t>(num_pages_ * page_bytes())),
        tables_(shuffled(num_pages_)),
        contexts_(std::vector<std::int32_t>(static_cast<std::size_t>(requests), context_tokens)),
        queries_(static_cast<std::size_t>(requests) * geometry.query_heads * geometry.head_dim),
        out_(static_cast<std::size_t>(requests) * geometry.query_heads * geometry.head_dim) {
    const auto token_pairs = static_cast<std::size_t>(geometry.kv_heads) * geometry.head_dim / 2;
    for (const Array<std::byte>* rows : {&keys_, &values_}) {
      fill_rows<<<1024, 256>>>(reinterpret_cast<__nv_bfloat162*>(rows->data()), rows->span().size() / 4, token_pairs,
                               rows == &keys_ ? 1 : 2);
    }
    std::vector<float> queries(queries_.span().size());
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& value : queries) value = normal(random);
    check(cudaMemcpy(queries_.data(), queries.data(), queries.size() * sizeof(float), cudaMemcpyHostToDevice));
    store_ = cuda::make_store(format, geometry.head_dim, geometry.kv_heads, num_pages_, true, records_.data());
    const PagedCache values = cache(values_);
    cuda::summarize({geometry.head_dim, geometry.kv_heads, cache(keys_), &values, tables_.span(), store_}, nullptr, nullptr);
    check(cudaDeviceSynchronize());
  }

  [[nodiscard]] PagedCache cache(const Array<std::byte>& rows) const {
    PagedCache cache;
    cache.data = rows.data();
    cache.dtype = DType::kBF16;
    cache.num_pages = num_pages_;
    cache.head_stride = std::int64_t{2} * geometry_.head_dim;
    cache.token_stride = cache.head_stride * geometry_.kv_heads;
    cache.block_stride = cache.token_stride * kPageTokens;
    return cache;
  }
  [[nodiscard]] DecodeInputs inputs(int launch) const {
    DecodeInputs inputs;
    inputs.queries = contiguous<const float>(queries_.data(), requests_, geometry_.query_heads, geometry_.head_dim);
    inputs.keys = cache(keys_);
    inputs.values = cache(values_);
    inputs.summaries = store_;
    const std::int64_t first = std::int64_t{launch % batches_} * requests_ * pages_;
    inputs.table = {contiguous<const std::int32_t>(tables_.data() + first, requests_, pages_), kPageTokens,
                    contexts_.span()};
    return inputs;
  }
  [[nodiscard]] View<float, 3> out() const {
    return contiguous(out_.data(), requests_, geometry_.query_heads, geometry_.head_dim);
  }
  [[nodiscard]] std::int64_t page_bytes() const {
    return std::int64_t{2} * geometry_.head_dim * geometry_.kv_heads * kPageTokens;
  }

  /// Times steps of a plan for contexts of up to `max_context_tokens`; `swept`: each behind a sweep of the L2 cache.
  [[nodiscard]] double decode_us(const DecodeConfig& config, int max_context_tokens = 0, bool swept = false) const {
    const DecodePlan plan(config, geometry_, {requests_, std::max(context_tokens_, max_context_tokens), 1});
    const Array<std::byte> workspace(cuda::decode_workspace_bytes(plan));
    const auto step = [&](int i, cudaStream_t stream) { cuda::run(plan, inputs(i), out(), {}, workspace.span(), stream); };
    return swept ? swept_us(kLaunches, step) : graph_us(kLaunches, step);
  }
  /// Times steps of another selector.
  [[nodiscard]] double decode_us(const SelectorConfig& config) const {
    const cuda::SelectorPlan plan(config, geometry_, {requests_, context_tokens_, 1}, 0);
    const Array<std::byte> workspace(cuda::decode_workspace_bytes(plan));
    const Bounds bounds(*this);
    return graph_us(kLaunches, [&](int i, cudaStream_t stream) {
      cuda::run(plan, inputs(i), bounds.view, out(), {}, workspace.span(), stream);
    });
  }
  [[nodiscard]] double quest_score_us() const {
    const Bounds bounds(*this);
    const Array<float> scores(static_cast<std::size_t>(requests_) * geometry_.query_heads * pages_);
    return graph_us(kLaunches, [&](int i, cudaStream_t stream) {
      const DecodeInputs from = inputs(i);
      cuda::score_bounds({geometry_, from.queries, bounds.view, nullptr, from.table, GroupCombine::kPerQueryHead,
                          contiguous(scores.data(), requests_, geometry_.query_heads, pages_)},
                         stream);
    });
  }
  [[nodiscard]] double dense_us() const {
    DecodeConfig config;
    config.format = &format_;
    config.min_context_tokens = context_tokens_ + 1;
    return decode_us(config);
  }
  [[nodiscard]] double score_us() const {
    const Array<float> log_mass(static_cast<std::size_t>(requests_) * geometry_.query_heads * pages_);
    return graph_us(kLaunches, [&](int i, cudaStream_t stream) {
      const DecodeInputs from = inputs(i);
      cuda::score({geometry_,
                   from.queries,
                   store_,
                   from.table,
                   contiguous(log_mass.data(), requests_, geometry_.query_heads, pages_),
                   {}},
                  stream);
    });
  }
  /// Whole pages at random places; every launch has its own.
  [[nodiscard]] double attend_us(int tokens) const {
    const int entries = tokens / kPageTokens;
    std::vector<SelectedPage> host;
    std::mt19937 random(7);
    for (int i = 0; i < kLaunches * geometry_.kv_heads; ++i) {
      std::vector<std::int32_t> pages;
      for (int entry = 0; entry < entries; ++entry) pages.push_back(static_cast<std::int32_t>(random() % pages_));
      std::sort(pages.begin(), pages.end());
      for (const std::int32_t page : pages) host.push_back({page, kWholePage});
    }
    const Array<SelectedPage> lists(host);
    const Array<std::int32_t> counts(std::vector<std::int32_t>(static_cast<std::size_t>(geometry_.kv_heads), entries));
    const Array<std::byte> workspace(cuda::attend_workspace_bytes(geometry_, 1, geometry_.kv_heads));
    const Array<float> states(static_cast<std::size_t>(geometry_.query_heads) * (2 + geometry_.head_dim));
    return graph_us(kLaunches, [&](int i, cudaStream_t stream) {
      const DecodeInputs from = inputs(i);
      const SelectedPage* own = lists.data() + std::int64_t{i} * geometry_.kv_heads * entries;
      cuda::attend({geometry_, from.queries, from.keys, from.values, from.table, geometry_.kv_heads,
                    contiguous(own, 1, geometry_.kv_heads, entries),
                    contiguous<const std::int32_t>(counts.data(), 1, geometry_.kv_heads), workspace.span()},
                   contiguous(states.data(), 1, geometry_.query_heads, 2 + geometry_.head_dim), false, stream);
    });
  }
  [[nodiscard]] double summarize_us(bool with_values) const {
    const PagedCache keys = cache(keys_);
    const PagedCache values = cache(values_);
    return graph_us(2, [&](int i, cudaStream_t stream) {
      SummaryStore store = store_;
      if (!with_values) store.value_data = nullptr;
      const std::span<const std::int32_t> pages(tables_.data() + std::int64_t{i % batches_} * pages_,
                                                static_cast<std::size_t>(pages_));
      cuda::summarize({geometry_.head_dim, geometry_.kv_heads, keys, with_values ? &values : nullptr, pages, store}, nullptr,
                      stream);
    });
  }
  /// One token of one request is written; it fills its page, or does not.
  [[nodiscard]] double crossing_us(bool fills) const {
    const PagedCache keys = cache(keys_);
    const PagedCache values = cache(values_);
    std::vector<std::int64_t> host;
    for (std::int64_t i = 0; i < kLaunches; ++i) host.push_back(i * 977 % num_pages_ * kPageTokens + (fills ? 15 : 3));
    const Array<std::int64_t> slots(host);
    return graph_us(kLaunches, [&](int i, cudaStream_t stream) {
      cuda::summarize_filled({geometry_.head_dim, geometry_.kv_heads, keys, &values, {}, store_},
                             std::span<const std::int64_t>(slots.data() + i, 1), nullptr, stream);
    });
  }

 private:
  /// Quest's, of all pages.
  struct Bounds {
    explicit Bounds(const Layer& layer)
        : memory(static_cast<std::size_t>(
              cuda::bounds_bytes(DType::kBF16, layer.geometry_.head_dim, layer.geometry_.kv_heads, layer.num_pages_))),
          view(cuda::make_bounds(DType::kBF16, layer.geometry_.head_dim, layer.geometry_.kv_heads, layer.num_pages_,
                                 memory.data())) {
      cuda::bound_pages(
          {layer.geometry_.head_dim, layer.geometry_.kv_heads, layer.cache(layer.keys_), layer.tables_.span(), view},
          nullptr);
      check(cudaDeviceSynchronize());
    }
    Array<std::byte> memory;
    cuda::PageBounds view;
  };
  static std::vector<std::int32_t> shuffled(std::int64_t count) {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(11));
    return pages;
  }

  Geometry geometry_;
  const SummaryFormat& format_;
  int requests_;
  int context_tokens_;
  int pages_;
  int batches_;
  std::int64_t num_pages_;
  Array<std::byte> records_, keys_, values_;
  Array<std::int32_t> tables_, contexts_;
  Array<float> queries_, out_;
  SummaryStore store_;
};

struct Shape {
  int kv_heads;
  int group;
  int requests;
  int context_tokens;
  [[nodiscard]] Geometry geometry() const { return {128, kv_heads, kv_heads * group, 0.0883883F}; }
  [[nodiscard]] std::string text() const {
    const int thousands = context_tokens / 1024;
    const std::string length = thousands >= 1024 ? std::to_string(thousands / 1024) + "M" : std::to_string(thousands) + "K";
    return std::to_string(kv_heads) + "x" + std::to_string(group) + "." +
           (requests > 1 ? std::to_string(requests) + "x" : "") + length;
  }
  [[nodiscard]] double records() const { return static_cast<double>(requests) * context_tokens / kPageTokens * kv_heads; }
};

double score_bytes(const Shape& shape, const SummaryFormat& format) {
  return shape.records() * record_layout(format, 128).record_bytes;
}
double attend_bytes(const Shape& shape, int tokens) { return 512.0 * shape.requests * shape.kv_heads * tokens; }

CudaCase score_case(const Shape& shape, const SummaryFormat& format) {
  return {"cuda.score." + std::string(format.name) + "." + shape.text(), "log-mass of every page and query head",
          [=, &format] {
            const double bytes = score_bytes(shape, format);
            const Layer layer(shape.geometry(), format, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.score_us(), bytes, read_us(bytes), 0.0};
          }};
}

/// The paper's method in this format: whole pages, 2048 tokens, nothing completed.
CudaCase whole_pages_case(const Shape& shape, const SummaryFormat& format) {
  return {"cuda.decode.pages." + std::string(format.name) + "." + shape.text(), "whole step, 2048 tokens in whole pages",
          [=, &format] {
            DecodeConfig config = DecodeConfig::paper();
            config.format = &format;
            const double bytes = score_bytes(shape, format) + attend_bytes(shape, 2048);
            const Layer layer(shape.geometry(), format, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.decode_us(config), bytes, read_us(bytes), layer.dense_us()};
          }};
}

double completed_bytes(const Shape& shape) {
  return 0.1 * shape.records() * (record_layout(kGraded8, 128).record_bytes + value_layout(kGraded8, 128).record_bytes);
}

/// With 1024 tokens it is what vLLM's plug-in does by default.
DecodeConfig completed_pages(int tokens) {
  DecodeConfig config;
  config.select.part_tokens = kPageTokens;
  config.select.budget_tokens = tokens;
  return config;
}
double completed_step_bytes(const Shape& shape, int tokens) {
  if (shape.context_tokens <= tokens) return attend_bytes(shape, shape.context_tokens);  // nothing is chosen
  return score_bytes(shape, kGraded8) + attend_bytes(shape, tokens) + completed_bytes(shape);
}
CudaCase completed_pages_case(const Shape& shape, int tokens) {
  const std::string text = std::to_string(tokens);
  return {"cuda.decode.completed." + text + "." + shape.text(),
          "whole step, " + text + " tokens in whole pages, completion of 10 %", [=] {
            const double bytes = completed_step_bytes(shape, tokens);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.decode_us(completed_pages(tokens)), bytes, read_us(bytes), layer.dense_us()};
          }};
}

CudaCase default_case(const Shape& shape) {
  return {"cuda.decode." + shape.text(), "whole step as it is by default: parts, 512 tokens, completion of 10 %", [=] {
            const DecodeConfig config;
            const double bytes = score_bytes(shape, kGraded8) + attend_bytes(shape, 512) + completed_bytes(shape);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.decode_us(config), bytes, read_us(bytes), layer.dense_us()};
          }};
}

/// Completed pages as an engine has them, in which a layer's weights come between two steps, and take the place of
/// instructions too.
CudaCase engine_case(const Shape& shape) {
  constexpr int kTokens = 1024;
  return {"cuda.engine." + shape.text(),
          "whole step, 1024 tokens in whole pages, completion of 10 %, behind a sweep of the L2 cache", [=] {
            const double bytes = completed_step_bytes(shape, kTokens);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            DecodeConfig dense = completed_pages(kTokens);
            dense.min_context_tokens = shape.context_tokens + 1;
            return CudaResult{layer.decode_us(completed_pages(kTokens), 0, true), bytes, read_us(bytes),
                              layer.decode_us(dense, 0, true)};
          }};
}

/// A context that is attended whole, in a plan that selects from longer ones.
CudaCase whole_context_case(const Shape& shape) {
  return {"cuda.decode.whole." + shape.text(),
          "a context attended whole, in a plan of 1024 tokens in whole pages for longer ones", [=] {
            constexpr int kLongest = 131072;
            DecodeConfig config = completed_pages(1024);
            config.min_context_tokens = 32769;
            const double bytes = attend_bytes(shape, shape.context_tokens);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.decode_us(config, kLongest), bytes, read_us(bytes), layer.dense_us()};
          }};
}

double bound_bytes(const Shape& shape) { return 512.0 * shape.records(); }

CudaCase quest_score_case(const Shape& shape) {
  return {"cuda.score.quest." + shape.text(), "Quest's bound of every page and query head", [=] {
            const double bytes = bound_bytes(shape);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.quest_score_us(), bytes, read_us(bytes), 0.0};
          }};
}

/// 2048 tokens, as whole_pages_case().
CudaCase quest_case(const Shape& shape, GroupCombine combine) {
  const bool own_lists = combine == GroupCombine::kPerQueryHead;
  return {
      std::string("cuda.decode.quest.") + (own_lists ? "" : "sum.") + shape.text(),
      own_lists ? "whole step of Quest, 2048 tokens for each query head" : "the same, with a list for each KV head", [=] {
        SelectorConfig config = selector_config("quest");
        config.combine = combine;
        const double bytes = bound_bytes(shape) + attend_bytes(shape, config.budget_tokens) * (own_lists ? shape.group : 1);
        const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
        return CudaResult{layer.decode_us(config), bytes, read_us(bytes), layer.dense_us()};
      }};
}

CudaCase oracle_case(const Shape& shape, int part_tokens) {
  const bool parts = part_tokens < kPageTokens;
  return {std::string("cuda.decode.oracle.") + (parts ? "parts." : "pages.") + shape.text(),
          parts ? "whole step by every key, 512 tokens in parts" : "whole step by every key, 2048 tokens in whole pages",
          [=] {
            SelectorConfig config = selector_config("oracle");
            config.budget_tokens = parts ? 512 : 2048;
            config.part_tokens = part_tokens;
            const double bytes = attend_bytes(shape, shape.context_tokens) / 2 + attend_bytes(shape, config.budget_tokens);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.decode_us(config), bytes, read_us(bytes), layer.dense_us()};
          }};
}

CudaCase dense_case(const Shape& shape) {
  return {"cuda.dense." + shape.text(), "exact attention over every token, bf16", [=] {
            const double bytes = attend_bytes(shape, shape.context_tokens);
            const Layer layer(shape.geometry(), kGraded8, shape.requests, shape.context_tokens, bytes);
            return CudaResult{layer.dense_us(), bytes, read_us(bytes), 0.0};
          }};
}

}  // namespace

std::string cuda_device_text() {
  const cuda::Device device = cuda::current_device();
  return device.name + ", compute capability " + std::to_string(device.compute_capability / 10) + "." +
         std::to_string(device.compute_capability % 10) + ", " + std::to_string(device.multiprocessors) + " multiprocessors";
}

std::vector<CudaCase> cuda_cases() {
  constexpr int kMega = 1 << 20;
  std::vector<CudaCase> cases;
  for (const SummaryFormat* format : {&kPaper, &kGraded8}) {
    for (const int context : {kMega / 8, kMega / 4, kMega / 2, kMega}) {
      cases.push_back(score_case({4, 8, 1, context}, *format));
    }
    cases.push_back(score_case({8, 4, 1, kMega}, *format));
    cases.push_back(score_case({2, 16, 1, kMega}, *format));
  }
  for (const int context : {kMega / 8, kMega / 4, kMega / 2, kMega}) {
    cases.push_back(whole_pages_case({4, 8, 1, context}, kGraded8));
  }
  for (const int context : {kMega / 8, kMega / 4, kMega / 2, kMega}) {
    cases.push_back(completed_pages_case({4, 8, 1, context}, 1024));
    cases.push_back(completed_pages_case({4, 8, 1, context}, 2048));
    cases.push_back(engine_case({4, 8, 1, context}));
    cases.push_back(default_case({4, 8, 1, context}));
  }
  for (const Shape& shape :
       {Shape{8, 4, 1, 1024}, Shape{8, 4, 1, 4096}, Shape{8, 4, 1, 8192}, Shape{8, 4, 1, 16384}, Shape{8, 4, 1, 24576},
        Shape{8, 4, 1, 32768}, Shape{8, 4, 4, 2048}, Shape{8, 4, 4, 4096}, Shape{8, 4, 4, 8192}}) {
    cases.push_back(default_case(shape));
    cases.push_back(completed_pages_case(shape, 1024));
    cases.push_back(whole_context_case(shape));
  }
  for (const int context : {kMega / 8, kMega}) {
    const Shape shape{4, 8, 1, context};
    cases.push_back(quest_score_case(shape));
    cases.push_back(quest_case(shape, GroupCombine::kPerQueryHead));
    cases.push_back(quest_case(shape, GroupCombine::kSum));
    cases.push_back(oracle_case(shape, kPageTokens));
    cases.push_back(oracle_case(shape, 4));
  }
  cases.push_back(whole_pages_case({8, 4, 4, kMega / 8}, kGraded8));
  cases.push_back(completed_pages_case({8, 4, 4, kMega / 8}, 1024));
  cases.push_back(engine_case({8, 4, 4, kMega / 8}));
  cases.push_back(engine_case({8, 4, 1, 1024}));
  cases.push_back(default_case({8, 4, 4, kMega / 8}));
  cases.push_back(whole_pages_case({8, 4, 64, kMega / 32}, kGraded8));
  cases.push_back(completed_pages_case({8, 4, 64, kMega / 32}, 1024));
  cases.push_back(default_case({8, 4, 64, kMega / 32}));
  cases.push_back(dense_case({4, 8, 1, kMega / 8}));
  cases.push_back(dense_case({4, 8, 1, kMega}));
  cases.push_back(dense_case({8, 4, 64, kMega / 32}));
  const Shape one{4, 8, 1, kMega};
  const auto layer_of = [one] { return Layer(one.geometry(), kGraded8, 1, one.context_tokens, kRotatedBytes); };
  cases.push_back({"cuda.attend.2048.4x8", "2048 listed tokens in whole pages", [=] {
                     const double bytes = attend_bytes(one, 2048);
                     return CudaResult{layer_of().attend_us(2048), bytes, read_us(bytes), 0.0};
                   }});
  for (const bool values : {false, true}) {
    cases.push_back({std::string("cuda.summarize.") + (values ? "values." : "") + one.text(),
                     values ? "all pages of a layer, with the value part" : "all pages of a layer", [=] {
                       const double bytes = attend_bytes(one, one.context_tokens) / (values ? 1 : 2);
                       return CudaResult{layer_of().summarize_us(values), bytes, read_us(bytes), 0.0};
                     }});
  }
  for (const bool fills : {false, true}) {
    cases.push_back({std::string("cuda.summarize.step.") + (fills ? "fills" : "none"),
                     fills ? "a token is written and fills its page" : "a token is written and fills no page",
                     [=] { return CudaResult{layer_of().crossing_us(fills), 0.0, 0.0, 0.0}; }});
  }
  return cases;
}

}  // namespace locks::cli
