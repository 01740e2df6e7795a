/*
 * kernels.c - chooses an implementation of the kernels. Each call asks the processor, so there is no shared state.
 */
#include "stages/kernels/kernels.h"

#include "stages/kernels/sum_common.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/*
 * __builtin_cpu_supports also checks that the operating system saves the registers. Some compilers do not accept
 * F16C there. Every physical processor with AVX2 has F16C and FMA, but virtual ones may have any combination.
 */
static bool runs_avx2(void)
{
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return has_f16c && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const trib_kernels *trib_kernels_at(size_t index)
{
    const trib_kernels *runnable[4] = {&trib_kernels_scalar};
    size_t count = 1;
#if defined(__x86_64__)
    if (runs_avx2()) {
        runnable[count++] = &trib_kernels_avx2;
    }
    if (runs_avx512()) {
        runnable[count++] = &trib_kernels_avx512;
    }
#endif
    _Static_assert(sizeof runnable / sizeof runnable[0] >= 3, "scalar, AVX2 and AVX-512");
    return index < count ? runnable[index] : NULL;
}

const trib_kernels *trib_kernels_best(void)
{
    const trib_kernels *best = trib_kernels_at(0);
    for (size_t i = 1; trib_kernels_at(i) != NULL; i++) {
        best = trib_kernels_at(i);
    }
    return best;
}

const trib_kernels *trib_kernels_by_name(const char *name)
{
    for (size_t i = 0; trib_kernels_at(i) != NULL; i++) {
        if (strcmp(trib_kernels_at(i)->name, name) == 0) {
            return trib_kernels_at(i);
        }
    }
    return NULL;
}
