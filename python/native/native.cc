// locks_cpp._native: types in _native.pyi. Only what is here touches the library; the rest of the package wraps it.
#include <nanobind/stl/pair.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "arguments.h"
#include "arrays.h"
#include "locks/locks.h"

namespace locks::python {
namespace {

/// What decode_config() would read.
nb::dict config_fields(const DecodeConfig& config) {
  const SelectConfig& select = config.select;
  nb::dict out;
  out["format"] = std::string(config.format->name);
  out["budget_tokens"] = select.budget_tokens;
  out["sink_tokens"] = select.sink_tokens;
  out["recent_tokens"] = select.recent_tokens;
  out["part_tokens"] = select.part_tokens;
  out["candidate_factor"] = select.candidate_factor;
  out["completion_fraction"] = select.completion_fraction;
  out["combine"] = kCombines[static_cast<std::size_t>(select.combine)];
  out["min_context_tokens"] = config.min_context_tokens;
  return out;
}

/// Plans and threads may share it: calls take turns.
class Pool {
 public:
  explicit Pool(nb::handle threads) : pool_(new ThreadPool(integer(threads, "threads", 1, 1024))), process_(getpid()) {}
  ~Pool() {  // threads do not follow a fork: the child has none to wait for
    if (getpid() != process_) static_cast<void>(pool_.release());
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  [[nodiscard]] int threads() const noexcept { return pool_->num_threads(); }
  void run(const std::function<void(Team)>& work) {
    if (getpid() != process_) throw std::runtime_error("the pool was made before a fork; its threads stayed in the parent");
    const std::lock_guard turn(turn_);
    pool_->run(work);
  }

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::mutex turn_;
  int process_;
};

Pool* pool_of(nb::handle pool) { return cast<Pool*>(pool, "pool", "a ThreadPool or None"); }
int threads_of(const Pool* pool) noexcept { return pool == nullptr ? 1 : pool->threads(); }

/// Calls `work` on every thread of the pool, without the GIL.
void run_on(Pool* pool, const std::function<void(Team)>& work) {
  const nb::gil_scoped_release release;
  if (pool == nullptr) return work(Team{});
  pool->run(work);
}

struct Summaries : SummaryRows {
  Summaries(nb::handle object, nb::handle format, nb::handle head_dim, nb::handle heads, nb::handle values)
      : SummaryRows(object, format, head_dim, heads, values, summary_bytes, make_store, Memory::kCpu) {}
};

const Summaries& summaries_of(nb::handle summaries) {
  const auto* const out = cast<Summaries*>(summaries, "summaries", "a Summaries");
  if (out == nullptr) fail("summaries", "a Summaries", "None");
  return *out;
}

std::pair<std::int64_t, std::int64_t> summarize_pages(nb::handle keys, nb::handle values, nb::handle pages,
                                                      nb::handle summaries, nb::handle pool) {
  const Summaries& into = summaries_of(summaries);
  Pool* const threads = pool_of(pool);
  const Array key_array = cache_array(keys, "keys", {-1, -1, into.kv_heads, into.store.head_dim});
  std::optional<Array> value_array;
  if (!values.is_none() || into.store.value_data != nullptr) value_array = cache_array(values, "values", key_array.shape);
  const Array page_array = array(pages, "pages", {Element::kInt32}, "[pages]", {-1});
  const PagedCache value_cache = value_array ? value_array->cache() : PagedCache{};
  const SummarizeArgs args{into.store.head_dim,  into.kv_heads, key_array.cache(), value_array ? &value_cache : nullptr,
                           page_array.numbers(), into.store};
  check_summarize(args);
  std::atomic<std::int64_t> records = 0;
  std::atomic<std::int64_t> not_finite = 0;
  run_on(threads, [&, target = active_target()](Team team) {
    const SummarizeReport report = summarize(args, team, target);
    records += report.records;
    not_finite += report.not_finite_records;
  });
  return {records, not_finite};
}

struct AlignedDelete {
  void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, std::align_val_t{64}); }
};
struct Workspace {
  explicit Workspace(std::size_t bytes)
      : memory(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}))), span(memory.get(), bytes) {}
  std::unique_ptr<std::byte[], AlignedDelete> memory;
  std::span<std::byte> span;
};

class Plan {
 public:
  Plan(nb::handle config, nb::handle query_heads, nb::handle kv_heads, nb::handle head_dim, nb::handle softmax_scale,
       nb::handle max_requests, nb::handle max_context_tokens, nb::object pool)
      : pool_owner_(std::move(pool)),
        pool_(pool_of(pool_owner_)),
        plan_(decode_plan(config, query_heads, kv_heads, head_dim, softmax_scale, max_requests, max_context_tokens,
                          threads_of(pool_))),
        workspace_(plan_.workspace_bytes()) {}

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return plan_.workspace_bytes(); }

  /// The reports as bytes: [requests, sizeof(DecodeReport)].
  nb::ndarray<nb::numpy, std::uint8_t> run(nb::handle queries, nb::handle keys, nb::handle values, nb::handle summaries,
                                           nb::handle block_tables, nb::handle context_tokens, nb::handle out) {
    const Geometry& geometry = plan_.geometry();
    const Summaries& from = summaries_of(summaries);
    check_planned(plan_, from);
    const Array query =
        head_rows(queries, "queries", "requests", {-1, geometry.query_heads, geometry.head_dim}, Access::kRead);
    const std::int64_t requests = query.shape[0];
    const Array key = cache_array(keys, "keys", {-1, -1, geometry.kv_heads, geometry.head_dim});
    const Array value = cache_array(values, "values", key.shape);
    const Array blocks = array(block_tables, "block_tables", {Element::kInt32}, "[requests, blocks]", {requests, -1});
    const Array lengths = array(context_tokens, "context_tokens", {Element::kInt32}, "[requests]", {requests});
    const Array result = head_rows(out, "out", "requests", query.shape, Access::kWrite);
    require_apart(result, {&query, &key, &value, &from.memory, &blocks, &lengths});
    DecodeInputs inputs{query.view<const float, 3>(), key.cache(), value.cache(), from.store, {}};
    inputs.table = {blocks.view<const std::int32_t, 2>(), inputs.keys.block_tokens, lengths.numbers()};
    with_our_names([&] { check_decode(plan_, inputs, true); });

    std::unique_ptr<DecodeReport[]> reports(new DecodeReport[static_cast<std::size_t>(requests)]);
    {
      // Nothing of Python's runs in here: a second caller is another thread.
      const std::unique_lock in_use(in_use_, std::try_to_lock);
      if (!in_use) throw std::runtime_error("the plan is in use by another thread; it serves one call at a time");
      run_on(pool_, [&, target = active_target()](Team team) {
        locks::run(plan_, inputs, result.view<float, 3>(), {reports.get(), static_cast<std::size_t>(requests)},
                   workspace_.span, team, target);
      });
    }
    const nb::capsule owner(reports.get(), [](void* memory) noexcept { delete[] static_cast<DecodeReport*>(memory); });
    return {reports.release(), {static_cast<std::size_t>(requests), sizeof(DecodeReport)}, owner};
  }

 private:
  nb::object pool_owner_;
  Pool* pool_;
  DecodePlan plan_;
  Workspace workspace_;
  std::mutex in_use_;
};

/// The blocks whose pages are listed in order; of the last block the first pages may do.
std::vector<std::int32_t> blocks_of(std::span<const std::int32_t> pages, const PagedCache& cache) {
  const std::int64_t pages_per_block = cache.block_tokens / kPageTokens;
  std::vector<std::int32_t> blocks;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::string where = "pages[" + std::to_string(i) + "]";
    if (pages[i] < 0 || pages[i] >= cache.num_pages) {
      fail(where, "a page number below " + std::to_string(cache.num_pages), std::to_string(pages[i]));
    }
    const std::int64_t in_block = static_cast<std::int64_t>(i) % pages_per_block;
    if (in_block == 0) blocks.push_back(static_cast<std::int32_t>(pages[i] / pages_per_block));
    const std::int64_t expected = blocks.back() * pages_per_block + in_block;
    if (pages[i] != expected) fail(where, std::to_string(expected) + ", the block's next page", std::to_string(pages[i]));
  }
  return blocks;
}

void prefill_rows(nb::handle queries, nb::handle keys, nb::handle values, nb::handle pages, nb::handle visible_tokens,
                  nb::handle out, nb::handle softmax_scale, nb::handle pool) {
  Pool* const threads = pool_of(pool);
  const Array query = head_rows(queries, "queries", "rows", {-1, -1, -1}, Access::kRead);
  const int head_dim = head_dim_of(nb::int_(query.shape[2]));
  const Array key = cache_array(keys, "keys", {-1, -1, -1, head_dim});
  const Array value = cache_array(values, "values", key.shape);
  const Array page_array = array(pages, "pages", {Element::kInt32}, "[pages]", {-1});
  const Array visible = array(visible_tokens, "visible_tokens", {Element::kInt32}, "[rows]", {query.shape[0]});
  const Array result = head_rows(out, "out", "rows", query.shape, Access::kWrite);
  require_apart(result, {&query, &key, &value, &page_array, &visible});
  const Geometry geometry{head_dim, integer(nb::int_(key.shape[2]), "kv_heads", 1, kMostHeads),
                          integer(nb::int_(query.shape[1]), "query_heads", 1, kMostHeads), scale_of(softmax_scale)};
  const PagedCache key_cache = key.cache();
  const std::vector<std::int32_t> blocks = blocks_of(page_array.numbers(), key_cache);
  const std::int64_t listed = page_array.shape[0] * kPageTokens;
  for (std::size_t row = 0; row < visible.numbers().size(); ++row) {
    const std::int32_t tokens = visible.numbers()[row];
    if (tokens >= 1 && tokens <= listed) continue;
    fail("visible_tokens[" + std::to_string(row) + "]", "1 to " + std::to_string(listed) + " tokens",
         std::to_string(tokens));
  }
  const Workspace workspace(prefill_workspace_bytes(geometry, threads_of(threads)));
  const PrefillArgs args{geometry,          query.view<const float, 3>(), key_cache,     value.cache(), blocks,
                         visible.numbers(), result.view<float, 3>(),      workspace.span};
  check_prefill(args);
  run_on(threads, [&, target = active_target()](Team team) { prefill(args, team, target); });
}

template <class Items, class Name>
nb::tuple names_of(const Items& items, const Name& name) {
  nb::list out;
  for (const auto& item : items) out.append(std::string(name(item)));
  return nb::tuple(out);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a library does not print, also if the interpreter exits with a plan alive
  m.attr("__version__") = kVersion;
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("REPORT_BYTES") = sizeof(DecodeReport);
  m.def("formats", [] { return names_of(summary_formats(), [](const SummaryFormat* format) { return format->name; }); });
  m.def("targets", [] {
    const auto slowest_first = supported_targets();
    return names_of(std::vector<Target>(slowest_first.rbegin(), slowest_first.rend()), target_name);
  });
  m.def("check_config", [](nb::handle config) { static_cast<void>(decode_config(config)); }, any("config"));
  m.def("default_config", [] { return config_fields({}); });
  m.def("paper_config", [] { return config_fields(DecodeConfig::paper()); });
  m.def(
      "page_bytes",
      [](nb::handle format, nb::handle head_dim, nb::handle kv_heads, nb::handle values) {
        return page_bytes(format, head_dim, kv_heads, values, summary_bytes);
      },
      any("format"), any("head_dim"), any("kv_heads"), any("values"));
  m.def("summarize", &summarize_pages, any("keys"), any("values"), any("pages"), any("summaries"), any("pool"));
  m.def("prefill", &prefill_rows, any("queries"), any("keys"), any("values"), any("pages"), any("visible_tokens"),
        any("out"), nb::kw_only(), any("softmax_scale"), any("pool") = nb::none());
  nb::class_<Pool>(m, "ThreadPool").def(nb::init<nb::handle>(), any("threads")).def_prop_ro("threads", &Pool::threads);
  nb::class_<Summaries>(m, "Summaries")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(), any("memory"), nb::kw_only(),
           any("format"), any("head_dim"), any("kv_heads"), any("values"))
      .def_prop_ro("num_pages", [](const Summaries& self) { return self.store.num_pages; });
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::object>(),
           any("config"), any("query_heads"), any("kv_heads"), any("head_dim"), any("softmax_scale"), any("max_requests"),
           any("max_context_tokens"), any("pool"))
      .def_prop_ro("workspace_bytes", &Plan::workspace_bytes)
      .def("run", &Plan::run, any("queries"), any("keys"), any("values"), any("summaries"), any("block_tables"),
           any("context_tokens"), any("out"));
}

}  // namespace locks::python
