// locks_cpp._cuda: types in _cuda.pyi. The library on an NVIDIA GPU; in builds with CUDA only. What is here queues work on a
// stream and waits for nothing, so it can be called while a CUDA graph is captured.
#include "locks/cuda.h"

#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "arguments.h"
#include "arrays.h"

namespace locks::python {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

struct CudaSummaries : SummaryRows {
  CudaSummaries(nb::handle object, nb::handle format, nb::handle head_dim, nb::handle heads, nb::handle values)
      : SummaryRows(object, format, head_dim, heads, values, cuda::summary_bytes, cuda::make_store, Memory::kCuda) {}
};

const CudaSummaries& summaries_of(nb::handle summaries) {
  const auto* const out = cast<CudaSummaries*>(summaries, "summaries", "a locks_cpp.cuda.Summaries");
  if (out == nullptr) fail("summaries", "a locks_cpp.cuda.Summaries", "None");
  return *out;
}

cuda::Stream stream_of(nb::handle stream) {
  return reinterpret_cast<cuda::Stream>(cast<std::uintptr_t>(stream, "stream", "a cudaStream_t as a number"));
}

/// What memory of a caller's is for, with a size that the library names.
std::span<std::byte> bytes_of(nb::handle object, const char* argument, std::size_t bytes, Array& owner) {
  owner = array(object, argument, {Element::kUInt8}, "[bytes]", {-1}, Access::kWrite, Memory::kCuda);
  const auto got = static_cast<std::size_t>(owner.shape[0]);
  if (got < bytes) fail(argument, std::to_string(bytes) + " bytes or more", std::to_string(got));
  if (reinterpret_cast<std::uintptr_t>(owner.data) % kWorkspaceAlignment != 0) {
    fail(argument, "memory aligned to 64 bytes", "an address that is not");
  }
  return {owner.data, got};
}

/// What elements of e4m3 are multiplied by, kept alive; or None.
struct Scale {
  Scale(nb::handle object, const char* argument, bool is_e4m3) {
    if (object.is_none()) return;
    if (!is_e4m3) fail(argument, "None where nothing is float8_e4m3fn or uint8", describe(object));
    owner = array(object, argument, {Element::kFloat32}, "[1]", {1}, Access::kRead, Memory::kCuda);
    data = reinterpret_cast<const float*>(owner.data);
  }
  Array owner;
  const float* data = nullptr;
};

/// Keys or values, kept alive.
struct Cache {
  Cache(nb::handle object, const char* argument, const std::vector<std::int64_t>& shape, nb::handle scale,
        const char* scale_argument)
      : rows(cache_array(object, argument, shape, Memory::kCuda)),
        view(rows.cache()),
        factor(scale, scale_argument, view.dtype == DType::kE4M3) {
    view.scale = factor.data;
  }
  Array rows;
  PagedCache view;
  Scale factor;
};

/// Keys and values as stage 1 takes them.
struct Caches {
  Caches(nb::handle key_rows, nb::handle value_rows, nb::handle key_scale, nb::handle value_scale, const CudaSummaries& into)
      : keys(key_rows, "keys", {-1, -1, into.kv_heads, into.store.head_dim}, key_scale, "key_scale") {
    if (value_rows.is_none() && into.store.value_data == nullptr) return;
    values.emplace(value_rows, "values", keys.rows.shape, value_scale, "value_scale");
  }
  [[nodiscard]] SummarizeArgs args(const CudaSummaries& into, std::span<const std::int32_t> pages) const {
    return {into.store.head_dim, into.kv_heads, keys.view, values ? &values->view : nullptr, pages, into.store};
  }

  Cache keys;
  std::optional<Cache> values;
};

cuda::HeadRows rows_of(const Array& array, const float* scale) {
  cuda::HeadRows rows;
  rows.data = array.data;
  rows.dtype = dtype_of(array.element);
  rows.shape = {array.shape[0], array.shape[1], array.shape[2]};
  rows.stride = {array.stride[0], array.stride[1], array.stride[2]};
  rows.scale = scale;
  return rows;
}
Array output_rows(nb::handle object, const std::vector<std::int64_t>& shape) {
  return array(object, "out", {Element::kFloat32, Element::kFloat16, Element::kBFloat16},
               "[requests, query_heads, head_dim]", shape, Access::kWrite, Memory::kCuda);
}

void summarize_pages(nb::handle keys, nb::handle values, nb::handle pages, nb::handle summaries, nb::handle key_scale,
                     nb::handle value_scale, nb::handle stream) {
  const CudaSummaries& into = summaries_of(summaries);
  const Caches caches(keys, values, key_scale, value_scale, into);
  const Array listed = array(pages, "pages", {Element::kInt32}, "[pages]", {-1}, Access::kRead, Memory::kCuda);
  cuda::summarize(caches.args(into, listed.numbers()), nullptr, stream_of(stream));
}

void summarize_slots(nb::handle keys, nb::handle values, nb::handle slots, nb::handle summaries, nb::handle key_scale,
                     nb::handle value_scale, nb::handle stream) {
  const CudaSummaries& into = summaries_of(summaries);
  const Caches caches(keys, values, key_scale, value_scale, into);
  const Array written = array(slots, "slots", {Element::kInt64}, "[tokens]", {-1}, Access::kRead, Memory::kCuda);
  cuda::summarize_filled(caches.args(into, {}), written.numbers<std::int64_t>(), nullptr, stream_of(stream));
}

/// Blocks and lengths of requests; what they hold lies on the device and is not checked.
PageTable table_of(const Array& blocks, const Array& lengths, const PagedCache& cache) {
  return {blocks.view<const std::int32_t, 2>(), cache.block_tokens, lengths.numbers()};
}
Array block_table(nb::handle object, std::int64_t requests) {
  return array(object, "block_tables", {Element::kInt32}, "[requests, blocks]", {requests, -1}, Access::kRead,
               Memory::kCuda);
}
Array context_lengths(nb::handle object, std::int64_t requests) {
  return array(object, "context_tokens", {Element::kInt32}, "[requests]", {requests}, Access::kRead, Memory::kCuda);
}

class CudaPlan {
 public:
  CudaPlan(nb::handle config, nb::handle query_heads, nb::handle kv_heads, nb::handle head_dim, nb::handle softmax_scale,
           nb::handle max_requests, nb::handle max_context_tokens)
      : plan_(decode_plan(config, query_heads, kv_heads, head_dim, softmax_scale, max_requests, max_context_tokens, 1)),
        workspace_bytes_(cuda::decode_workspace_bytes(plan_)) {}

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }

  void run(nb::handle queries, nb::handle keys, nb::handle values, nb::handle summaries, nb::handle block_tables,
           nb::handle context_tokens, nb::handle out, nb::handle key_scale, nb::handle value_scale, nb::handle workspace,
           nb::handle reports, nb::handle stream) const {
    const Geometry& geometry = plan_.geometry();
    const CudaSummaries& from = summaries_of(summaries);
    check_planned(plan_, from);
    const Array query = head_rows(queries, "queries", "requests", {-1, geometry.query_heads, geometry.head_dim},
                                  Access::kRead, Memory::kCuda);
    const std::int64_t requests = query.shape[0];
    const Cache key(keys, "keys", {-1, -1, geometry.kv_heads, geometry.head_dim}, key_scale, "key_scale");
    const Cache value(values, "values", key.rows.shape, value_scale, "value_scale");
    const Array blocks = block_table(block_tables, requests);
    const Array lengths = context_lengths(context_tokens, requests);
    const Array result = output_rows(out, query.shape);
    const DecodeInputs inputs = [&] {
      DecodeInputs in{query.view<const float, 3>(), key.view, value.view, from.store, {}};
      in.table = table_of(blocks, lengths, in.keys);
      return in;
    }();
    // Buffers are cut for the plan's longest context: a wider table would run over them.
    const std::int64_t most = (plan_.limits().max_context_tokens - 1) / inputs.keys.block_tokens + 1;
    if (blocks.shape[1] > most) {
      fail("block_tables", "at most " + std::to_string(most) + " blocks (max_context_tokens)",
           std::to_string(blocks.shape[1]));
    }
    Array work;
    const std::span<std::byte> memory = bytes_of(workspace, "workspace", workspace_bytes_, work);
    std::optional<Array> records;
    std::span<DecodeReport> report;
    if (!reports.is_none()) {
      records = array(reports, "reports", {Element::kUInt8}, "[requests, REPORT_BYTES]",
                      {requests, static_cast<std::int64_t>(sizeof(DecodeReport))}, Access::kWrite, Memory::kCuda);
      if (records->stride[0] != records->shape[1]) fail("reports", "rows side by side", "rows apart");
      if (reinterpret_cast<std::uintptr_t>(records->data) % alignof(DecodeReport) != 0) {
        fail("reports", "memory aligned to 8 bytes", "an address that is not");
      }
      report = {reinterpret_cast<DecodeReport*>(records->data), static_cast<std::size_t>(requests)};
    }
    with_our_names([&] { cuda::run(plan_, inputs, rows_of(result, nullptr), report, memory, stream_of(stream)); });
  }

 private:
  DecodePlan plan_;
  std::size_t workspace_bytes_;
};

/// Dense attention's workspace: states [requests, query_heads, 2 + head_dim], and behind them that of the stage.
struct DenseBytes {
  DenseBytes(const Geometry& geometry, std::int64_t requests)
      : states(static_cast<std::size_t>(requests) * static_cast<std::size_t>(geometry.query_heads) *
               static_cast<std::size_t>(2 + geometry.head_dim) * sizeof(float)),
        first((states + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment),
        all(first + cuda::attend_workspace_bytes(geometry, static_cast<int>(requests), geometry.kv_heads)) {}
  std::size_t states;
  std::size_t first;
  std::size_t all;
};

std::size_t attend_bytes(nb::handle query_heads, nb::handle kv_heads, nb::handle head_dim, nb::handle requests) {
  const Geometry geometry{head_dim_of(head_dim), integer(kv_heads, "kv_heads", 1, kMostHeads),
                          integer(query_heads, "query_heads", 1, kMostHeads), 1.0F};
  return DenseBytes(geometry, integer(requests, "requests", 1, kMostRequests)).all;
}

void attend_dense(nb::handle queries, nb::handle keys, nb::handle values, nb::handle block_tables, nb::handle context_tokens,
                  nb::handle out, nb::handle softmax_scale, nb::handle key_scale, nb::handle value_scale,
                  nb::handle workspace, nb::handle stream) {
  const Array query = head_rows(queries, "queries", "requests", {-1, -1, -1}, Access::kRead, Memory::kCuda);
  const std::int64_t requests = query.shape[0];
  if (requests > kMostRequests) fail("queries", "at most 8192 requests", std::to_string(requests));
  const int head_dim = head_dim_of(nb::int_(query.shape[2]));
  const Cache key(keys, "keys", {-1, -1, -1, head_dim}, key_scale, "key_scale");
  const Cache value(values, "values", key.rows.shape, value_scale, "value_scale");
  const Array blocks = block_table(block_tables, requests);
  const Array lengths = context_lengths(context_tokens, requests);
  const Array result = output_rows(out, query.shape);
  AttendArgs args;
  args.geometry = {head_dim, integer(nb::int_(key.rows.shape[2]), "kv_heads", 1, kMostHeads),
                   integer(nb::int_(query.shape[1]), "query_heads", 1, kMostHeads), scale_of(softmax_scale)};
  args.queries = query.view<const float, 3>();
  args.keys = key.view;
  args.values = value.view;
  args.table = table_of(blocks, lengths, args.keys);
  args.num_lists = args.geometry.kv_heads;
  const DenseBytes bytes(args.geometry, requests);
  Array work;
  args.workspace = bytes_of(workspace, "workspace", bytes.all, work).subspan(bytes.first);
  const SoftmaxStates states = contiguous(reinterpret_cast<float*>(work.data), requests,
                                          std::int64_t{args.geometry.query_heads}, std::int64_t{2 + head_dim});
  with_our_names([&] {
    cuda::attend(args, states, false, stream_of(stream));
    cuda::finish(states, rows_of(result, nullptr), stream_of(stream));
  });
}

void copy_head_rows(nb::handle source, nb::handle target, nb::handle scale, nb::handle stream) {
  const std::vector<Element> elements{Element::kFloat32, Element::kFloat16, Element::kBFloat16, Element::kFloat8E4M3,
                                      Element::kUInt8};
  const char* const axes = "[rows, heads, head_dim]";
  const Array from = array(source, "source", elements, axes, {-1, -1, -1}, Access::kRead, Memory::kCuda);
  (void)head_dim_of(nb::int_(from.shape[2]));
  const Array to = array(target, "target", elements, axes, from.shape, Access::kWrite, Memory::kCuda);
  constexpr std::int64_t kMostRows = 65535;  // of a grid
  if (from.shape[0] > kMostRows) fail("source", "at most 65535 rows", std::to_string(from.shape[0]));
  const bool any_e4m3 = dtype_of(from.element) == DType::kE4M3 || dtype_of(to.element) == DType::kE4M3;
  const Scale factor(scale, "scale", any_e4m3);
  cuda::copy_rows(rows_of(from, factor.data), rows_of(to, factor.data), stream_of(stream));
}

nb::dict device() {
  const cuda::Device found = cuda::current_device();
  nb::dict out;
  out["name"] = found.name;
  out["compute_capability"] = found.compute_capability;
  out["multiprocessors"] = found.multiprocessors;
  out["l2_bytes"] = found.l2_bytes;
  out["memory_bytes"] = found.memory_bytes;
  return out;
}

}  // namespace

NB_MODULE(_cuda, m) {
  nb::set_leak_warnings(false);  // as in _native
  m.def("why_unavailable", [] {
    const std::string why = cuda::why_unavailable();
    return why.empty() ? cuda::why_no_code() : why;
  });
  m.def("device", &device);
  m.def(
      "page_bytes",
      [](nb::handle format, nb::handle head_dim, nb::handle kv_heads, nb::handle values) {
        return page_bytes(format, head_dim, kv_heads, values, cuda::summary_bytes);
      },
      any("format"), any("head_dim"), any("kv_heads"), any("values"));
  m.def("summarize", &summarize_pages, any("keys"), any("values"), any("pages"), any("summaries"), nb::kw_only(),
        any("key_scale") = nb::none(), any("value_scale") = nb::none(), any("stream"));
  m.def("summarize_filled", &summarize_slots, any("keys"), any("values"), any("slots"), any("summaries"), nb::kw_only(),
        any("key_scale") = nb::none(), any("value_scale") = nb::none(), any("stream"));
  m.def("attend_workspace_bytes", &attend_bytes, nb::kw_only(), any("query_heads"), any("kv_heads"), any("head_dim"),
        any("requests"));
  m.def("attend", &attend_dense, any("queries"), any("keys"), any("values"), any("block_tables"), any("context_tokens"),
        any("out"), nb::kw_only(), any("softmax_scale"), any("key_scale") = nb::none(), any("value_scale") = nb::none(),
        any("workspace"), any("stream"));
  m.def("copy_rows", &copy_head_rows, any("source"), any("target"), nb::kw_only(), any("scale") = nb::none(), any("stream"));
  nb::class_<CudaSummaries>(m, "Summaries")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(), any("memory"), nb::kw_only(),
           any("format"), any("head_dim"), any("kv_heads"), any("values"))
      .def_prop_ro("num_pages", [](const CudaSummaries& self) { return self.store.num_pages; });
  nb::class_<CudaPlan>(m, "Plan")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(), any("config"),
           any("query_heads"), any("kv_heads"), any("head_dim"), any("softmax_scale"), any("max_requests"),
           any("max_context_tokens"))
      .def_prop_ro("workspace_bytes", &CudaPlan::workspace_bytes)
      .def("run", &CudaPlan::run, any("queries"), any("keys"), any("values"), any("summaries"), any("block_tables"),
           any("context_tokens"), any("out"), nb::kw_only(), any("key_scale") = nb::none(), any("value_scale") = nb::none(),
           any("workspace"), any("reports") = nb::none(), any("stream"));
}

}  // namespace locks::python
