#include "support/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "locks/rotation.h"

namespace locks::test {
namespace {

constexpr double kEpsilon = 0x1p-24;

int pages_of(const StepSpec& spec) {
  std::int64_t blocks = 0;
  for (const std::int32_t tokens : spec.lengths) blocks += (tokens + spec.block_tokens - 1) / spec.block_tokens;
  return static_cast<int>(std::max<std::int64_t>(1, blocks)) * (spec.block_tokens / kPageTokens);
}

CacheData cache_of(const StepSpec& spec, Content content, std::uint64_t seed) {
  return {spec.dtype, spec.layout, pages_of(spec), spec.kv_heads, spec.head_dim, spec.block_tokens, content, seed};
}

Geometry geometry_of(const StepSpec& spec) {
  return {spec.head_dim, spec.kv_heads, spec.kv_heads * spec.group, 1.0F / std::sqrt(static_cast<float>(spec.head_dim))};
}

/// Softmax attention of one head as a growing sum of weights, relative to a fixed logit.
struct Sum {
  double origin = 0.0;
  double weight = 0.0;
  std::vector<double> value;
  std::vector<double> magnitude;  // sum of weight * |value|
  double grain = 0.0;             // what products below the normal range may lose

  void add(double w, const std::vector<double>& v) {
    weight += w;
    for (std::size_t dim = 0; dim < v.size(); ++dim) {
      value[dim] += w * v[dim];
      magnitude[dim] += w * std::abs(v[dim]);
    }
  }
};

class Oracle {
 public:
  Oracle(const DecodeConfig& config, const StepData& data, Target target) : config_(config), data_(data), target_(target) {
    const int requests = data.table.table.num_requests();
    int longest = 1;
    for (int request = 0; request < requests; ++request) longest = std::max(longest, data.table.table.filled_pages(request));
    score_workspace_ = std::make_unique<Workspace>(score_workspace_bytes(data.geometry, requests));
    log_mass_.resize(static_cast<std::size_t>(requests) * data.geometry.query_heads * longest);
    args_ = {data.geometry,
             data.inputs().queries,
             data.summaries,
             data.table.table,
             contiguous(log_mass_.data(), requests, data.geometry.query_heads, longest),
             score_workspace_->span()};
    prepare_queries(args_, Team{}, target);
    score(args_, Team{}, target);
  }

  ExpectedStep all() {
    const int requests = data_.table.table.num_requests();
    const bool per_head = config_.select.combine == GroupCombine::kPerQueryHead;
    num_lists_ = per_head ? data_.geometry.query_heads : data_.geometry.kv_heads;
    expected_.coverage.resize(static_cast<std::size_t>(requests * data_.spec.kv_heads));
    for (int request = 0; request < requests; ++request) {
      report_ = {};
      const int context = data_.table.context_tokens[request];
      always_ = always_attended(config_.select, context);
      if (context < config_.min_context_tokens) {
        always_ = {};
        always_.filled_pages = context / kPageTokens;
        always_.tail_tokens = context % kPageTokens;
        always_.tokens = context;
        always_.everything = true;
      }
      double tokens = 0.0;
      double completed = 0.0;
      double coverage = 0.0;
      for (int list = 0; list < num_lists_; ++list) {
        one_list(request, list);
        for (const SelectedPage& entry : selected_) tokens += std::popcount(entry.mask);
        completed += static_cast<double>(completed_.size());
        coverage += coverage_;
        expected_
            .coverage[static_cast<std::size_t>(request * data_.spec.kv_heads + list * data_.spec.kv_heads / num_lists_)] +=
            coverage_ / data_.spec.group;
        expected_.selected.push_back(selected_);
      }
      const std::int64_t rows = row_bytes(data_.spec.dtype, data_.spec.head_dim) * 2;
      report_.context_tokens = context;
      report_.dense = always_.everything;
      report_.attended_tokens = static_cast<float>(always_.tokens + tokens / num_lists_);
      report_.completed_pages = static_cast<float>(completed / num_lists_);
      report_.coverage = static_cast<float>(coverage / data_.geometry.query_heads);
      report_.dense_bytes = rows * data_.spec.kv_heads * context;
      report_.attend_bytes = rows * (std::int64_t{data_.spec.kv_heads} * always_.tokens + static_cast<std::int64_t>(tokens));
      const SummaryFormat& format = *data_.spec.format;
      report_.score_bytes = std::int64_t{always_.everything ? 0 : always_.first_recent_page} * data_.spec.kv_heads *
                            record_layout(format, data_.spec.head_dim).record_bytes;
      report_.complete_bytes = static_cast<std::int64_t>(completed) * value_layout(format, data_.spec.head_dim).record_bytes;
      expected_.reports.push_back(report_);
    }
    return std::move(expected_);
  }

 private:
  double logit(int request, int head, int page, int token) {
    const int kv_head = head / data_.spec.group;
    const std::int64_t number = data_.table.table.page(request, page);
    double dot = 0.0;
    double magnitude = 0.0;
    for (int dim = 0; dim < data_.spec.head_dim; ++dim) {
      const double product = double{query(request, head)[dim]} * data_.keys.value(number, token, kv_head, dim);
      dot += product;
      magnitude += std::abs(product);
    }
    largest_magnitude_ = std::max(largest_magnitude_, magnitude * data_.geometry.softmax_scale);
    return dot * data_.geometry.softmax_scale;
  }
  const float* query(int request, int head) const {
    return &data_.queries[(static_cast<std::size_t>(request) * data_.geometry.query_heads + head) * data_.spec.head_dim];
  }
  std::vector<double> value(int request, int head, int page, int token) const {
    std::vector<double> out(data_.spec.head_dim);
    const std::int64_t number = data_.table.table.page(request, page);
    for (int dim = 0; dim < data_.spec.head_dim; ++dim)
      out[dim] = data_.values.value(number, token, head / data_.spec.group, dim);
    return out;
  }

  std::vector<SelectedPage> always_list() const {
    std::vector<SelectedPage> list;
    for (int page = 0; page < always_.sink_pages; ++page) list.push_back({page, kWholePage});
    for (int page = always_.first_recent_page; page < always_.filled_pages; ++page) list.push_back({page, kWholePage});
    if (always_.tail_tokens > 0)
      list.push_back({always_.filled_pages, static_cast<std::uint16_t>((1 << always_.tail_tokens) - 1)});
    return list;
  }

  double attend(Sum& sum, int request, int head, const std::vector<SelectedPage>& list) {
    std::vector<double> logits;
    for (const SelectedPage& entry : list) {
      for (int token = 0; token < kPageTokens; ++token) {
        if ((entry.mask >> token & 1) != 0) logits.push_back(logit(request, head, entry.page, token));
      }
    }
    if (logits.empty()) return -std::numeric_limits<double>::infinity();
    const double peak = *std::max_element(logits.begin(), logits.end());
    if (sum.weight == 0.0) sum.origin = peak;
    std::size_t next = 0;
    double mass = 0.0;
    for (const SelectedPage& entry : list) {
      for (int token = 0; token < kPageTokens; ++token) {
        if ((entry.mask >> token & 1) == 0) continue;
        const double weight = std::exp(logits[next++] - sum.origin);
        mass += weight;
        sum.add(weight, value(request, head, entry.page, token));
      }
    }
    return sum.origin + std::log(mass);
  }

  void complete(Sum& sum, int request, int head, double skipped_log_mass, const View<float, 3>& logits, int head_in_group) {
    const int kv_head = head / data_.spec.group;
    const std::size_t dims = data_.spec.head_dim;
    double whole = 0.0;
    double grain = 0.0;
    std::vector<double> mean(dims);
    double peak = -1e300;
    for (std::size_t i = 0; i < completed_.size(); ++i) {
      for (int token = 0; token < kPageTokens; ++token) {
        if ((completed_[i].mask >> token & 1) != 0) peak = std::max<double>(peak, logits(i, head_in_group, token));
      }
    }
    for (std::size_t i = 0; i < completed_.size(); ++i) {
      const std::int64_t page = data_.table.table.page(request, completed_[i].page);
      const DecodedSummary summary =
          decode_record(*data_.spec.format, data_.spec.head_dim, data_.summaries.record(page, kv_head));
      const DecodedValues values =
          decode_value_record(*data_.spec.format, data_.spec.head_dim, data_.summaries.value_record(page, kv_head));
      for (int token = 0; token < kPageTokens; ++token) {
        if ((completed_[i].mask >> token & 1) == 0) continue;
        const double weight = std::exp(logits(i, head_in_group, token) - peak);
        whole += weight;
        double slopes = 0.0;
        for (std::size_t dim = 0; dim < dims; ++dim) {
          double estimate = values.mean[dim];
          for (int rank = 0; rank < data_.spec.format->rank; ++rank) {
            estimate += values.slopes[rank][dim] * summary.coefficients[token][rank];
            slopes += std::abs(values.slopes[rank][dim]);
          }
          mean[dim] += weight * estimate;
        }
        grain += weight * slopes * 0x1p-149;
      }
    }
    if (whole == 0.0) return;
    std::vector<float> rotated(dims);
    for (std::size_t dim = 0; dim < dims; ++dim) rotated[dim] = static_cast<float>(mean[dim] / whole);
    double length = 0.0;  // a rotation mixes all components, and so their errors
    for (const float component : rotated) length += double{component} * component;
    rotate_back(rotated);
    const double weight = std::exp(skipped_log_mass - sum.origin);
    sum.add(weight, {rotated.begin(), rotated.end()});
    for (double& magnitude : sum.magnitude) magnitude += 4 * weight * std::sqrt(length);
    sum.grain += weight * grain / whole;
  }

  void one_list(int request, int list) {
    const int heads = data_.geometry.query_heads / num_lists_;
    const int first_head = list * heads;
    const int kv_head = first_head / data_.spec.group;
    const int offset = first_head - kv_head * data_.spec.group;
    const auto pages = static_cast<int>(args_.log_mass.shape[2]);
    std::vector<Sum> sums(heads);
    std::vector<float> always_log_mass(heads), log_norm(heads), share(pages), selectable(heads), skipped(heads);
    largest_magnitude_ = 0.0;
    for (int head = 0; head < heads; ++head) {
      sums[head].value.resize(data_.spec.head_dim);
      sums[head].magnitude.resize(data_.spec.head_dim);
      always_log_mass[head] = static_cast<float>(attend(sums[head], request, first_head + head, always_list()));
    }
    selected_.clear();
    completed_.clear();
    coverage_ = heads;
    if (!always_.everything) {
      std::vector<float> memory(static_cast<std::size_t>(heads) * pages);
      const ListShares shares{contiguous(memory.data(), heads, pages), log_norm, share, selectable};
      const View<const float, 2> log_mass{
          args_.log_mass.at(request, first_head), {heads, pages}, {args_.log_mass.stride[1], 1}};
      const SelectConfig& config = config_.select;
      std::vector<std::int32_t> order(static_cast<std::size_t>(pages) * 16), candidates(pages);
      candidates.resize(select_pages(config, always_, {log_mass, always_log_mass}, shares, order, candidates, target_));
      std::vector<float> logits(static_cast<std::size_t>(pages) * data_.spec.group * 16), parts(2 * logits.size());
      const auto view = contiguous(logits.data(), candidates.size(), data_.spec.group, 16);
      score_tokens(args_, request, kv_head, candidates, view, target_);
      const View<const float, 3> own{view.at(0, offset), {view.shape[0], heads, 16}, view.stride};
      selected_.resize(candidates.size());
      selected_.resize(select_parts(config, always_, candidates, own, shares, parts, order, selected_, target_));
      sum_skipped(config, always_, candidates, parts, selected_, shares, skipped);
      completed_.resize(pages);
      completed_.resize(select_completion(config, always_, selected_, share, order, completed_));
      for (int head = 0; head < heads; ++head) coverage_ -= std::exp(double{skipped[head]} - log_norm[head]);
      std::vector<std::int32_t> completed_pages;
      for (const SelectedPage& entry : completed_) completed_pages.push_back(entry.page);
      const auto completed_logits = contiguous(logits.data(), completed_pages.size(), data_.spec.group, 16);
      score_tokens(args_, request, kv_head, completed_pages, completed_logits, target_);
      for (int head = 0; head < heads; ++head) {
        attend(sums[head], request, first_head + head, selected_);
        if (!completed_.empty())
          complete(sums[head], request, first_head + head, skipped[head], completed_logits, offset + head);
      }
    }
    // A logit's error moves every weight by that much, in the numerator and in the sum; then come exp and the sums.
    const double relative = kEpsilon * (4 * (data_.spec.head_dim / 8 + 8) * largest_magnitude_ + 64);
    for (int head = 0; head < heads; ++head) {
      for (int dim = 0; dim < data_.spec.head_dim; ++dim) {
        const double weight = sums[head].weight;
        expected_.out.push_back(weight > 0 ? sums[head].value[dim] / weight : 0.0);
        expected_.bound.push_back(weight > 0 ? (relative * sums[head].magnitude[dim] + sums[head].grain) / weight + 1e-37
                                             : 0.0);
      }
    }
  }

  const DecodeConfig& config_;
  const StepData& data_;
  const Target target_;
  std::unique_ptr<Workspace> score_workspace_;
  std::vector<float> log_mass_;
  ScoreArgs args_;
  AlwaysAttended always_;
  int num_lists_ = 0;
  std::vector<SelectedPage> selected_;
  std::vector<SelectedPage> completed_;
  double coverage_ = 0.0;
  double largest_magnitude_ = 0.0;
  DecodeReport report_;
  ExpectedStep expected_;
};

}  // namespace

StepData::StepData(const StepSpec& given)
    : spec(given),
      geometry(geometry_of(given)),
      keys(cache_of(given, given.content, given.seed)),
      values(cache_of(given, Content::kNormal, given.seed + 1)),
      table(given.lengths, pages_of(given), given.block_tokens, given.seed + 2),
      queries(normal_floats(given.lengths.size() * geometry.query_heads * given.head_dim, given.seed + 3)) {
  summarize_all();
}

void StepData::summarize_all() {
  const int num_pages = pages_of(spec);
  summary_memory.assign(static_cast<std::size_t>(summary_bytes(*spec.format, spec.head_dim, spec.kv_heads, num_pages, true)),
                        {});
  summaries = make_store(*spec.format, spec.head_dim, spec.kv_heads, num_pages, true, summary_memory.data());
  std::vector<std::int32_t> pages(num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  SummarizeArgs args;
  args.head_dim = spec.head_dim;
  args.kv_heads = spec.kv_heads;
  args.keys = keys.view();
  args.values = &values.view();
  args.pages = pages;
  args.out = summaries;
  const bool on_gpu_only = spec.dtype == DType::kE4M3;  // the reference reads it, the CPU's doors refuse it
  if (!on_gpu_only) check_summarize(args);
  summarize(args, Team{}, on_gpu_only ? Target::kReference : supported_targets().back());
}

DecodeInputs StepData::inputs() const {
  DecodeInputs inputs;
  inputs.queries = contiguous<const float>(queries.data(), spec.lengths.size(), geometry.query_heads, spec.head_dim);
  inputs.keys = keys.view();
  inputs.values = values.view();
  inputs.summaries = summaries;
  inputs.table = table.table;
  return inputs;
}

StepResult run_step(const DecodeConfig& config, const StepData& data, Target target, int num_threads) {
  DecodeLimits limits;
  limits.max_requests = std::max<int>(1, static_cast<int>(data.spec.lengths.size()));
  limits.max_context_tokens = 1;
  for (const std::int32_t tokens : data.spec.lengths)
    limits.max_context_tokens = std::max(limits.max_context_tokens, tokens);
  limits.max_threads = num_threads;
  const DecodePlan plan(config, data.geometry, limits);
  const DecodeInputs inputs = data.inputs();
  if (data.spec.dtype != DType::kE4M3) check_decode(plan, inputs, true);
  Workspace workspace(plan.workspace_bytes());
  std::fill(workspace.span().begin(), workspace.span().end(), std::byte{0xFF});  // NaN where nothing was written
  StepResult result;
  result.out.assign(data.queries.size(), std::numeric_limits<float>::quiet_NaN());
  result.reports.resize(data.spec.lengths.size());
  const auto out = contiguous(result.out.data(), data.spec.lengths.size(), data.geometry.query_heads, data.spec.head_dim);
  result.coverage.resize(data.spec.lengths.size() * data.spec.kv_heads);
  const auto coverage = contiguous(result.coverage.data(), data.spec.lengths.size(), data.spec.kv_heads);
  ThreadPool pool(num_threads);
  pool.run([&](Team team) { run(plan, inputs, out, result.reports, workspace.span(), team, target, coverage); });
  return result;
}

ExpectedStep expected_step(const DecodeConfig& config, const StepData& data, Target target) {
  return Oracle(config, data, target).all();
}

}  // namespace locks::test
