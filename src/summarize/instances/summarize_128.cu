#include "summarize/summarize_kernel.cuh"

template void locks::cuda::summarize_stage::launch<128>(const Args&, CUstream_st*);
