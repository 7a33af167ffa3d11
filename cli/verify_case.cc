#include "verify_case.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "verify_shape.h"
#ifdef LOCKS_HAS_CUDA
#include "verify_cuda.h"
#endif

namespace locks::cli {
namespace {

constexpr double kEps = 0x1p-24;
#ifdef LOCKS_HAS_CUDA
// src/score/README.md and src/attend/README.md, on the GPU.
constexpr double kCudaDeviation = 0x1p-16 + 12 * 0x1p-22;  // of each product, for the split and additions
constexpr double kCudaScore = 3e-5;                        // exp and log
constexpr double kCudaFactor = 4.0;
constexpr double kCudaFolds = 400.0;
#endif

/// Finds the first fault of one case.
class Verifier {
 public:
  Verifier(const CaseShape& shape, const CaseData& data, int threads)
      : shape_(shape), data_(data), geometry_(shape.geometry), threads_(threads), pool_(threads) {
    for (int request = 0; request < num_requests(); ++request) {
      for (int head = 0; head < geometry_.query_heads; ++head) {
        bounds_.push_back(attend_bound(shape, data, request, head, shape.lengths[static_cast<std::size_t>(request)]));
      }
    }
    for (std::int64_t page = 0; page < shape.num_pages; ++page) {
      for (int head = 0; head < geometry_.kv_heads; ++head) records_.push_back(data.summaries.decoded(page, head));
    }
    want_ = results(Target::kReference);
  }

  void check(Target target) {
    who_ = fmt::format("{} with {} threads", target_name(target), threads_);
    const Results got = results(target);
    const test::SummaryData summaries = summarised(target);
    check_summaries([&](std::int64_t page, int head) { return summaries.decoded(page, head); });
    check_scores(got.log_mass);
    check_outputs("dense", want_.dense, got.dense);
    check_prefill(got.prefill);
    check_everything_selected(got.everything);
    check_decode_step(got.step);
  }
#ifdef LOCKS_HAS_CUDA
  /// Prompts are the host's on a GPU.
  void check_cuda() {
    who_ = "cuda";
    bounds_ = {};
    for (int request = 0; request < num_requests(); ++request) {
      for (int head = 0; head < geometry_.query_heads; ++head) {
        AttendBound bound = attend_bound(shape_, data_, request, head, shape_.lengths[static_cast<std::size_t>(request)]);
        // Products of parts of numbers (src/attend/README.md) add some roundings to each of the CPU's, and folds to sums.
        bound.error *= kCudaFactor;
        bound.error += kCudaFolds * kEps * bound.largest_value;
        bounds_.push_back(bound);
      }
    }
    on_cuda_ = true;
    deviation_error_ = kCudaDeviation;
    score_error_ = kCudaScore;
    CudaStages stages(shape_, data_);
    check_summaries([&](std::int64_t page, int head) { return stages.summary(page, head); });
    check_scores(stages.log_mass());
    check_outputs("dense", want_.dense, stages.dense());
    Step step;
    step.out = stages.decode(everything(), step.reports);
    check_everything_selected(step);
    step.out = stages.decode(shape_.config, step.reports);
    check_decode_step(step);
  }
#endif
  [[nodiscard]] const std::optional<std::string>& fault() const { return fault_; }

 private:
  struct Step {
    std::vector<float> out;  // [requests, query_heads, head_dim]
    std::vector<DecodeReport> reports;
  };

  struct Results {
    std::vector<float> log_mass;              // [requests, query_heads, pages]
    std::vector<float> dense;                 // [requests, query_heads, head_dim]
    std::vector<std::vector<float>> prefill;  // of each request: [rows, query_heads, head_dim]
    Step everything;                          // the budget covers the context
    Step step;
  };

  [[nodiscard]] Results results(Target target) {
    Results results;
    results.log_mass = scores(target);
    results.dense = dense(target);
    for (int request = 0; request < num_requests(); ++request) results.prefill.push_back(prefill_rows(request, target));
    results.everything = decode_step(everything(), target);
    results.step = decode_step(shape_.config, target);
    return results;
  }

  [[nodiscard]] DecodeConfig everything() const {
    DecodeConfig config = shape_.config;
    config.min_context_tokens = 0;
    config.select.budget_tokens += shape_.longest();
    return config;
  }

  template <class... Arguments>
  void report(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (fault_) return;
    fault_ = fmt::format("{}: {}", who_, fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  /// A value that must be within `bound` of what the reference says; both may be the same infinity.
  void expect_near(double got, double want, double bound, const std::function<std::string()>& place) {
    if (got == want || std::abs(got - want) <= bound) return;
    report("{}: got {:.9g}, want {:.9g}, bound {:.3g}", place(), got, want, bound);
  }

  /// Two good bases of one page may differ, and a rounding may fall the other way: what counts is how well the keys are
  /// told from the record.
  void check_summaries(const std::function<DecodedSummary(std::int64_t, int)>& got) {
    for (std::int64_t page = 0; page < shape_.num_pages; ++page) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        const DecodedSummary& want_record = record(page, head);
        const DecodedSummary got_record = got(page, head);
        if (want_record.always_attend != got_record.always_attend) {
          report("summarize: page {}, head {}: always-attend is {}, want {}", page, head, got_record.always_attend,
                 want_record.always_attend);
        }
        if (want_record.always_attend) continue;
        const auto [size, want_error] = key_error(page, head, want_record);
        const double got_error = key_error(page, head, got_record).second;
        // A tenth of the reference's own error, and what float may lose of the keys themselves.
        if (!(got_error <= 1.1 * want_error + 1e-9 * size + 1e-70)) {
          report("summarize: page {}, head {}: squared error of the keys {:.6g}, the reference's is {:.6g} of {:.6g}", page,
                 head, got_error, want_error, size);
        }
      }
    }
  }

  [[nodiscard]] test::SummaryData summarised(Target target) const {
    const PagedCache values = data_.values.view();
    return {*shape_.format, geometry_.head_dim, geometry_.kv_heads, data_.keys.view(), &values, target};
  }

  /// Sum of the squared keys, and of what the record misses of them.
  [[nodiscard]] std::pair<double, double> key_error(std::int64_t page, int head, const DecodedSummary& record) const {
    double size = 0.0;
    double error = 0.0;
    std::vector<float> key(static_cast<std::size_t>(geometry_.head_dim));
    for (int token = 0; token < kPageTokens; ++token) {
      for (int dim = 0; dim < geometry_.head_dim; ++dim)
        key[static_cast<std::size_t>(dim)] = data_.keys.value(page, token, head, dim);
      if (shape_.format->rotated) rotate(key);
      for (int dim = 0; dim < geometry_.head_dim; ++dim) {
        double told = record.mean[static_cast<std::size_t>(dim)];
        for (int rank = 0; rank < shape_.format->rank; ++rank)
          told += record.coefficients[token][rank] * record.basis[rank][dim];
        const double value = key[static_cast<std::size_t>(dim)];
        size += value * value;
        error += (value - told) * (value - told);
      }
    }
    return {size, error};
  }

  /// Integer sums are exact, so what differs is the scaling of few terms, exp and log.
  void check_scores(const std::vector<float>& got) {
    const int pages = shape_.longest() / kPageTokens;
    for (int request = 0; request < num_requests(); ++request) {
      for (int head = 0; head < geometry_.query_heads; ++head) {
        for (int page = 0; page < shape_.lengths[static_cast<std::size_t>(request)] / kPageTokens; ++page) {
          const auto at = static_cast<std::size_t>((request * geometry_.query_heads + head) * pages + page);
          expect_near(got[at], want_.log_mass[at], score_bound(request, head, page),
                      [&] { return fmt::format("score: request {}, query head {}, page {}", request, head, page); });
        }
      }
    }
  }

  [[nodiscard]] std::vector<float> scores(Target target) {
    const int pages = shape_.longest() / kPageTokens;
    if (pages == 0) return {};
    std::vector<float> log_mass(data_.table.context_tokens.size() * static_cast<std::size_t>(geometry_.query_heads * pages));
    test::Workspace workspace(score_workspace_bytes(geometry_, num_requests()));
    const ScoreArgs args{geometry_,
                         data_.query_view(geometry_),
                         data_.summaries.store(),
                         data_.table.table,
                         contiguous(log_mass.data(), num_requests(), geometry_.query_heads, pages),
                         workspace.span()};
    check_score(args);
    pool_.run([&](Team team) {
      prepare_queries(args, team, target);
      team.sync();
      score(args, team, target);
    });
    return log_mass;
  }

  /// m, and each z_r c_tr, are products of a few floats: 8 roundings; r of them are added; exp, log and the sum of 16
  /// lose 3e-6 in all.
  [[nodiscard]] double score_bound(int request, int query_head, int page) const {
    const int head = query_head / geometry_.group_size();
    const DecodedSummary& summary = record(data_.table.table.page(request, page), head);
    const float* values = data_.query_view(geometry_).at(request, query_head);
    std::vector<float> query(values, values + geometry_.head_dim);
    if (shape_.format->rotated) rotate(query);
    double mean_size = 0.0;
    std::array<double, kMaxRank> coordinate_size{};
    for (int dim = 0; dim < geometry_.head_dim; ++dim) {
      mean_size += std::abs(summary.mean[dim] * query[dim]);
      for (int rank = 0; rank < shape_.format->rank; ++rank)
        coordinate_size[rank] += std::abs(summary.basis[rank][dim] * query[dim]);
    }
    double deviation_size = 0.0;
    for (int token = 0; token < kPageTokens; ++token) {
      double size = 0.0;
      for (int rank = 0; rank < shape_.format->rank; ++rank)
        size += coordinate_size[rank] * std::abs(summary.coefficients[token][rank]);
      deviation_size = std::max(deviation_size, size);
    }
    const double terms = 8.0 + shape_.format->rank;
    return geometry_.softmax_scale *
               (terms * kEps * (mean_size + 2.0 * deviation_size) + 2.0 * deviation_error_ * deviation_size) +
           score_error_;
  }

  [[nodiscard]] std::vector<float> dense(Target target) {
    AttendArgs args;
    args.geometry = geometry_;
    args.queries = data_.query_view(geometry_);
    args.keys = data_.keys.view();
    args.values = data_.values.view();
    args.table = data_.table.table;
    args.num_lists = geometry_.kv_heads;
    test::Workspace workspace(attend_workspace_bytes(geometry_, num_requests(), args.num_lists, threads_));
    args.workspace = workspace.span();
    check_attend(args);
    pool_.run([&](Team team) { attend(args, team, target); });
    const int state_floats = geometry_.head_dim + 2;
    std::vector<float> memory(static_cast<std::size_t>(num_requests() * geometry_.query_heads * state_floats));
    const SoftmaxStates states = contiguous(memory.data(), num_requests(), geometry_.query_heads, state_floats);
    std::vector<float> out(out_floats());
    for (int request = 0; request < num_requests(); ++request) {
      for (int head = 0; head < geometry_.query_heads; ++head)
        states(request, head, 0) = -std::numeric_limits<float>::infinity();
      for (int list = 0; list < args.num_lists; ++list) merge_partials(args, request, list, threads_, states);
      for (int head = 0; head < geometry_.query_heads; ++head) {
        const auto at = static_cast<std::size_t>((request * geometry_.query_heads + head) * geometry_.head_dim);
        finish(states, request, head, std::span(out).subspan(at, static_cast<std::size_t>(geometry_.head_dim)));
      }
    }
    return out;
  }

  void check_prefill(const std::vector<std::vector<float>>& got) {
    for (int request = 0; request < num_requests(); ++request) {
      const auto& rows = got[static_cast<std::size_t>(request)];
      for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(geometry_.head_dim)) {
        const int head = static_cast<int>(first) / geometry_.head_dim % geometry_.query_heads;
        check_head("prefill", request, head, first, want_.prefill[static_cast<std::size_t>(request)], rows);
      }
    }
  }

  /// The last five rows of a prompt, each with the request's own query.
  [[nodiscard]] std::vector<float> prefill_rows(int request, Target target) {
    const int tokens = shape_.lengths[static_cast<std::size_t>(request)];
    std::vector<std::int32_t> row_tokens;
    for (int row = std::max(1, tokens - 4); row <= tokens; ++row) row_tokens.push_back(row);
    View<const float, 3> queries = data_.query_view(geometry_);
    queries.data = queries.at(request);
    queries.shape[0] = static_cast<std::int64_t>(row_tokens.size());
    queries.stride[0] = 0;
    std::vector<float> out(row_tokens.size() * static_cast<std::size_t>(geometry_.query_heads * geometry_.head_dim));
    test::Workspace workspace(prefill_workspace_bytes(geometry_, threads_));
    const View<const std::int32_t, 2>& blocks = data_.table.table.blocks;
    const PrefillArgs args{geometry_,
                           queries,
                           data_.keys.view(),
                           data_.values.view(),
                           {blocks.at(request, 0), static_cast<std::size_t>(blocks.shape[1])},
                           row_tokens,
                           contiguous(out.data(), row_tokens.size(), geometry_.query_heads, geometry_.head_dim),
                           workspace.span()};
    locks::check_prefill(args);
    pool_.run([&](Team team) { prefill(args, team, target); });
    return out;
  }

  /// A budget of everything gives dense attention.
  void check_everything_selected(const Step& got) {
    check_outputs("decode with a budget of everything", want_.dense, got.out);
    for (const DecodeReport& report_of : got.reports) {
      if (report_of.attended_tokens != static_cast<float>(report_of.context_tokens)) {
        report("decode with a budget of everything: {} of {} tokens attended", report_of.attended_tokens,
               report_of.context_tokens);
      }
    }
  }

  [[nodiscard]] Step decode_step(const DecodeConfig& config, Target target) {
    const DecodePlan plan(config, geometry_, {num_requests(), shape_.longest(), threads_});
    test::Workspace workspace(plan.workspace_bytes());
    const DecodeInputs inputs{data_.query_view(geometry_), data_.keys.view(), data_.values.view(), data_.summaries.store(),
                              data_.table.table};
    check_decode(plan, inputs, true);
    Step step{std::vector<float>(out_floats()), std::vector<DecodeReport>(data_.table.context_tokens.size())};
    const auto out = contiguous(step.out.data(), num_requests(), geometry_.query_heads, geometry_.head_dim);
    pool_.run([&](Team team) { run(plan, inputs, out, step.reports, workspace.span(), team, target); });
    return step;
  }

  /// Two pages of nearly equal score may change places between targets, which changes outputs but neither tokens nor
  /// coverage. So counts and coverage are compared, and that outputs are averages of values; the stages themselves are
  /// compared above, and the choice is the same code on every target.
  void check_decode_step(const Step& got) {
    for (int request = 0; request < num_requests(); ++request) {
      const DecodeReport& want_report = want_.step.reports[static_cast<std::size_t>(request)];
      const DecodeReport& got_report = got.reports[static_cast<std::size_t>(request)];
      const auto place = [&](const char* what) {
        return [=] { return fmt::format("decode: request {}, {}", request, what); };
      };
      expect_near(got_report.attended_tokens, want_report.attended_tokens, 0.0, place("attended tokens"));
      // What is selected whole is not completed, and of nearly equal pages another target may select others whole.
      const SelectConfig& select = shape_.config.select;
      const AlwaysAttended always = always_attended(select, want_report.context_tokens, shape_.config.min_context_tokens);
      const int most_whole = always.everything ? 0 : (select.budget_tokens - always.tokens) / kPageTokens;
      expect_near(got_report.completed_pages, want_report.completed_pages, most_whole, place("completed pages"));
      expect_near(static_cast<double>(got_report.attend_bytes), static_cast<double>(want_report.attend_bytes), 0.0,
                  place("attended bytes"));
      expect_near(got_report.coverage, want_report.coverage, coverage_bound(request), place("coverage"));
      expect_near(got_report.coverage, 0.5, 0.5, place("coverage, from 0 to 1"));
      for (int head = 0; head < geometry_.query_heads && want_report.completed_pages == 0.0F; ++head) {
        const AttendBound& bound = bound_of(request, head);
        for (int dim = 0; dim < geometry_.head_dim; ++dim) {
          const float value =
              got.out[static_cast<std::size_t>((request * geometry_.query_heads + head) * geometry_.head_dim + dim)];
          expect_near(value, 0.0, bound.largest_value + bound.error, [&] {
            return fmt::format("decode: request {}, query head {}, component {} (no average of values)", request, head, dim);
          });
        }
      }
    }
  }

  /// Where scores are rounded otherwise, shares change by as much. Keys may be so large that they tell nothing of it.
  [[nodiscard]] double coverage_bound(int request) const {
    constexpr double kSameScores = 1e-3;
    if (!on_cuda_) return kSameScores;
    double largest = 0.0;
    for (int head = 0; head < geometry_.query_heads; ++head) {
      for (int page = 0; page < shape_.lengths[static_cast<std::size_t>(request)] / kPageTokens; ++page) {
        largest = std::max(largest, score_bound(request, head, page));
      }
    }
    return kSameScores + 2.0 * largest;
  }

  void check_outputs(const char* what, const std::vector<float>& want, const std::vector<float>& got) {
    for (int request = 0; request < num_requests(); ++request) {
      for (int head = 0; head < geometry_.query_heads; ++head) {
        const int row = request * geometry_.query_heads + head;
        check_head(what, request, head, static_cast<std::size_t>(row * geometry_.head_dim), want, got);
      }
    }
  }

  void check_head(const char* what, int request, int head, std::size_t first, const std::vector<float>& want,
                  const std::vector<float>& got) {
    for (std::size_t dim = 0; dim < static_cast<std::size_t>(geometry_.head_dim); ++dim) {
      expect_near(got[first + dim], want[first + dim], bound_of(request, head).error,
                  [&] { return fmt::format("{}: request {}, query head {}, component {}", what, request, head, dim); });
    }
  }

  [[nodiscard]] const AttendBound& bound_of(int request, int query_head) const {
    return bounds_[static_cast<std::size_t>(request * geometry_.query_heads + query_head)];
  }
  [[nodiscard]] const DecodedSummary& record(std::int64_t page, int kv_head) const {
    return records_[static_cast<std::size_t>(page * geometry_.kv_heads + kv_head)];
  }
  [[nodiscard]] int num_requests() const { return static_cast<int>(shape_.lengths.size()); }
  [[nodiscard]] std::size_t out_floats() const {
    return shape_.lengths.size() * static_cast<std::size_t>(geometry_.query_heads * geometry_.head_dim);
  }

  const CaseShape& shape_;
  const CaseData& data_;
  const Geometry geometry_;
  const int threads_;
  ThreadPool pool_;
  std::vector<AttendBound> bounds_;      // [requests, query_heads]
  std::vector<DecodedSummary> records_;  // [pages, kv_heads], the reference's
  Results want_;
  std::string who_;
  bool on_cuda_ = false;
  double deviation_error_ = 0.0;  // of a score, beside the CPU's
  double score_error_ = 3e-6;
  std::optional<std::string> fault_;
};

}  // namespace

CaseResult verify_case(std::uint64_t seed, std::uint64_t number, std::span<const Target> targets,
                       [[maybe_unused]] bool cuda) {
  const CaseShape shape(seed, number);
  const CaseData data(shape);
  CaseResult result{shape.text(), std::nullopt};
  try {
    Verifier verifier(shape, data, 1 + static_cast<int>(shape.data_seed % 3));
    for (const Target target : targets) {
      verifier.check(target);
      result.fault = verifier.fault();
      if (result.fault) return result;
    }
#ifdef LOCKS_HAS_CUDA
    if (cuda && CudaStages::take(shape, data)) {
      verifier.check_cuda();
      result.fault = verifier.fault();
      result.on_cuda = true;
    }
#endif
  } catch (const std::exception& error) {
    result.fault = fmt::format("exception: {}", error.what());
  }
  return result;
}

}  // namespace locks::cli
