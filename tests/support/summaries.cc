#include "support/summaries.h"

#include <numeric>

namespace locks::test {

SummaryData::SummaryData(const SummaryFormat& format, int head_dim, int kv_heads, const PagedCache& keys,
                         const PagedCache* values, Target target)
    : bytes_(static_cast<std::size_t>(summary_bytes(format, head_dim, kv_heads, keys.num_pages, values != nullptr))),
      store_(make_store(format, head_dim, kv_heads, keys.num_pages, values != nullptr, bytes_.data())) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(keys.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const SummarizeArgs args{
      .head_dim = head_dim, .kv_heads = kv_heads, .keys = keys, .values = values, .pages = pages, .out = store_};
  if (keys.dtype != DType::kE4M3) check_summarize(args);  // the reference reads it, the CPU's door refuses it
  report_ = summarize(args, Team{}, target);
}

DecodedSummary SummaryData::decoded(std::int64_t page, int head) const {
  return decode_record(*store_.format, store_.head_dim, store_.record(page, head));
}

DecodedValues SummaryData::decoded_values(std::int64_t page, int head) const {
  return decode_value_record(*store_.format, store_.head_dim, store_.value_record(page, head));
}

}  // namespace locks::test
