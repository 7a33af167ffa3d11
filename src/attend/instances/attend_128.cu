#include "attend/attend_kernel.cuh"

namespace locks::cuda::attend_stage {
template void launch_instance<128>(const AttendParams&, DType, Stream);
}
