#include "summarize/summarize_kernel.cuh"

template void locks::cuda::summarize_stage::launch<96>(const Args&, CUstream_st*);
