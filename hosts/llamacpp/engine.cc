#include "engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <string>

#include "exact.h"
#include "report.h"

namespace locks::llamacpp {
namespace {

double now() noexcept { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::span<std::byte> AlignedBuffer::at_least(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (bytes > size_) {
    memory_.reset();
    size_ = 0;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kAlignment);
    size_ = bytes;
  }
  void* at = memory_.get();
  std::size_t space = size_ + kAlignment;
  if (at == nullptr || std::align(kAlignment, bytes, at, space) == nullptr) return {};
  return {static_cast<std::byte*>(at), bytes};
}

// ---- what the front ends see

void Engine::ensure_state(const ggml_tensor* key_root) {
  if (state_ && state_->is_of(key_root)) return;
  state_.reset();
  first_layer_ = nullptr;
  sliding_ = false;
  traced_cache_.reset();
  state_.emplace(host_, settings_, key_root);
  reporter().count([](Counters& c) { ++c.caches; });
}

void Engine::meet(const ggml_tensor* key_root) {
  const std::lock_guard lock(mutex_);
  ensure_state(key_root);
}

void Engine::observe_write(const ggml_tensor* key_root, const ggml_tensor* indices) {
  const std::lock_guard lock(mutex_);
  ensure_state(key_root);
  state_->observe_write(key_root->data, indices);
}

void Engine::observe_shift() {
  const std::lock_guard lock(mutex_);
  if (state_) state_->observe_shift();
}

void Engine::observe_unseen_writes() {
  const std::lock_guard lock(mutex_);
  if (state_) state_->observe_unseen_writes();
}

void Engine::remember_indices(const void* key_data, ggml_tensor* indices) {
  const std::lock_guard lock(mutex_);
  indices_[key_data] = indices;
}

ggml_tensor* Engine::indices_of(const void* key_data) {
  const std::lock_guard lock(mutex_);
  const auto found = indices_.find(key_data);
  return found == indices_.end() ? nullptr : found->second;
}

bool Engine::is_first_layer(const void* key_data) {
  const std::lock_guard lock(mutex_);
  if (first_layer_ == nullptr) first_layer_ = key_data;
  return first_layer_ == key_data;
}

bool Engine::is_sliding_window() {
  const std::lock_guard lock(mutex_);
  return sliding_;
}

void Engine::set_sliding_window() {
  const std::lock_guard lock(mutex_);
  sliding_ = true;
}

void Engine::forget() {
  const std::lock_guard lock(mutex_);
  state_.reset();
  indices_.clear();
  first_layer_ = nullptr;
  sliding_ = false;
}

// ---- the callback

void Engine::attend(ggml_tensor* node, int thread, int num_threads) noexcept {
  const Team team{thread, num_threads, &barrier_};
  if (thread == 0) {
    mutex_.lock();
    job_.readable = false;
    try {
      prepare(node, num_threads);
    } catch (const std::exception& error) {
      reporter().say_once(Notice::kCallFailed, std::string("attended exactly, without pages: ") + error.what());
      job_.exact = true;
      if (state_) state_->observe_unseen_writes();  // pages may count as summarised that were not reached
    }
  }
  team.sync();
  if (job_.readable) compute(team);
  team.sync();
  if (thread == 0) {
    count_call();
    mutex_.unlock();
  }
}

void Engine::prepare(ggml_tensor* node, int num_threads) {
  job_.exact = true;
  job_.layer = nullptr;
  const auto* const params = reinterpret_cast<const unsigned char*>(node->op_params) + kSavedParamsAt;
  const Decline reason = read_attention_node(host_, node, params, job_.node);
  if (reason != Decline::kNone) {
    reporter().say_once(Notice::kNodeChanged,
                        "a node that was taken can no longer be read: " + std::string(decline_text(reason)));
    return;
  }
  job_.readable = true;
  ensure_state(job_.node.key_root);
  job_.layer = &state_->begin_layer(job_.node, node->src[kIndicesSource]);
  sliding_ = sliding_ || state_->is_sliding_window();
  const StepPlan& plan = state_->plan();
  if (!plan.mapped) return;

  const bool in_order = plan.in_cell_order;
  for (PagedCache* cache : {&job_.node.keys, &job_.node.values}) {
    cache->num_pages = in_order ? state_->map().num_cells() / kPageTokens : state_->map().num_pages();
    cache->page_slots = in_order ? nullptr : state_->map().page_slots();
  }
  prepare_pages(num_threads);
  prepare_decode(num_threads);
  prepare_prefill(num_threads);
  job_.exact = false;
}

void Engine::prepare_pages(int num_threads) {
  state_->take_unsummarized(*job_.layer, pages_);
  summarize_reports_.assign(static_cast<std::size_t>(num_threads), {});
  // A rival has no summaries, and a dense layer reads none; what is marked shows whether keys changed unseen.
  if (settings_.rival || is_dense_layer()) pages_.clear();
  if (pages_.empty()) return;
  const Geometry& geometry = job_.node.geometry;
  job_.summarize = {geometry.head_dim,
                    geometry.kv_heads,
                    job_.node.keys,
                    settings_.keeps_values() ? &job_.node.values : nullptr,
                    pages_,
                    job_.layer->summaries()};
  check_summarize(job_.summarize);
}

void Engine::prepare_decode(int num_threads) {
  const StepPlan& plan = state_->plan();
  decode_items_.clear();
  decode_tokens_.clear();
  std::size_t most_pages = 0;
  bool one_sequence = true;
  int first_sequence = -1;
  for (const RowRun& run : plan.runs) {
    if (!run.decode) continue;
    if (first_sequence < 0) first_sequence = run.sequence;
    one_sequence = one_sequence && run.sequence == first_sequence;
    most_pages = std::max(most_pages, state_->map().pages(run.sequence).size());
    for (std::int64_t i = 0; i < run.num_rows; ++i) {
      decode_items_.push_back(static_cast<std::int64_t>(run.first_item) + i);
      decode_tokens_.push_back(plan.row_tokens[run.first_item + static_cast<std::size_t>(i)]);
    }
  }
  if (decode_items_.empty()) return;
  const std::size_t requests = decode_items_.size();
  PageTable& table = job_.decode.table;
  table.block_tokens = kPageTokens;
  table.context_tokens = decode_tokens_;
  const std::array<std::int64_t, 2> shape{static_cast<std::int64_t>(requests), static_cast<std::int64_t>(most_pages)};
  if (one_sequence) {
    table.blocks = {state_->map().pages(first_sequence).data(), shape, {0, 1}};
  } else {
    decode_blocks_.resize(requests * most_pages);
    std::size_t request = 0;
    for (const RowRun& run : plan.runs) {
      if (!run.decode) continue;
      const auto pages = state_->map().pages(run.sequence);
      for (std::int64_t i = 0; i < run.num_rows; ++i, ++request) {
        std::copy(pages.begin(), pages.end(), decode_blocks_.begin() + static_cast<std::ptrdiff_t>(request * most_pages));
      }
    }
    table.blocks = {decode_blocks_.data(), shape, {static_cast<std::int64_t>(most_pages), 1}};
  }

  limits_.max_requests = std::max(limits_.max_requests, static_cast<int>(requests));
  limits_.max_threads = std::max(limits_.max_threads, num_threads);
  limits_.max_context_tokens = static_cast<int>(state_->stream_cells());
  job_.rival = nullptr;
  job_.plan = nullptr;
  if (settings_.rival && !is_dense_layer()) {
    prepare_rival();
  } else {
    DecodeConfig config = settings_.rival ? DecodeConfig{} : settings_.decode;
    if (is_dense_layer()) config.min_context_tokens = std::numeric_limits<int>::max();
    job_.plan = &job_.layer->plan(config, limits_);
  }
  const Geometry& geometry = job_.node.geometry;
  const std::size_t floats = requests * static_cast<std::size_t>(geometry.query_heads * geometry.head_dim);
  auto* const gathered = reinterpret_cast<float*>(gathered_memory_.at_least(2 * floats * sizeof(float)).data());
  const auto count = static_cast<std::int64_t>(requests);
  job_.decode.queries = contiguous<const float>(gathered, count, geometry.query_heads, geometry.head_dim);
  job_.decode_out = contiguous(gathered + floats, count, geometry.query_heads, geometry.head_dim);
  job_.decode.keys = job_.node.keys;
  job_.decode.values = job_.node.values;
  job_.decode.summaries = job_.layer->summaries();
  reports_.assign(requests, {});
  coverage_.assign(requests * static_cast<std::size_t>(geometry.kv_heads), 0.0F);
  job_.coverage = contiguous(coverage_.data(), count, geometry.kv_heads);
  reporter().count([&](Counters& c) {
    const auto layer = static_cast<std::size_t>(job_.layer->index());
    const auto heads = static_cast<std::size_t>(geometry.kv_heads);
    if (c.coverage_of_layers.size() <= layer) c.coverage_of_layers.resize(layer + 1);
    if (c.coverage_of_layers[layer].sums.size() < heads) c.coverage_of_layers[layer].sums.resize(heads);
  });
  if (job_.plan == nullptr) return;
  check_decode(*job_.plan, job_.decode, false);
  workspace_ = workspace_memory_.at_least(job_.plan->workspace_bytes());
}

void Engine::prepare_rival() {
  const StepPlan& plan = state_->plan();
  selectors_.clear();
  for (const RowRun& run : plan.runs) {
    if (!run.decode) continue;
    Selector& selector = rival_of(run.sequence);
    if (selector.lacks_prompt()) {
      reporter().say_once(Notice::kPromptUnseen, "the selector " + settings_.selector +
                                                     " has not seen the prompt of a sequence (restored, shifted, shared, or "
                                                     "with tokens taken back) and keeps all of it");
    }
    selectors_.insert(selectors_.end(), static_cast<std::size_t>(run.num_rows), &selector);
  }
  job_.rival = &job_.layer->selector_step(*settings_.rival, settings_.decode.min_context_tokens);
}

Selector& Engine::rival_of(int sequence) {
  const PageMap& map = state_->map();
  return job_.layer->selector(*settings_.rival, sequence, map.identity(sequence), map.epoch());
}

bool Engine::is_dense_layer() const noexcept { return job_.layer->index() < settings_.dense_layers; }

void Engine::prepare_prefill(int num_threads) {
  const StepPlan& plan = state_->plan();
  prefills_.clear();
  prompt_selectors_.clear();
  for (const RowRun& run : plan.runs) {
    if (run.decode) continue;
    const std::span all(plan.row_tokens);
    PrefillArgs args{job_.node.geometry,
                     job_.node.query_rows(run.stream, run.first_row, run.num_rows),
                     job_.node.keys,
                     job_.node.values,
                     state_->map().pages(run.sequence),
                     all.subspan(run.first_item, static_cast<std::size_t>(run.num_rows)),
                     job_.node.output_rows(run.stream, run.first_row, run.num_rows),
                     {}};
    prefills_.push_back(args);
    if (settings_.rival && !is_dense_layer()) prompt_selectors_.push_back(&rival_of(run.sequence));
  }
  if (prefills_.empty()) return;
  const std::size_t bytes = prefill_workspace_bytes(job_.node.geometry, num_threads);
  const bool decodes = !decode_items_.empty() && job_.plan != nullptr;
  workspace_ = workspace_memory_.at_least(decodes ? std::max(bytes, job_.plan->workspace_bytes()) : bytes);
  for (PrefillArgs& args : prefills_) {
    args.workspace = workspace_;
    check_prefill(args);
  }
}

void Engine::compute(Team team) {
  if (job_.exact) {
    attend_exactly(job_.node, team);
    return;
  }
  const double started = now();
  if (!pages_.empty()) {
    summarize_reports_[static_cast<std::size_t>(team.index)] = summarize(job_.summarize, team, target_);
    team.sync();
  }
  const double summarized = now();
  if (!decode_items_.empty()) {
    copy_queries(team);
    team.sync();
    if (!decode(team)) {
      if (team.index == 0) {
        reporter().say_once(Notice::kCallFailed, "attended exactly, without pages: a selector failed");
        job_.exact = true;
      }
      attend_exactly(job_.node, team);
      return;
    }
    team.sync();
    copy_outputs(team);
  }
  const double decoded = now();
  if (trace_ != nullptr && !decode_items_.empty()) {
    if (team.index == 0) trace_rows();
    team.sync();
  }
  const double traced = now();
  for (const PrefillArgs& args : prefills_) {
    prefill(args, team, target_);
    team.sync();
  }
  if (!prompt_selectors_.empty()) show_prompts(team);
  if (team.index != 0) return;
  summarize_seconds_ = summarized - started;
  decode_seconds_ = decoded - summarized;
  prefill_seconds_ = now() - traced;
}

void Engine::show_prompts(Team team) noexcept {
  const Geometry& geometry = job_.node.geometry;
  const int group = geometry.group_size();
  const auto [first, last] = team.share(geometry.kv_heads);
  for (std::size_t i = 0; i < prefills_.size(); ++i) {
    const PrefillArgs& args = prefills_[i];
    const Sequence sequence{args.keys, args.values, args.blocks, args.row_tokens.back()};
    for (auto kv_head = static_cast<int>(first); kv_head < last; ++kv_head) {
      try {
        prompt_selectors_[i]->read_prompt(
            sequence, kv_head,
            {args.queries.at(0, kv_head * group), {args.queries.shape[0], group, geometry.head_dim}, args.queries.stride});
      } catch (...) {
        prompt_unseen_ = true;
      }
    }
  }
  team.sync();
  if (team.index == 0 && prompt_unseen_.exchange(false)) job_.layer->forget_selectors();
}

bool Engine::decode(Team team) {
  if (job_.rival != nullptr) {
    return job_.rival->run(job_.decode, selectors_, job_.decode_out, reports_, team, target_, job_.coverage);
  }
  run(*job_.plan, job_.decode, job_.decode_out, reports_, workspace_, team, target_, job_.coverage);
  return true;
}

void Engine::trace_rows() noexcept {
  if (job_.plan == nullptr || !trace_->goes_on()) return;
  try {
    if (!traced_cache_ || traced_step_ != state_->step()) traced_.step = trace_->next_step();
    if (!traced_cache_) traced_cache_ = trace_->next_cache();
    traced_step_ = state_->step();
    traced_.cache = *traced_cache_;
    traced_.layer = job_.layer->index();
    traced_.row = 0;
    for (const RowRun& run : state_->plan().runs) {
      if (!run.decode) continue;
      traced_.sequence = state_->map().identity(run.sequence);
      for (std::int64_t i = 0; i < run.num_rows; ++i, ++traced_.row) {
        traced_.report = reports_[static_cast<std::size_t>(traced_.row)];
        trace_row(*job_.plan, job_.decode, workspace_, traced_.row, traced_);
        trace_->append(traced_);
      }
    }
  } catch (const std::exception& error) {
    trace_->end(error.what());
  }
}

void Engine::copy_queries(Team team) const noexcept {
  const auto [first, last] = team.share(static_cast<std::int64_t>(decode_items_.size()));
  const Geometry& geometry = job_.node.geometry;
  auto* const into = const_cast<float*>(job_.decode.queries.data);
  for (std::int64_t request = first; request < last; ++request) {
    const std::int64_t item = decode_items_[static_cast<std::size_t>(request)];
    const auto from = job_.node.query_rows(item / job_.node.rows, item % job_.node.rows, 1);
    for (int head = 0; head < geometry.query_heads; ++head) {
      std::copy_n(from.at(0, head), geometry.head_dim, into + (request * geometry.query_heads + head) * geometry.head_dim);
    }
  }
}

void Engine::copy_outputs(Team team) const noexcept {
  const auto [first, last] = team.share(static_cast<std::int64_t>(decode_items_.size()));
  const Geometry& geometry = job_.node.geometry;
  for (std::int64_t request = first; request < last; ++request) {
    const std::int64_t item = decode_items_[static_cast<std::size_t>(request)];
    const auto into = job_.node.output_rows(item / job_.node.rows, item % job_.node.rows, 1);
    for (int head = 0; head < geometry.query_heads; ++head) {
      std::copy_n(job_.decode_out.at(request, head), geometry.head_dim, into.at(0, head));
    }
  }
}

std::int64_t Engine::held_bytes(std::size_t request) const noexcept {
  if (settings_.is_dense() || is_dense_layer()) return 0;
  const std::int32_t tokens = job_.decode.table.context_tokens[request];
  if (!settings_.rival) return job_.layer->summary_bytes_of_page() * (tokens / kPageTokens);
  if (reports_[request].dense) return 0;
  const auto* const blocks = job_.decode.table.blocks.at(static_cast<std::int64_t>(request));
  const Sequence sequence{
      job_.decode.keys, job_.decode.values, {blocks, static_cast<std::size_t>(pages_for(tokens))}, tokens};
  return selectors_[request]->held_bytes(sequence) * job_.node.geometry.kv_heads;
}

void Engine::count_call() noexcept {
  reporter().count([&](Counters& c) {
    if (!job_.readable) return;
    if (job_.exact) {
      ++c.exact_calls;
      return;
    }
    const auto pages = static_cast<std::int64_t>(pages_.size());
    c.summarized_pages += pages;
    c.summary_share = job_.layer->share_of_f16();
    c.summarize_seconds += summarize_seconds_;
    if (state_->restoring()) {
      c.restored_pages += pages;
      if (pages > 0) c.restore_seconds += summarize_seconds_;
    }
    for (const SummarizeReport& report : summarize_reports_) c.not_finite_records += report.not_finite_records;
    if (!prefills_.empty()) {
      ++c.prefill_calls;
      c.prefill_seconds += prefill_seconds_;
    }
    if (decode_items_.empty()) return;
    if (prefills_.empty()) ++c.decode_calls;
    c.decode_seconds += decode_seconds_;
    Counters::LayerCoverage& of_layer = c.coverage_of_layers[static_cast<std::size_t>(job_.layer->index())];
    const auto kv_heads = static_cast<std::size_t>(job_.node.geometry.kv_heads);
    for (std::size_t request = 0; request < reports_.size(); ++request) {
      const DecodeReport& report = reports_[request];
      ++c.requests;
      ++of_layer.requests;
      for (std::size_t head = 0; head < kv_heads; ++head)
        of_layer.sums[head] += double{coverage_[request * kv_heads + head]};
      c.held_bytes += held_bytes(request);
      if (!report.dense) ++c.sparse_requests;
      c.context_tokens += report.context_tokens;
      c.last_context_tokens = report.context_tokens;
      c.attended_tokens += static_cast<double>(report.attended_tokens);
      c.coverage += static_cast<double>(report.coverage);
      c.completed_pages += static_cast<double>(report.completed_pages);
      c.score_bytes += report.score_bytes;
      c.attend_bytes += report.attend_bytes;
      c.complete_bytes += report.complete_bytes;
      c.dense_bytes += report.dense_bytes;
    }
  });
}

}  // namespace locks::llamacpp
