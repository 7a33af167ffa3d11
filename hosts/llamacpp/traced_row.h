// One decoded row in one layer, as a trace shows it: what was attended, and the shares of the attention mass that pages had
// and were estimated to have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "locks/decode.h"

namespace locks::llamacpp {

struct TracedRow {
  std::int64_t step = 0;  // of the trace
  int row = 0;            // of the step
  int cache = 0;
  std::uint64_t sequence = 0;
  int layer = 0;
  DecodeReport report;
  int lists = 0;
  int pages = 0;
  // Means over the query heads of a list, [lists, pages].
  std::vector<float> true_mass;       // by exact attention over everything
  std::vector<float> covered_mass;    // the part of it that is of attended tokens
  std::vector<float> estimated_mass;  // what the choice was made by; the true mass where everything was attended
  // Bit t: token t of the page, [lists, pages].
  std::vector<std::uint16_t> attended;
  std::vector<std::uint16_t> completed;  // the page's summary stood in for it
};

/// Fills in what is known of `request` behind run(): all but step, row, cache, sequence, layer and report. Computes exact
/// attention on one thread. Tokens whose product with the query is not finite have no mass. Throws std::bad_alloc.
void trace_row(const DecodePlan& plan, const DecodeInputs& inputs, std::span<std::byte> workspace, int request,
               TracedRow& out);

}  // namespace locks::llamacpp
