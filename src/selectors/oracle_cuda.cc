// The door of the oracle's masses on the GPU.
#include <string>

#include "cuda/door.h"
#include "selectors/kernels_cuda.h"

namespace locks::cuda {
namespace rivals {

void key_masses(const KeyMassArgs& args, const ScoredPages& scored, Stream stream) {
  const Geometry& geometry = args.geometry;
  check::geometry(geometry);
  const int requests = args.table.num_requests();
  if (requests == 0 || args.log_mass.shape[2] == 0 || args.keys.num_pages == 0) return;
  check_keys(args.keys, geometry.head_dim, geometry.kv_heads);
  door::require(args.keys.block_tokens == args.table.block_tokens, "keys.block_tokens",
                "table.block_tokens (" + std::to_string(args.table.block_tokens) + ")",
                std::to_string(args.keys.block_tokens));
  const DeviceTable table = door::table(args.table);
  (void)door::queries(args.queries, geometry, requests);
  door::at_least("log_mass", args.log_mass, {requests, geometry.query_heads, 0});
  KeyMasses masses{args, table, scored, static_cast<int>(args.log_mass.shape[2]), 0, 0};
  if (args.logits.data != nullptr) {
    masses.lists = static_cast<int>(args.logits.shape[1]);
    door::lists(masses.lists, geometry);
    door::at_least("logits", args.logits, {requests, masses.lists, 0, geometry.query_heads / masses.lists, kPageTokens});
    door::require(args.logits.stride[3] == kPageTokens, "logits", "contiguous heads (16 floats apart)",
                  "stride " + std::to_string(args.logits.stride[3]));
    door::require(args.first_page >= 0, "first_page", "0 or more", std::to_string(args.first_page));
  }
  for (; masses.first_head < geometry.group_size(); masses.first_head += kHeadsAtOnce) launch(masses, stream);
}

}  // namespace rivals

void key_masses(const KeyMassArgs& args, Stream stream) { rivals::key_masses(args, {}, stream); }

}  // namespace locks::cuda
