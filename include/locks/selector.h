// Selectors other than LOCKS: its rivals, and what every method is measured by (the best choice, a random one, the most
// recent tokens). They decide what a decode step attends; the attention is the library's own for all of them. For
// comparison, not for speed: they allocate while they run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "locks/decode.h"
#include "locks/paged_cache.h"
#include "locks/select.h"
#include "locks/target.h"
#include "locks/team.h"
#include "locks/types.h"
#include "locks/view.h"

namespace locks {

enum class SelectorId : std::uint8_t {
  kOracle,
  kRandom,
  kRecency,
  kQuest,
  kUnique,
  kCompkv,
  kRocketKv,
  kShadowKv,
  kSharedBasis,
  kTwoBit
};

/// A model's rotary position embedding, without scaling: token t of a sequence is at position t.
struct RopeConfig {
  double base = 10000.0;
  int dims = 0;  // of a head that turn; 0: all
  bool interleaved =
      true;  // dimensions 2i and 2i + 1 turn together, as llama.cpp stores Llama; otherwise i and i + dims / 2
};

/// What a method does not know it leaves alone: selector_config() has its published settings, and check_selector_config()
/// refuses others where it has a rule of its own.
struct SelectorConfig {
  SelectorId id = SelectorId::kOracle;
  int budget_tokens = 512;  // attended in all, forced ones included; rocketkv attends half of it,
                            // shadowkv what it forces besides
  int sink_tokens = 16;     // of those that choose beside them: first tokens that are always attended, rounded up to pages
  int recent_tokens = 64;   // last tokens that are always attended, at least; compkv: its two last pages
  int part_tokens = kPageTokens;              // of those that know every key, and random: 1, 2, 4 or 8 select parts of pages
  GroupCombine combine = GroupCombine::kSum;  // of the query heads of a KV head, into one list; or a list each
  int dense_layers = 0;                       // a host leaves so many first layers dense
  float deviation_weight = 1.0F;              // unique: of a page's deviation against its mean
  int rank = 160;                             // shadowkv: of the keys' factorisation
  int outlier_chunks = 48;                    // shadowkv: attended exactly
  int variance_groups = 4;                    // compkv: of the dimensions, each with a variance
  RopeConfig rope;                            // shadowkv; compkv: which dimensions are pairs
  int new_tokens = 128;                       // rocketkv: that are to come behind the prompt
  bool multi_turn = false;                    // rocketkv: a prompt is kept whole, and each turn works on a choice of its own
  std::uint64_t seed = 0;                     // random
};

struct SelectorInfo {
  SelectorId id;
  std::string_view name;
};
[[nodiscard]] std::span<const SelectorInfo> selector_infos() noexcept;
/// The settings that the method was published with. Throws std::invalid_argument with the list of names.
[[nodiscard]] SelectorConfig selector_config(std::string_view name);
/// Throws std::invalid_argument naming the setting.
void check_selector_config(const SelectorConfig& config);

/// One request's cache in one layer.
struct Sequence {
  PagedCache keys;
  PagedCache values;
  std::span<const std::int32_t> pages;  // numbers in the cache, in the order of the tokens; the last one perhaps not full
  std::int32_t tokens = 0;

  [[nodiscard]] const std::byte* row(const PagedCache& cache, int token, int kv_head) const noexcept {
    return cache.token(pages[static_cast<std::size_t>(token / kPageTokens)], token % kPageTokens, kv_head);
  }
  [[nodiscard]] int num_pages() const noexcept { return (tokens + kPageTokens - 1) / kPageTokens; }
};

using SelectedList = std::vector<SelectedPage>;  // ascending pages

/// What one KV head's query heads attend.
struct Selection {
  std::vector<SelectedList> lists;  // one, or one for each query head
  /// [query heads, 2 + head_dim] states (attend.h) of what stands in for skipped tokens; without rows if nothing does.
  std::vector<std::vector<float>> stand_in;
  std::int64_t stand_in_tokens = 0;  // of the cache, attended in it one by one
  std::int64_t stand_in_bytes = 0;   // read for it
  double coverage = 0.0;             // of the attention mass, mean over the query heads; 0 if the method has no estimate
};

/// A method at work on one request in one layer. Different KV heads may be worked on at once.
class Selector {
 public:
  virtual ~Selector() = default;
  Selector(const Selector&) = delete;
  Selector& operator=(const Selector&) = delete;

  [[nodiscard]] const SelectorConfig& config() const noexcept { return config_; }
  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  /// The queries [rows, group_size, head_dim] of the last rows of a prompt, or of a piece of it, that the sequence now ends
  /// with. Methods that do not look at them do nothing.
  virtual void read_prompt(const Sequence& /*sequence*/, int /*kv_head*/, View<const float, 3> /*queries*/) {}
  /// It chooses by the queries of a prompt, and has not been shown one.
  [[nodiscard]] virtual bool lacks_prompt() const noexcept { return false; }
  /// Before append() and select(), by one thread, for what KV heads share.
  virtual void begin_step(const Sequence& /*sequence*/) {}
  /// Takes note of the tokens written since the last call. Fewer than then: the last ones were taken back. A token that
  /// was seen and then written anew needs a new selector.
  virtual void append(const Sequence& sequence, int kv_head) = 0;
  /// `queries` [group_size, head_dim]. The sequence is longer than the budget.
  [[nodiscard]] virtual Selection select(const Sequence& sequence, int kv_head, View<const float, 2> queries) const = 0;
  /// Read to choose, for one KV head; not counted: the keys and values attended.
  [[nodiscard]] virtual std::int64_t score_bytes(const Sequence& sequence) const noexcept = 0;
  /// Held beside the cache, for one KV head.
  [[nodiscard]] virtual std::int64_t held_bytes(const Sequence& sequence) const noexcept = 0;

 protected:
  Selector(const SelectorConfig& config, const Geometry& geometry) : config_(config), geometry_(geometry) {}

 private:
  SelectorConfig config_;
  Geometry geometry_;
};

/// Throws std::invalid_argument naming the setting.
[[nodiscard]] std::unique_ptr<Selector> make_selector(const SelectorConfig& config, const Geometry& geometry);

/// One decode step of one layer by selectors: the lists, then exact attention.
class SelectorStep {
 public:
  /// Contexts within the budget, or shorter than `min_context_tokens`, are attended whole.
  SelectorStep(const SelectorConfig& config, const Geometry& geometry, int min_context_tokens);

  /// Called by every thread of the team with the same arguments, one step at a time; the inputs' summaries play no part.
  /// `selectors` has one entry for each request; null: attended whole. Requests that are rows of one sequence (drafted
  /// tokens) may share theirs. `coverage` [requests, kv_heads], if there is any, is that of each Selection. False, to every
  /// thread, if a selector failed (no memory): nothing was written then.
  [[nodiscard]] bool run(const DecodeInputs& inputs, std::span<Selector* const> selectors, View<float, 3> out,
                         std::span<DecodeReport> reports, Team team, Target target, View<float, 2> coverage = {});

 private:
  void prepare(const DecodeInputs& inputs, std::span<Selector* const> selectors, int num_threads);
  void select(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request, int kv_head);
  void pack(const DecodeInputs& inputs);
  [[nodiscard]] AttendArgs attend_args(const DecodeInputs& inputs) const;
  void finish_heads(const AttendArgs& args, int request, int kv_head, int num_threads, const View<float, 3>& out);
  void report(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request, DecodeReport& out) const;
  [[nodiscard]] bool is_whole(const DecodeInputs& inputs, std::span<Selector* const> selectors, int request) const;

  SelectorConfig config_;
  Geometry geometry_;
  int min_context_tokens_;
  int num_lists_;
  std::vector<Selection> selections_;             // [requests, kv_heads]
  std::vector<std::vector<std::int32_t>> pages_;  // [requests]
  std::vector<SelectedPage> selected_;            // [requests, lists, capacity]
  std::vector<std::int32_t> num_selected_;        // [requests, lists]
  std::int64_t capacity_ = 0;
  std::vector<float> states_;
  std::unique_ptr<std::byte[]> workspace_;
  std::size_t workspace_bytes_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace locks
