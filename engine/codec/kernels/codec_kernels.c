/* codec_kernels.c - chooses an implementation of the kernels. The compiler's runtime has asked the processor
 * already. */
#include "engine/codec/kernels/codec_kernels.h"

const codec_kernels *trib_codec_kernels_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            return &trib_codec_kernels_avx512;
        }
        return &trib_codec_kernels_avx2;
    }
#endif
    return &trib_codec_kernels_scalar;
}

const codec_kernels *trib_codec_kernels_at(size_t index)
{
    const codec_kernels *all[] = {
        &trib_codec_kernels_scalar,
#if defined(__x86_64__)
        &trib_codec_kernels_avx2,
        &trib_codec_kernels_avx512,
#endif
    };
    /* A processor can run the first of these and all up to its best. */
    for (size_t i = 0; i <= index && i < sizeof all / sizeof all[0]; i++) {
        if (i == index) {
            return all[i];
        }
        if (all[i] == trib_codec_kernels_best()) {
            break;
        }
    }
    return NULL;
}
