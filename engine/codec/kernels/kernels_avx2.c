/* kernels_avx2.c - the kernels of codecs for x86-64 with AVX2: the loops are compiled with its instructions. */
#if defined(__x86_64__)
#define CODEC_KERNELS_TABLE trib_codec_kernels_avx2
#define CODEC_KERNELS_NAME "avx2"
#include "engine/codec/kernels/kernel_loops.h"
#endif
