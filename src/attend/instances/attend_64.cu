#include "attend/attend_kernel.cuh"

namespace locks::cuda::attend_stage {
template void launch_instance<64>(const AttendParams&, DType, Stream);
}
