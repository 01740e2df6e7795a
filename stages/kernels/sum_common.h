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
#define SUM_E4M3_NAN 0x7fu
#define SUM_E4M3_LARGEST 0x7eu /* E4M3 has no infinity */
#define SUM_E5M2_NAN 0x7eu
#define SUM_E5M2_INFINITY 0x7cu

/*
 * How a float32 becomes an 8-bit float. The fields but the last two are bits of magnitudes of float32. A number near
 * `steps` has the steps that the type's denormals have, so adding it rounds a denormal correctly.
 */
typedef struct sum_float8 {
    uint32_t shift;        /* bits of the fraction that are rounded away */
    uint32_t rebias;       /* the difference of the exponents' biases */
    uint32_t steps;        /* a power of two */
    uint32_t normal_from;  /* the smallest normal number */
    uint32_t finite_until; /* the largest float32 that rounds to a finite number */
    uint32_t nan_above;    /* larger numbers become NaN; numbers between the two become infinity */
    uint32_t infinity;
    uint32_t nan;
} sum_float8;

static const sum_float8 sum_e4m3 __attribute__((unused)) = {.shift = 20,
                                                            .rebias = 120u << 23,
                                                            .steps = 0x46800000u,
                                                            .normal_from = 0x3c800000u,
                                                            .finite_until = 0x43e80000u,
                                                            .nan_above = 0x43e80000u,
                                                            .infinity = SUM_E4M3_NAN,
                                                            .nan = SUM_E4M3_NAN};
_Static_assert(SUM_F16_INFINITY < SUM_F16_NAN && SUM_BF16_INFINITY < SUM_BF16_NAN, "a NaN lies above infinity");
_Static_assert(SUM_E4M3_LARGEST + 1 == SUM_E4M3_NAN, "E4M3 has one NaN, above its largest number");
_Static_assert(SUM_E5M2_INFINITY < SUM_E5M2_NAN, "a NaN has a larger magnitude than infinity");
_Static_assert(SUM_BF16_NAN == SUM_F32_NAN >> 16, "bfloat16 is the upper half of a float32");
static const sum_float8 sum_e5m2 __attribute__((unused)) = {.shift = 21,
                                                            .rebias = 112u << 23,
                                                            .steps = 0x43000000u,
                                                            .normal_from = 0x38800000u,
                                                            .finite_until = 0x476fffffu,
                                                            .nan_above = 0x7f800000u,
                                                            .infinity = SUM_E5M2_INFINITY,
                                                            .nan = SUM_E5M2_NAN};

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
    uint32_t bits = 0; /* the smallest number with 2^bits >= divisor */
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

/* Divides an unsigned 64-bit number. */
SUM_INLINE uint64_t sum_divide_u64(uint64_t value, const sum_divisor *by)
{
    const uint64_t high = (uint64_t)(((sum_u128)value * by->multiplier_64) >> 64);
    return (high + ((value - high) >> by->shift_first)) >> by->shift_last;
}

/* Divides value, a signed 64-bit number, truncating towards zero. */
SUM_INLINE uint64_t sum_divide_i64(uint64_t value, const sum_divisor *by)
{
    const uint64_t sign = (uint64_t)0 - (value >> 63);
    return (sum_divide_u64((value ^ sign) - sign, by) ^ sign) - sign;
}

#endif
