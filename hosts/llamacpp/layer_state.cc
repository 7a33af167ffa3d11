#include "layer_state.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace locks::llamacpp {
namespace {

/// Of a page's keys, or its values.
std::int64_t page_bytes(const Geometry& geometry, DType dtype) noexcept {
  return kPageTokens * geometry.kv_heads * row_bytes(dtype, geometry.head_dim);
}

}  // namespace

void SummaryBits::add_layer(int layer) {
  while (static_cast<int>(blocks_.size()) <= layer / 64) blocks_.emplace_back(static_cast<std::size_t>(num_pages_));
}

void SummaryBits::clear_layer(int layer) noexcept {
  for (std::uint64_t& bits : blocks_[layer / 64]) bits &= ~(std::uint64_t{1} << (layer % 64));
}

void SummaryBits::clear_all() noexcept {
  for (auto& block : blocks_) std::fill(block.begin(), block.end(), 0);
}

LayerState::LayerState(const AttentionNode& node, const Settings& settings, int index, std::int32_t num_pages)
    : index_(index),
      geometry_(node.geometry),
      keys_(node.keys),
      page_memory_{settings.rival ? 0
                                  : summary_bytes(*settings.decode.format, geometry_.head_dim, geometry_.kv_heads, 1,
                                                  settings.keeps_values()),
                   page_bytes(geometry_, node.keys.dtype) + page_bytes(geometry_, node.values.dtype)},
      share_of_f16_(static_cast<double>(page_memory_.summaries) /
                    static_cast<double>(2 * page_bytes(geometry_, DType::kF16))),
      marks_(static_cast<std::size_t>(num_pages)),
      written_(static_cast<std::size_t>(num_pages)),
      verified_(PageMap::kMaxSequences) {
  const SummaryFormat& format = *settings.decode.format;
  const auto bytes = static_cast<std::size_t>(
      summary_bytes(format, geometry_.head_dim, geometry_.kv_heads, num_pages, settings.keeps_values()));
  // calloc() would write zeros over all of it wherever it takes memory that was freed before.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
  summaries_ = make_store(format, geometry_.head_dim, geometry_.kv_heads, num_pages, settings.keeps_values(), memory_.get());
}

void LayerState::Unmap::operator()(std::byte* memory) const noexcept { munmap(memory, bytes); }

LayerState::~LayerState() { reporter().free_memory(page_memory_, num_written_); }

bool LayerState::is_of(const AttentionNode& node) const noexcept {
  return keys_.data == node.keys.data && keys_.dtype == node.keys.dtype && keys_.token_stride == node.keys.token_stride &&
         keys_.head_stride == node.keys.head_stride && geometry_.head_dim == node.geometry.head_dim &&
         geometry_.kv_heads == node.geometry.kv_heads && geometry_.query_heads == node.geometry.query_heads &&
         geometry_.softmax_scale == node.geometry.softmax_scale;
}

const DecodePlan& LayerState::plan(const DecodeConfig& config, const DecodeLimits& limits) {
  const bool fits = plan_ && plan_->limits().max_requests == limits.max_requests &&
                    plan_->limits().max_context_tokens == limits.max_context_tokens &&
                    plan_->limits().max_threads == limits.max_threads;
  if (!fits) plan_.emplace(config, geometry_, limits);
  return *plan_;
}

Selector& LayerState::selector(const SelectorConfig& config, int sequence, std::uint64_t identity, std::uint64_t epoch) {
  if (known_.empty()) known_.resize(PageMap::kMaxSequences);
  KnownSequence& known = known_[static_cast<std::size_t>(sequence)];
  if (known.selector == nullptr || known.identity != identity || known.epoch != epoch) {
    SelectorConfig of_layer = config;
    of_layer.seed += static_cast<std::uint64_t>(index_);  // a token that one layer skips is not lost to all
    known = {identity, epoch, make_selector(of_layer, geometry_)};
  }
  return *known.selector;
}

SelectorStep& LayerState::selector_step(const SelectorConfig& config, int min_context_tokens) {
  if (selector_step_ == nullptr) selector_step_ = std::make_unique<SelectorStep>(config, geometry_, min_context_tokens);
  return *selector_step_;
}

void LayerState::mark(const PageMap& map, std::int32_t page) noexcept {
  marks_[page] = mark_of(map, page);
  if (written_[page]) return;
  written_[page] = true;
  ++num_written_;
  reporter().add_memory(page_memory_);
}

std::uint16_t LayerState::mark_of(const PageMap& map, std::int32_t page) const noexcept {
  constexpr std::size_t kWords = 4;  // 32 bytes of a row
  const std::int32_t* const cells = map.page_slots() + std::int64_t{page} * kPageTokens;
  std::uint64_t hash = 0x9E3779B97F4A7C15U;
  for (const std::int32_t cell : {cells[0], cells[kPageTokens - 1]}) {
    std::uint64_t words[kWords];
    std::memcpy(words, keys_.data + cell * keys_.token_stride, sizeof words);
    for (const std::uint64_t word : words) {
      hash = (hash ^ word) * 0xFF51AFD7ED558CCDU;
      hash ^= hash >> 32;
    }
  }
  return static_cast<std::uint16_t>(hash >> 48);
}

}  // namespace locks::llamacpp
