// The summaries of one layer of one KV cache, and which pages have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention_node.h"
#include "locks/decode.h"
#include "locks/page_summary.h"
#include "locks/selector.h"
#include "page_map.h"
#include "report.h"
#include "settings.h"

namespace locks::llamacpp {

/// Which pages are summarised, for all layers: a bit each, 64 layers to a block.
class SummaryBits {
 public:
  explicit SummaryBits(std::int32_t num_pages) : num_pages_(num_pages) {}
  void add_layer(int layer);
  [[nodiscard]] bool has(int layer, std::int32_t page) const noexcept {
    return (blocks_[layer / 64][page] >> (layer % 64) & 1U) != 0;
  }
  void set(int layer, std::int32_t page) noexcept { blocks_[layer / 64][page] |= std::uint64_t{1} << (layer % 64); }
  void clear(std::int32_t page) noexcept {
    for (auto& block : blocks_) block[page] = 0;
  }
  void clear_layer(int layer) noexcept;
  void clear_all() noexcept;

 private:
  std::int32_t num_pages_;
  std::vector<std::vector<std::uint64_t>> blocks_;  // [layers / 64][pages]
};

class LayerState {
 public:
  /// Takes address space for all pages; the system gives memory for those that are written.
  LayerState(const AttentionNode& node, const Settings& settings, int index, std::int32_t num_pages);
  ~LayerState();

  [[nodiscard]] bool is_of(const AttentionNode& node) const noexcept;
  [[nodiscard]] const std::byte* key_data() const noexcept { return keys_.data; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] const SummaryStore& summaries() const noexcept { return summaries_; }
  /// Plans anew if these limits are others than before.
  [[nodiscard]] const DecodePlan& plan(const DecodeConfig& config, const DecodeLimits& limits);
  /// What a rival knows of a mapped sequence: made anew if it is another sequence, or a page of it changed.
  [[nodiscard]] Selector& selector(const SelectorConfig& config, int sequence, std::uint64_t identity, std::uint64_t epoch);
  void forget_selectors() noexcept { known_.clear(); }
  [[nodiscard]] SelectorStep& selector_step(const SelectorConfig& config, int min_context_tokens);
  /// Bytes of a page's summary over those of its keys and values in f16.
  [[nodiscard]] double share_of_f16() const noexcept { return share_of_f16_; }
  [[nodiscard]] std::int64_t summary_bytes_of_page() const noexcept { return page_memory_.summaries; }

  /// Pages [first, first + n) of a mapped sequence that were known to be summarised when it was last looked at.
  struct Verified {
    std::uint64_t identity = 0;
    std::uint64_t epoch = 0;
    std::int32_t pages = 0;
  };
  [[nodiscard]] Verified& verified(int sequence) noexcept { return verified_[static_cast<std::size_t>(sequence)]; }

  // Every summarised page leaves a mark made of the keys of its first and last token. A mark that no longer fits betrays
  // a write that nothing announced. It can miss one change in 65,536.
  void mark(const PageMap& map, std::int32_t page) noexcept;
  [[nodiscard]] bool mark_fits(const PageMap& map, std::int32_t page) const noexcept {
    return marks_[page] == mark_of(map, page);
  }

  std::uint64_t call_step = 0;  // the step in which the layer was last computed

 private:
  [[nodiscard]] std::uint16_t mark_of(const PageMap& map, std::int32_t page) const noexcept;

  struct KnownSequence {
    std::uint64_t identity = 0;
    std::uint64_t epoch = 0;
    std::unique_ptr<Selector> selector;
  };
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  int index_;
  Geometry geometry_;
  PagedCache keys_;
  std::unique_ptr<std::byte, Unmap> memory_;
  SummaryStore summaries_;
  Counters::Memory page_memory_;
  double share_of_f16_;
  std::optional<DecodePlan> plan_;
  std::vector<KnownSequence> known_;  // [sequences], of a rival
  std::unique_ptr<SelectorStep> selector_step_;
  std::vector<std::uint16_t> marks_;
  std::vector<bool> written_;  // [pages] that ever had a summary
  std::int64_t num_written_ = 0;
  std::vector<Verified> verified_;
};

}  // namespace locks::llamacpp
