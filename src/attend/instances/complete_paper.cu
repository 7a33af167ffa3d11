#include "attend/complete_kernel.cuh"

namespace locks::cuda::complete_kernels {

template void launch<FormatId::kPaper>(const Sums& args, Stream stream);

}  // namespace locks::cuda::complete_kernels
