/*
 * kernels_reference.h - reference results of the kernels, computed in another way and one element at a time.
 *
 * Every element of every float type is exactly a double. A sum or quotient of two float32 that is rounded to double
 * and then to float32 has the bits of a single rounding, because a double has more than twice the digits. Rounding
 * to the 16-bit and 8-bit types is by search: among all values of the type it takes the nearer of the two neighbours.
 */
#ifndef TRIB_TESTS_KERNELS_REFERENCE_H
#define TRIB_TESTS_KERNELS_REFERENCE_H

#include "engine/base/kernel_ops.h"

#include <math.h>
#include <string.h>

/* The fields of a type: a float has a fraction, an integer has none. */
typedef struct ref_type {
    unsigned bytes;
    bool is_float;
    bool is_signed;
    int fraction_bits;
    int bias;
    bool is_finite; /* a float without infinities: its largest magnitude is the NaN */
} ref_type;

static const ref_type ref_types[TRIB_DTYPE_COUNT] = {
    [TRIB_FLOAT32] = {4, true, true, 23, 127, false},   [TRIB_FLOAT64] = {8, true, true, 52, 1023, false},
    [TRIB_FLOAT16] = {2, true, true, 10, 15, false},    [TRIB_BFLOAT16] = {2, true, true, 7, 127, false},
    [TRIB_INT8] = {1, false, true, 0, 0, false},        [TRIB_UINT8] = {1, false, false, 0, 0, false},
    [TRIB_INT32] = {4, false, true, 0, 0, false},       [TRIB_INT64] = {8, false, true, 0, 0, false},
    [TRIB_BOOL] = {1, false, false, 0, 0, false},       [TRIB_INT16] = {2, false, true, 0, 0, false},
    [TRIB_UINT16] = {2, false, false, 0, 0, false},     [TRIB_UINT32] = {4, false, false, 0, 0, false},
    [TRIB_UINT64] = {8, false, false, 0, 0, false},     [TRIB_FLOAT8_E4M3] = {1, true, true, 3, 7, true},
    [TRIB_FLOAT8_E5M2] = {1, true, true, 2, 15, false},
};

static inline uint64_t ref_sign_bit(const ref_type *type)
{
    return (uint64_t)1 << (type->bytes * 8 - 1);
}

/* The first magnitude that is not finite: infinity, or the NaN of a type without one. */
static inline uint64_t ref_infinity(const ref_type *type)
{
    return type->is_finite ? ref_sign_bit(type) - 1 : ref_sign_bit(type) - ((uint64_t)1 << type->fraction_bits);
}

static inline uint64_t ref_nan(const ref_type *type)
{
    return ref_infinity(type) | (uint64_t)1 << (type->fraction_bits - 1);
}

static inline uint64_t ref_load(const ref_type *type, const unsigned char *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, type->bytes); /* little-endian, as all processors that have more than one implementation */
    return bits;
}

static inline void ref_store(const ref_type *type, unsigned char *at, uint64_t bits)
{
    memcpy(at, &bits, type->bytes);
}

static inline int64_t ref_integer(const ref_type *type, uint64_t bits)
{
    const bool negative = type->is_signed && (bits & ref_sign_bit(type)) != 0;
    return (int64_t)(negative && type->bytes < 8 ? bits - 2 * ref_sign_bit(type) : bits);
}

/* Returns the magnitude of exponent and fraction. Infinity's bits are read as if there were one more exponent. */
static inline double ref_magnitude(const ref_type *type, uint64_t magnitude)
{
    const int exponent = (int)(magnitude >> type->fraction_bits);
    const uint64_t fraction = magnitude & (((uint64_t)1 << type->fraction_bits) - 1);
    const uint64_t whole = exponent == 0 ? fraction : fraction | (uint64_t)1 << type->fraction_bits;
    return ldexp((double)whole, (exponent == 0 ? 1 : exponent) - type->bias - type->fraction_bits);
}

static inline double ref_float(const ref_type *type, uint64_t bits)
{
    const uint64_t magnitude = bits & (ref_sign_bit(type) - 1);
    double value;
    if (magnitude > ref_infinity(type) || (type->is_finite && magnitude == ref_infinity(type))) {
        return NAN;
    }
    value = magnitude == ref_infinity(type) ? HUGE_VAL : ref_magnitude(type, magnitude);
    return bits & ref_sign_bit(type) ? -value : value;
}

/* Returns the bits of this type's value that is nearest to `value`; of two equally near ones, the even one. */
static inline uint64_t ref_round(const ref_type *type, double value)
{
    const uint64_t sign = signbit(value) ? ref_sign_bit(type) : 0;
    const double magnitude = fabs(value);
    uint64_t below = 0;
    uint64_t above = ref_infinity(type);
    if (isnan(value)) {
        return ref_nan(type);
    }
    if (type->bytes == 8) {
        memcpy(&below, &value, sizeof(below));
        return below;
    }
    if (magnitude >= ref_magnitude(type, above)) {
        return type->is_finite ? ref_nan(type) : sign | above;
    }
    while (above - below > 1) {
        const uint64_t middle = below + (above - below) / 2;
        if (ref_magnitude(type, middle) <= magnitude) {
            below = middle;
        } else {
            above = middle;
        }
    }
    const double down = magnitude - ref_magnitude(type, below); /* both exact: the operands are close, or one is 0 */
    const double up = ref_magnitude(type, above) - magnitude;
    const bool takes_above = up < down || (up == down && (below & 1) != 0);
    if (takes_above && type->is_finite && above == ref_infinity(type)) {
        return ref_nan(type);
    }
    return sign | (takes_above ? above : below);
}

static inline double ref_extreme(double left, double right, bool smaller)
{
    if (isnan(left) || isnan(right)) {
        return NAN;
    }
    if (left == right) {
        return (signbit(left) != 0) == smaller ? left : right; /* matters for zeros */
    }
    return (left < right) == smaller ? left : right;
}

/* The types are in the accumulators' form, `reduce` is the caller's. */
static inline uint64_t ref_combine_floats(const ref_type *acc, trib_reduce reduce, double left, double right)
{
    double value;
    if (reduce == TRIB_MIN || reduce == TRIB_MAX) {
        value = ref_extreme(left, right, reduce == TRIB_MIN);
    } else {
        value = reduce == TRIB_PRODUCT ? left * right : left + right;
    }
    return ref_round(acc, value);
}

static inline bool ref_less(const ref_type *type, uint64_t left, uint64_t right)
{
    return type->is_signed ? (int64_t)left < (int64_t)right : left < right;
}

/* A bool's sum is OR, and its product AND: truth values have no carry. */
static inline trib_reduce ref_reduce(trib_dtype dtype, trib_reduce reduce)
{
    return dtype != TRIB_BOOL ? reduce : reduce == TRIB_SUM ? TRIB_MAX : reduce == TRIB_PRODUCT ? TRIB_MIN : reduce;
}

/* Works bit by bit: the sum of two bits tells how many of them are set. */
static inline uint64_t ref_bitwise(trib_reduce reduce, uint64_t left, uint64_t right)
{
    uint64_t result = 0;
    for (int bit = 0; bit < 64; bit++) {
        const unsigned set = (left >> bit & 1) + (right >> bit & 1);
        const bool is_set = reduce == TRIB_BIT_AND ? set == 2 : reduce == TRIB_BIT_OR ? set > 0 : set == 1;
        result |= (uint64_t)is_set << bit;
    }
    return result;
}

static inline uint64_t ref_combine_integers(const ref_type *type, trib_reduce reduce, uint64_t left, uint64_t right)
{
    switch (reduce) {
    case TRIB_MIN:
        return ref_less(type, left, right) ? left : right;
    case TRIB_MAX:
        return ref_less(type, left, right) ? right : left;
    case TRIB_PRODUCT:
        return left * right;
    case TRIB_BIT_AND:
    case TRIB_BIT_OR:
    case TRIB_BIT_XOR:
        return ref_bitwise(reduce, left, right);
    default:
        return left + right;
    }
}

static inline const ref_type *ref_form_type(trib_dtype dtype, trib_reduce reduce, trib_form form)
{
    return &ref_types[form == TRIB_FORM_WIRE ? dtype : trib_acc_dtype(dtype, reduce)];
}

static inline void ref_combine(trib_dtype dtype, trib_reduce reduce, unsigned char *dst, const unsigned char *left,
                               trib_form left_form, const unsigned char *right, trib_form right_form, size_t count)
{
    const ref_type *acc = ref_form_type(dtype, reduce, TRIB_FORM_ACC);
    const ref_type *left_type = ref_form_type(dtype, reduce, left_form);
    const ref_type *right_type = ref_form_type(dtype, reduce, right_form);
    for (size_t i = 0; i < count; i++) {
        const uint64_t a = ref_load(left_type, left + i * left_type->bytes);
        const uint64_t b = ref_load(right_type, right + i * right_type->bytes);
        const uint64_t bits =
            acc->is_float ? ref_combine_floats(acc, reduce, ref_float(left_type, a), ref_float(right_type, b))
                          : ref_combine_integers(acc, ref_reduce(dtype, reduce), (uint64_t)ref_integer(left_type, a),
                                                 (uint64_t)ref_integer(right_type, b));
        ref_store(acc, dst + i * acc->bytes, bits);
    }
}

static inline void ref_finish(trib_dtype dtype, trib_reduce reduce, unsigned char *dst, const unsigned char *src,
                              trib_form form, size_t count, uint32_t contributors)
{
    const ref_type *wire = &ref_types[dtype];
    const ref_type *acc = ref_form_type(dtype, reduce, TRIB_FORM_ACC);
    const ref_type *type = ref_form_type(dtype, reduce, form);
    const uint32_t divisor = reduce == TRIB_AVG ? contributors : 1;
    const double float_divisor = acc->bytes == 8 ? (double)divisor : (double)(float)divisor;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = ref_load(type, src + i * type->bytes);
        if (wire == type && divisor == 1) {
            ref_store(wire, dst + i * wire->bytes, bits); /* a copy, NaNs included */
        } else if (wire->is_float) {
            bits = ref_round(acc, ref_float(type, bits) / float_divisor);
            ref_store(wire, dst + i * wire->bytes, ref_round(wire, ref_float(acc, bits)));
        } else if (!type->is_signed) {
            ref_store(wire, dst + i * wire->bytes, bits / divisor);
        } else {
            ref_store(wire, dst + i * wire->bytes, (uint64_t)(ref_integer(type, bits) / (int64_t)divisor));
        }
    }
}

#endif
