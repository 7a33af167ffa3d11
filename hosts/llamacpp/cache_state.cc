#include "cache_state.h"

#include <algorithm>

#include "locks/select.h"
#include "mask.h"
#include "report.h"

namespace locks::llamacpp {
namespace {

constexpr int kSparePages = 128;
constexpr std::int32_t kMaxDecodeRows = 8;  // of one sequence in a step: drafted tokens, a short message
constexpr std::uint64_t kSlidesOfWindow = 2;

std::int64_t index_at(const ggml_tensor* indices, std::int64_t i) noexcept {
  return indices->type == GGML_TYPE_I64 ? static_cast<const std::int64_t*>(indices->data)[i]
                                        : static_cast<const std::int32_t*>(indices->data)[i];
}

std::uint64_t hash_of(const ggml_tensor* indices) noexcept {
  std::uint64_t hash = 0;
  if (indices == nullptr) return hash;
  for (std::int64_t i = 0; i < indices->ne[0]; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(index_at(indices, i) + 1)) * 0xFF51AFD7ED558CCDU;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

CacheState::CacheState(const Host& host, const Settings& settings, const ggml_tensor* key_root)
    : host_(host),
      settings_(settings),
      buffer_base_(host.buffer_base(key_root->buffer)),
      buffer_size_(host.buffer_size(key_root->buffer)),
      stream_cells_(key_root->ne[1]),
      map_(key_root->ne[1] * key_root->ne[2], key_root->ne[1], kSparePages),
      summarized_(map_.num_pages()),
      rows_of_sequence_(PageMap::kMaxSequences) {}

bool CacheState::is_of(const ggml_tensor* key_root) const noexcept {
  return host_.buffer_base(key_root->buffer) == buffer_base_ && host_.buffer_size(key_root->buffer) == buffer_size_ &&
         key_root->ne[1] == stream_cells_ && key_root->ne[1] * key_root->ne[2] == map_.num_cells();
}

// ---- what happens to the keys

void CacheState::read_indices(const ggml_tensor* indices) {
  written_.clear();
  const std::int64_t count = indices->ne[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t cell = index_at(indices, i);
    if (cell >= 0 && cell < map_.num_cells()) written_.push_back(cell);
  }
  written_by_ = indices;
}

void CacheState::observe_write(const void* key_data, const ggml_tensor* indices) {
  auto found = std::ranges::find(key_writes_, key_data, &KeyWrite::key_data);
  if (found == key_writes_.end()) found = key_writes_.insert(found, {key_data, 0});
  const bool again = found->step == write_step_;
  if (again) ++write_step_;
  found->step = write_step_;
  if (!again && indices == written_by_) return;
  read_indices(indices);
  map_.write(written_);
}

void CacheState::observe_shift() {
  map_.shift();
  if (!shift_pending_) reporter().count([](Counters& c) { ++c.stale_events; });
  shift_pending_ = true;
}

void CacheState::apply_changes() noexcept {
  if (map_.all_changed()) {
    summarized_.clear_all();
  } else {
    for (const std::int32_t page : map_.changed_pages()) summarized_.clear(page);
  }
  map_.clear_changes();
}

bool CacheState::check_marks(const LayerState& layer) {
  bool all_fit = true;
  for (std::int32_t page = 0; page < map_.num_pages(); ++page) {
    if (!summarized_.has(layer.index(), page) || layer.mark_fits(map_, page)) continue;
    map_.forget_stream(map_.page_slots()[std::int64_t{page} * kPageTokens]);
    apply_changes();
    all_fit = false;
  }
  return all_fit;
}

void CacheState::check_all_marks() {
  if (layers_.empty()) return;
  next_checked_layer_ = (next_checked_layer_ + 1) % layers_.size();
  const bool last_fits = check_marks(*layers_.back());
  const bool turn_fits = check_marks(*layers_[next_checked_layer_]);
  if (last_fits && turn_fits) return;
  reporter().count([](Counters& c) { ++c.canary_hits; });
  restoring_ = true;
  map_.write(written_);  // their stamps were forgotten with the rest
}

// ---- steps and layers

LayerState& CacheState::find_layer(const AttentionNode& node) {
  for (std::size_t tried = 0; tried < layers_.size(); ++tried) {
    const std::size_t at = (next_layer_ + tried) % layers_.size();
    if (layers_[at]->key_data() != node.keys.data) continue;
    next_layer_ = at + 1;
    if (!layers_[at]->is_of(node)) {
      summarized_.clear_layer(static_cast<int>(at));
      layers_[at] = std::make_unique<LayerState>(node, settings_, static_cast<int>(at), map_.num_pages());
    }
    return *layers_[at];
  }
  const int index = static_cast<int>(layers_.size());
  summarized_.add_layer(index);
  layers_.push_back(std::make_unique<LayerState>(node, settings_, index, map_.num_pages()));
  next_layer_ = layers_.size();
  const auto layers = static_cast<std::int64_t>(layers_.size());
  reporter().count([layers](Counters& c) { c.layers = std::max(c.layers, layers); });
  return *layers_.back();
}

LayerState& CacheState::begin_layer(const AttentionNode& node, const ggml_tensor* indices) {
  LayerState& layer = find_layer(node);
  const StepKey key{node.mask, node.mask->data, node.rows, node.streams, node.seen_cells, hash_of(indices)};
  if (layer.call_step == step_ || key != key_ || shift_pending_) {
    ++step_;
    key_ = key;
    begin_step(node, indices);
  }
  layer.call_step = step_;
  return layer;
}

void CacheState::begin_step(const AttentionNode& node, const ggml_tensor* indices) {
  shift_pending_ = false;
  if (summarized_in_step_) restoring_ = false;
  summarized_in_step_ = false;
  if (indices != nullptr) {
    read_indices(indices);
    map_.write(written_);
  }
  if (distrusted_) {
    for (std::int64_t cell = 0; cell < map_.num_cells(); cell += stream_cells_) map_.forget_stream(cell);
    map_.write(written_);
    distrusted_ = false;
  }
  apply_changes();
  check_all_marks();
  plan_step(node);
  if (map_.adoptions() != seen_adoptions_) restoring_ = true;
  apply_changes();

  const bool decode = plan_.num_decode_rows > 0;
  const auto adoptions = static_cast<std::int64_t>(map_.adoptions() - seen_adoptions_);
  seen_adoptions_ = map_.adoptions();
  reporter().count([&](Counters& c) {
    ++(decode ? c.decode_steps : c.prefill_steps);
    c.adoptions += adoptions;
  });
  if (map_.slides() - seen_slides_ >= kSlidesOfWindow) sliding_ = true;
}

void CacheState::plan_step(const AttentionNode& node) {
  map_.begin_step();
  plan_.mapped = false;
  plan_.runs.clear();
  plan_.summarized_sequences.clear();
  plan_.num_decode_rows = 0;
  const auto num_rows = static_cast<std::size_t>(node.streams * node.rows);
  rows_.resize(num_rows);
  plan_.row_tokens.resize(num_rows);
  seen_.resize(static_cast<std::size_t>((node.seen_cells + 63) / 64));
  for (std::size_t item = 0; item < num_rows; ++item) {
    const auto stream = static_cast<std::int64_t>(item) / node.rows;
    const auto row = static_cast<std::int64_t>(item) % node.rows;
    if (!read_mask_row(node.mask_row(stream, row), node.seen_cells, seen_)) return;
    if (!map_.map_row(node.first_cell + stream * node.stream_stride, seen_, rows_[item])) return;
    plan_.row_tokens[item] = rows_[item].tokens;
  }
  plan_.mapped = true;
  plan_runs(node);
}

void CacheState::plan_runs(const AttentionNode& node) {
  std::fill(rows_of_sequence_.begin(), rows_of_sequence_.end(), 0);
  for (const MappedRow& row : rows_) ++rows_of_sequence_[static_cast<std::size_t>(row.sequence)];
  plan_.in_cell_order = map_.num_cells() % kPageTokens == 0;
  for (std::size_t item = 0; item < rows_.size(); ++item) {
    const int sequence = rows_[item].sequence;
    const bool continues = item % static_cast<std::size_t>(node.rows) != 0 && rows_[item - 1].sequence == sequence;
    if (continues) {
      ++plan_.runs.back().num_rows;
    } else {
      plan_.runs.push_back({sequence, static_cast<std::int64_t>(item) / node.rows,
                            static_cast<std::int64_t>(item) % node.rows, 1,
                            rows_of_sequence_[static_cast<std::size_t>(sequence)] <= kMaxDecodeRows, item});
    }
    if (plan_.runs.back().decode) ++plan_.num_decode_rows;
    plan_.in_cell_order = plan_.in_cell_order && map_.in_cell_order(sequence);
  }
  for (int sequence = 0; sequence < PageMap::kMaxSequences; ++sequence) {
    if (rows_of_sequence_[static_cast<std::size_t>(sequence)] == 0 || !is_long(map_.tokens(sequence))) continue;
    plan_.summarized_sequences.push_back(sequence);
  }
}

bool CacheState::is_long(std::int32_t tokens) const noexcept {
  return !always_attended(settings_.decode.select, tokens, settings_.decode.min_context_tokens).everything;
}

void CacheState::take_unsummarized(LayerState& layer, std::vector<std::int32_t>& pages) {
  pages.clear();
  for (const int sequence : plan_.summarized_sequences) {
    LayerState::Verified& verified = layer.verified(sequence);
    const bool known = verified.identity == map_.identity(sequence) && verified.epoch == map_.epoch();
    const std::span<const std::int32_t> all = map_.pages(sequence);
    const std::int32_t filled = map_.tokens(sequence) / kPageTokens;
    for (std::int32_t i = known ? verified.pages : 0; i < filled; ++i) {
      if (summarized_.has(layer.index(), all[i])) continue;
      summarized_.set(layer.index(), all[i]);
      layer.mark(map_, all[i]);
      pages.push_back(all[i]);
    }
    verified = {map_.identity(sequence), map_.epoch(), filled};
  }
  if (!pages.empty()) summarized_in_step_ = true;
}

}  // namespace locks::llamacpp
