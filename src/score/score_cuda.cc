// The door of the scorer on the GPU: checks, and the instance of the format.
#include <string>

#include "cuda/door.h"
#include "score/score_launch.h"

namespace locks::cuda {
namespace {

template <class Args>
void launch(const SummaryFormat& format, const Args& args, Stream stream) {
  switch (format.id) {
    case FormatId::kPaper:
      return score_kernels::launch<FormatId::kPaper>(args, stream);
    case FormatId::kGraded8:
      return score_kernels::launch<FormatId::kGraded8>(args, stream);
    case FormatId::kGraded12:
      return score_kernels::launch<FormatId::kGraded12>(args, stream);
    case FormatId::kGraded4:
      return score_kernels::launch<FormatId::kGraded4>(args, stream);
  }
  check::fail("summaries.format", "one of the library's formats", std::string(format.name));
}

void score_pages(const ScoreArgs& args, score_kernels::PageScores scores, Stream stream) {
  check::geometry(args.geometry);
  const int requests = args.table.num_requests();
  if (requests == 0 || args.log_mass.shape[2] == 0 || args.summaries.num_pages == 0) return;
  scores.records = door::key_records(args.summaries, args.geometry);
  scores.shape = door::record_shape(*args.summaries.format, args.geometry.head_dim);
  scores.table = door::table(args.table);
  scores.queries = door::queries(args.queries, args.geometry, requests);
  door::at_least("log_mass", args.log_mass, {requests, args.geometry.query_heads, 0});
  scores.context_tokens = args.table.context_tokens.data();
  scores.requests = requests;
  scores.max_pages = static_cast<int>(args.log_mass.shape[2]);
  scores.log_mass = args.log_mass.data;
  scores.request_stride = args.log_mass.stride[0];
  scores.head_stride = args.log_mass.stride[1];
  launch(*args.summaries.format, scores, stream);
}

void score_listed(const TokenScoreArgs& args, Start start, int whole_tokens, Stream stream) {
  check::geometry(args.geometry);
  door::lists(args.num_lists, args.geometry);
  const int requests = args.table.num_requests();
  if (requests == 0 || args.pages.shape[2] == 0 || args.summaries.num_pages == 0) return;
  score_kernels::TokenScores scores;
  scores.start = start;
  scores.whole_tokens = whole_tokens;
  scores.context_tokens = args.table.context_tokens.data();
  scores.records = door::key_records(args.summaries, args.geometry);
  scores.shape = door::record_shape(*args.summaries.format, args.geometry.head_dim);
  scores.table = door::table(args.table);
  scores.queries = door::queries(args.queries, args.geometry, requests);
  const std::int64_t capacity = args.pages.shape[2];
  const std::int64_t heads = args.geometry.query_heads / args.num_lists;
  door::at_least("pages", args.pages, {requests, args.num_lists, capacity});
  door::data("num_pages", args.num_pages.data);
  door::at_least("logits", args.logits, {requests, args.num_lists, capacity, heads, kPageTokens});
  door::require(args.logits.stride[3] == kPageTokens, "logits", "contiguous heads (16 floats apart)",
                "stride " + std::to_string(args.logits.stride[3]));
  scores.requests = requests;
  scores.lists = args.num_lists;
  scores.capacity = static_cast<int>(capacity);
  scores.pages = args.pages.data;
  scores.pages_request_stride = args.pages.stride[0];
  scores.pages_list_stride = args.pages.stride[1];
  scores.num_pages = args.num_pages.data;
  scores.num_request_stride = args.num_pages.stride[0];
  scores.num_list_stride = args.num_pages.stride[1];
  scores.logits = args.logits.data;
  scores.logits_request_stride = args.logits.stride[0];
  scores.logits_list_stride = args.logits.stride[1];
  scores.logits_page_stride = args.logits.stride[2];
  launch(*args.summaries.format, scores, stream);
}

}  // namespace

void score(const ScoreArgs& args, Stream stream) { score_pages(args, {}, stream); }
void score_in_step(const ScoreArgs& args, const StepPages& pages, Stream stream) {
  score_pages(args, {true, pages}, stream);
}
void score_tokens(const TokenScoreArgs& args, Stream stream) { score_listed(args, Start::kAfterPrevious, 0, stream); }
void score_tokens_in_step(const TokenScoreArgs& args, int whole_tokens, Stream stream) {
  score_listed(args, Start::kEarly, whole_tokens, stream);
}

}  // namespace locks::cuda
