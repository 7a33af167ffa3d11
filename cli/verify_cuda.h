// One case of `locks verify` on the GPU: the stages over copies of its data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verify_shape.h"

namespace locks::cli {

class CudaStages {
 public:
  /// Whether the GPU takes caches such as the case's; what it refuses by name is no case for it.
  [[nodiscard]] static bool take(const CaseShape& shape, const CaseData& data);

  CudaStages(const CaseShape& shape, const CaseData& data);
  ~CudaStages();
  CudaStages(const CudaStages&) = delete;
  CudaStages& operator=(const CudaStages&) = delete;

  /// Made on the GPU, then copied here.
  [[nodiscard]] DecodedSummary summary(std::int64_t page, int head);
  [[nodiscard]] std::vector<float> log_mass();  // [requests, query_heads, pages], of the case's records
  [[nodiscard]] std::vector<float> dense();     // [requests, query_heads, head_dim]
  [[nodiscard]] std::vector<float> decode(const DecodeConfig& config, std::vector<DecodeReport>& reports);

 private:
  struct Device;
  const CaseShape& shape_;
  const CaseData& data_;
  std::unique_ptr<Device> device_;
};

}  // namespace locks::cli
