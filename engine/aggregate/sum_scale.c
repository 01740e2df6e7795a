/*
 * sum_scale.c - see sum_scale.h.
 *
 * Sums of 16-bit and 8-bit floats are float32. The scaled sum is rounded "to odd" to float32 first: of the two
 * neighbours, the one whose last bit is set. Rounding that to the narrow type gives what rounding the float64 at once
 * would give, as float32 has more than two bits more than the type. So the vectorized kernels can do the second step.
 */
#include "engine/aggregate/sum_scale.h"

#include <math.h>
#include <string.h>

#define BLOCK_ELEMENTS 256u

/* ---- One number ---- */

/* factor * value / divisor. The quotient is corrected by what the product and the quotient have lost. Nothing is added
 * where that is 0, so that -0 keeps its sign. */
static inline double scaled(double value, double factor, double divisor)
{
    const double product = value * factor;
    if (divisor == 1) {
        return product;
    }
    const double quotient = product / divisor;
    const double lost = fma(-quotient, divisor, product) + fma(value, factor, -product);
    return isfinite(lost) && lost != 0 ? quotient + lost / divisor : quotient;
}

static inline float to_odd(double value)
{
    float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if ((double)near != value && (bits & 1) == 0) {
        bits = fabs((double)near) < fabs(value) ? bits + 1 : bits - 1;
    }
    memcpy(&near, &bits, sizeof near);
    return near;
}

/* A NaN that is computed is positive and quiet. */
static inline float canonical_f32(float value)
{
    return value == value ? value : NAN; /* NOLINT(misc-redundant-expression): false for NaN alone */
}

static inline double canonical_f64(double value)
{
    return value == value ? value : NAN; /* NOLINT(misc-redundant-expression) */
}

/* ---- Integers ---- */

#define TRUNCATE(name, type, least, most)                                                                              \
    static inline type name(double value)                                                                              \
    {                                                                                                                  \
        if (!(value > (double)(least))) {                                                                              \
            return (least);                                                                                            \
        }                                                                                                              \
        return value >= (double)(most) ? (most) : (type)value;                                                         \
    }
TRUNCATE(to_i8, int8_t, INT8_MIN, INT8_MAX)
TRUNCATE(to_u8, uint8_t, 0, UINT8_MAX)
TRUNCATE(to_i16, int16_t, INT16_MIN, INT16_MAX)
TRUNCATE(to_u16, uint16_t, 0, UINT16_MAX)
TRUNCATE(to_i32, int32_t, INT32_MIN, INT32_MAX)
TRUNCATE(to_u32, uint32_t, 0, UINT32_MAX)
TRUNCATE(to_i64, int64_t, INT64_MIN, INT64_MAX)
TRUNCATE(to_u64, uint64_t, 0, UINT64_MAX)

/* The loop runs upwards. A result is never wider than its operand, so in place it overwrites only what was read. */
#define INTEGER_LOOP(from, to, truncate)                                                                               \
    for (size_t i = 0; i < count; i++) {                                                                               \
        from value;                                                                                                    \
        memcpy(&value, (const unsigned char *)src + i * sizeof value, sizeof value);                                   \
        const to result = truncate(scaled((double)value, factor, divisor));                                            \
        memcpy((unsigned char *)dst + i * sizeof result, &result, sizeof result);                                      \
    }                                                                                                                  \
    break

/* Pairs of the type in memory and the type of the result. */
#define PAIR(from, to) ((unsigned)(from)*TRIB_DTYPE_COUNT + (unsigned)(to))

static void scale_integers(trib_dtype from, trib_dtype to, void *dst, const void *src, size_t count, double factor,
                           double divisor)
{
    switch (PAIR(from, to)) {
    case PAIR(TRIB_INT8, TRIB_INT8):
        INTEGER_LOOP(int8_t, int8_t, to_i8);
    case PAIR(TRIB_INT32, TRIB_INT8):
        INTEGER_LOOP(int32_t, int8_t, to_i8);
    case PAIR(TRIB_UINT8, TRIB_UINT8):
        INTEGER_LOOP(uint8_t, uint8_t, to_u8);
    case PAIR(TRIB_INT32, TRIB_UINT8):
        INTEGER_LOOP(int32_t, uint8_t, to_u8);
    case PAIR(TRIB_INT16, TRIB_INT16):
        INTEGER_LOOP(int16_t, int16_t, to_i16);
    case PAIR(TRIB_INT32, TRIB_INT16):
        INTEGER_LOOP(int32_t, int16_t, to_i16);
    case PAIR(TRIB_UINT16, TRIB_UINT16):
        INTEGER_LOOP(uint16_t, uint16_t, to_u16);
    case PAIR(TRIB_INT32, TRIB_UINT16):
        INTEGER_LOOP(int32_t, uint16_t, to_u16);
    case PAIR(TRIB_INT32, TRIB_INT32):
        INTEGER_LOOP(int32_t, int32_t, to_i32);
    case PAIR(TRIB_INT64, TRIB_INT32):
        INTEGER_LOOP(int64_t, int32_t, to_i32);
    case PAIR(TRIB_UINT32, TRIB_UINT32):
        INTEGER_LOOP(uint32_t, uint32_t, to_u32);
    case PAIR(TRIB_INT64, TRIB_UINT32):
        INTEGER_LOOP(int64_t, uint32_t, to_u32);
    case PAIR(TRIB_INT64, TRIB_INT64):
        INTEGER_LOOP(int64_t, int64_t, to_i64);
    case PAIR(TRIB_UINT64, TRIB_UINT64):
        INTEGER_LOOP(uint64_t, uint64_t, to_u64);
    default:
        trib_assert(false);
    }
}

void trib_scale_integers(trib_dtype dtype, void *dst, const void *src, size_t count, double factor)
{
    scale_integers(dtype, dtype, dst, src, count, factor, 1);
}

/* ---- Floats ---- */

static void scale_f32(void *dst, const void *src, size_t count, double factor, double divisor)
{
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const unsigned char *)src + i * sizeof value, sizeof value);
        value = canonical_f32((float)scaled((double)value, factor, divisor));
        memcpy((unsigned char *)dst + i * sizeof value, &value, sizeof value);
    }
}

static void scale_f64(void *dst, const void *src, size_t count, double factor, double divisor)
{
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const unsigned char *)src + i * sizeof value, sizeof value);
        value = canonical_f64(scaled(value, factor, divisor));
        memcpy((unsigned char *)dst + i * sizeof value, &value, sizeof value);
    }
}

/* Widens elements of a narrow type, which are multiplied by 1 exactly. */
static void widen(const trib_kernels *kernels, trib_dtype dtype, float *dst, const void *src, size_t count)
{
    float ones[BLOCK_ELEMENTS];
    for (size_t i = 0; i < count; i++) {
        ones[i] = 1;
    }
    trib_kernel_combine(kernels, dtype, TRIB_PRODUCT, dst, src, TRIB_FORM_WIRE, ones, TRIB_FORM_ACC, count);
}

static void scale_narrow(const trib_kernels *kernels, trib_dtype dtype, void *dst, const void *src, trib_form form,
                         size_t count, double factor, double divisor)
{
    const size_t size = trib_dtype_size(dtype), size_in = form == TRIB_FORM_ACC ? sizeof(float) : size;
    float block[BLOCK_ELEMENTS];
    for (size_t first = 0; first < count; first += BLOCK_ELEMENTS) {
        const size_t some = count - first < BLOCK_ELEMENTS ? count - first : BLOCK_ELEMENTS;
        const unsigned char *from = (const unsigned char *)src + first * size_in;
        if (form == TRIB_FORM_ACC) {
            memcpy(block, from, some * sizeof block[0]);
        } else {
            widen(kernels, dtype, block, from, some);
        }
        for (size_t i = 0; i < some; i++) {
            block[i] = canonical_f32(to_odd(scaled((double)block[i], factor, divisor)));
        }
        trib_kernel_finish(kernels, dtype, TRIB_SUM, (unsigned char *)dst + first * size, block, TRIB_FORM_ACC, some,
                           1);
    }
}

/* ---- All types ---- */

void trib_finish_scaled(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, void *dst_wire,
                        const void *src, trib_form src_form, size_t count, uint32_t contributors, double factor)
{
    const double divisor = reduce == TRIB_AVG ? contributors : 1;
    trib_assert(trib_scale_suits(dtype, reduce) && contributors > 0);
    if (!trib_dtype_is_float(dtype)) {
        const trib_dtype from = src_form == TRIB_FORM_ACC ? trib_acc_dtype(dtype, reduce) : dtype;
        scale_integers(from, dtype, dst_wire, src, count, factor, divisor);
    } else if (dtype == TRIB_FLOAT32) {
        scale_f32(dst_wire, src, count, factor, divisor);
    } else if (dtype == TRIB_FLOAT64) {
        scale_f64(dst_wire, src, count, factor, divisor);
    } else {
        scale_narrow(kernels, dtype, dst_wire, src, src_form, count, factor, divisor);
    }
}
