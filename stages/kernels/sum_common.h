/*
 * sum_common.h - shared by the kernel implementations: their tables, and exact division by a constant.
 *
 * Every function here is static. The including files are compiled for different processors, and the linker could
 * pick an external function compiled for the wrong one.
 */
#ifndef TRIB_STAGES_SUM_COMMON_H
#define TRIB_STAGES_SUM_COMMON_H

#include "engine/base/kernel_ops.h"

#include <string.h>

extern const trib_kernels trib_kernels_scalar;
#if defined(__x86_64__)
extern const trib_kernels trib_kernels_avx2;
extern const trib_kernels trib_kernels_avx512;
void *trib_copy_nontemporal(void *restrict dst, const void *restrict src,
                            size_t size); /* runs on every x86-64 processor */
#endif

#define SUM_INLINE static inline __attribute__((always_inline, unused))

#define SUM_F32_NAN 0x7fc00000u
#define SUM_F64_NAN 0x7ff8000000000000u
#define SUM_F16_NAN 0x7e00u
#define SUM_F16_INFINITY 0x7c00u
#define SUM_BF16_NAN 0x7fc0u
#define SUM_BF16_INFINITY 0x7f80u

__extension__ typedef unsigned __int128 sum_u128;

/*
 * The number of contributors in the forms that finishing needs. Integer quotients use multiplication by a rounded-up
 * reciprocal (Granlund and Montgomery, PLDI'94). The reciprocal has one bit more than the operand, and the result is
 * exact for every unsigned x of N bits:
 *
 * high = (x * m) >> N
 * quotient = (high + ((x - high) >> shift_first)) >> shift_last
 */
typedef struct sum_divisor {
    float f32;
    double f64;
    uint32_t multiplier_32;
    uint64_t multiplier_64;
    uint32_t shift_first; /* 0 for a divisor of 1, otherwise 1 */
    uint32_t shift_last;  /* 0..31 */
} sum_divisor;

static inline sum_divisor sum_divisor_of(uint32_t divisor)
{
    uint32_t bits = 0; /* the smallest with 2^bits >= divisor */
    while (((uint64_t)1 << bits) < divisor) {
        bits++;
    }
    const uint64_t excess = ((uint64_t)1 << bits) - divisor;
    const sum_divisor result = {
        .f32 = (float)divisor,
        .f64 = (double)divisor,
        .multiplier_32 = (uint32_t)((excess << 32) / divisor + 1),
        .multiplier_64 = (uint64_t)(((sum_u128)excess << 64) / divisor + 1),
        .shift_first = bits > 0 ? 1 : 0,
        .shift_last = bits > 0 ? bits - 1 : 0,
    };
    return result;
}

/* Divides value, a signed 64-bit number, truncating towards zero. */
SUM_INLINE uint64_t sum_divide_i64(uint64_t value, const sum_divisor *by)
{
    const uint64_t sign = (uint64_t)0 - (value >> 63);
    const uint64_t magnitude = (value ^ sign) - sign;
    const uint64_t high = (uint64_t)(((sum_u128)magnitude * by->multiplier_64) >> 64);
    const uint64_t quotient = (high + ((magnitude - high) >> by->shift_first)) >> by->shift_last;
    return (quotient ^ sign) - sign;
}

#endif
