/* kernels_avx512.c - the kernels of codecs for x86-64 with AVX512: the loops are compiled with its instructions. */
#if defined(__x86_64__)
#define CODEC_KERNELS_TABLE trib_codec_kernels_avx512
#define CODEC_KERNELS_NAME "avx512"
#include "engine/codec/kernels/kernel_loops.h"
#endif
