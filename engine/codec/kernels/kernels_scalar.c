/* kernels_scalar.c - the kernels of codecs for every processor. */
#define CODEC_KERNELS_TABLE trib_codec_kernels_scalar
#define CODEC_KERNELS_NAME "scalar"
#include "engine/codec/kernels/kernel_loops.h"
