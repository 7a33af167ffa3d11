#include "locks/summarize.h"

#include <cstring>
#include <string>

#include "cpu/check.h"
#include "summarize/records.h"

namespace locks {
namespace summarize_stage {

void write_always_attend(const SummarizeArgs& args, std::int64_t page, int kv_head) noexcept {
  const SummaryFormat& format = *args.out.format;
  const RecordLayout at = record_layout(format, args.head_dim);
  std::byte* record = args.out.record(page, kv_head);
  std::memset(record, 0, static_cast<std::size_t>(at.record_bytes));
  record[at.format_at] = static_cast<std::byte>(format.id);
  record[at.flags_at] = std::byte{kFlagAlwaysAttend};
  if (args.out.value_data != nullptr) {
    std::memset(args.out.value_record(page, kv_head), 0,
                static_cast<std::size_t>(value_layout(format, args.head_dim).record_bytes));
  }
}

}  // namespace summarize_stage

namespace {

using CheckCache = void(std::string_view, const PagedCache&, int head_dim, int kv_heads);

void check_args(const SummarizeArgs& args, CheckCache* check_cache) {
  check::head_dim(args.head_dim);
  if (args.kv_heads < 1) check::fail("kv_heads", "at least 1", std::to_string(args.kv_heads));
  check_cache("keys", args.keys, args.head_dim, args.kv_heads);
  check::store("out", args.out, args.head_dim, args.kv_heads);
  std::int64_t known_pages = args.keys.num_pages;
  if (args.out.value_data != nullptr) {
    if (args.values == nullptr) check::fail("values", "a cache, because out.value_data is set", "a null pointer");
    check_cache("values", *args.values, args.head_dim, args.kv_heads);
    if (args.values->num_pages != known_pages) {
      check::fail("values.num_pages", std::to_string(known_pages) + " as in keys", std::to_string(args.values->num_pages));
    }
    const int bytes = value_layout(*args.out.format, args.head_dim).record_bytes;
    const auto apart = [bytes](const char* stride_name, std::int64_t stride, bool used) {
      if (used && stride < bytes) {
        check::fail(stride_name, "at least " + std::to_string(bytes) + " bytes (a value record)", std::to_string(stride));
      }
    };
    apart("out.value_page_stride", args.out.value_page_stride, args.out.num_pages > 1);
    apart("out.value_head_stride", args.out.value_head_stride, args.kv_heads > 1);
  }
  if (args.out.num_pages < known_pages) known_pages = args.out.num_pages;
  for (std::size_t i = 0; i < args.pages.size(); ++i) {
    if (args.pages[i] >= 0 && args.pages[i] < known_pages) continue;
    check::fail("pages[" + std::to_string(i) + "]",
                known_pages == 0 ? std::string("no page (the cache or the store has none)")
                                 : "a page number from 0 to " + std::to_string(known_pages - 1),
                std::to_string(args.pages[i]));
  }
}

}  // namespace

void check_summarize(const SummarizeArgs& args) { check_args(args, check::cpu_cache); }
void summarize_stage::check_gpu_args(const SummarizeArgs& args) { check_args(args, check::cache); }

SummarizeReport summarize(const SummarizeArgs& args, Team team, Target target) {
  const auto items = static_cast<std::int64_t>(args.pages.size()) * args.kv_heads;
  const auto [first, last] = team.share(items);
  SummarizeReport report{.records = last - first};
  if (target != Target::kReference) {
    report.not_finite_records = summarize_stage::summarize_simd(args, first, last, target);
    return report;
  }
  for (std::int64_t item = first; item < last; ++item) {
    const auto page = args.pages[static_cast<std::size_t>(item / args.kv_heads)];
    const bool usable = summarize_stage::summarize_reference(args, page, static_cast<int>(item % args.kv_heads));
    report.not_finite_records += usable ? 0 : 1;
  }
  return report;
}

}  // namespace locks
