#include "summarize/summarize_kernel.cuh"

template void locks::cuda::summarize_stage::launch<64>(const Args&, CUstream_st*);
