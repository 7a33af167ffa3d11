// Arguments that the modules for the CPU and for CUDA have in common, checked and made the library's own.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "arrays.h"
#include "locks/decode.h"
#include "locks/page_summary.h"

namespace locks::python {

// With these limits a workspace is at most 2^64 bytes: its largest part has requests * heads^2 * pages * 16 floats.
inline constexpr int kMostHeads = 1024;
inline constexpr int kMostRequests = 8192;
inline constexpr int kMostContextTokens = 1 << 28;
inline constexpr std::array kCombines{"sum", "max", "per_query_head"};

/// Calls a check of the library, some of whose arguments have other names here.
template <class Check>
void with_our_names(const Check& check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    std::string text = error.what();
    for (const auto& [theirs, ours] : {std::pair<std::string_view, const char*>{"table.context_tokens", "context_tokens"},
                                       {"table.blocks", "block_tables"},
                                       {"summary format", "format: summary format"}}) {
      if (text.starts_with(theirs)) text.replace(0, theirs.size(), ours);
    }
    throw std::invalid_argument(text);
  }
}

const SummaryFormat& format_of(nb::handle value);
int head_dim_of(nb::handle value);
float scale_of(nb::handle value);
DecodeConfig decode_config(nb::handle config);
DecodePlan decode_plan(nb::handle config, nb::handle query_heads, nb::handle kv_heads, nb::handle head_dim,
                       nb::handle softmax_scale, nb::handle max_requests, nb::handle max_context_tokens, int threads);

/// Queries or outputs: float32 [rows, query_heads, head_dim].
Array head_rows(nb::handle object, const char* argument, const char* rows, const std::vector<std::int64_t>& shape,
                Access access, Memory memory = Memory::kCpu);

/// Row p of the memory: page p's records, one per KV head side by side, and behind them the value parts likewise. How many
/// bytes a record takes, and so a row, is for the backend to say.
struct SummaryRows {
  using Bytes = std::int64_t(const SummaryFormat&, int head_dim, int kv_heads, std::int64_t pages, bool values);
  using Layout = SummaryStore(const SummaryFormat&, int head_dim, int kv_heads, std::int64_t pages, bool values,
                              std::byte* memory);
  SummaryRows(nb::handle object, nb::handle format, nb::handle head_dim, nb::handle heads, nb::handle values, Bytes* bytes,
              Layout* layout, Memory where);

  int kv_heads;
  Array memory;
  SummaryStore store;
};
std::int64_t page_bytes(nb::handle format, nb::handle head_dim, nb::handle kv_heads, nb::handle values,
                        SummaryRows::Bytes* bytes);
void check_planned(const DecodePlan& plan, const SummaryRows& summaries);

inline auto any(const char* name) { return nb::arg(name).none(); }  // None too: our own checks say what is wrong

}  // namespace locks::python
