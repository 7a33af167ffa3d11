#include "score/pages_kernel.cuh"
#include "score/tokens_kernel.cuh"

namespace locks::cuda::score_kernels {

template void launch<FormatId::kGraded12>(const PageScores& args, Stream stream);
template void launch<FormatId::kGraded12>(const TokenScores& args, Stream stream);

}  // namespace locks::cuda::score_kernels
