/*
 * sum_scalar.c - the kernels in portable C, one element at a time: for processors without AVX2, and the reference
 * for the other implementations.
 *
 * Floats are handled as bits, which makes conversions, NaNs and the order of zeros explicit. No result depends on a
 * compiler's handling of a NaN.
 */
#include "stages/kernels/sum_common.h"

/* The low bits hold the element. The higher bits are ignored. */
typedef uint64_t sum_vec;

#define SUM_VECTOR_BYTES 0

SUM_INLINE float f32_of(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof(value));
    return value;
}

SUM_INLINE uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

SUM_INLINE double f64_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

SUM_INLINE uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec load_8(const unsigned char *at)
{
    return *at;
}

SUM_INLINE sum_vec load_16(const unsigned char *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

SUM_INLINE sum_vec load_32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

SUM_INLINE sum_vec load_64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

SUM_INLINE void store_8(unsigned char *at, sum_vec value)
{
    *at = (unsigned char)value;
}

SUM_INLINE void store_16(unsigned char *at, sum_vec value)
{
    const uint16_t low = (uint16_t)value;
    memcpy(at, &low, sizeof(low));
}

SUM_INLINE void store_32(unsigned char *at, sum_vec value)
{
    const uint32_t low = (uint32_t)value;
    memcpy(at, &low, sizeof(low));
}

SUM_INLINE void store_64(unsigned char *at, sum_vec value)
{
    memcpy(at, &value, sizeof(value));
}

/* ---- Widening and narrowing -------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec widen_half(uint32_t half)
{
    const uint32_t magnitude = half & 0x7fff;
    /* Exponent and fraction shifted to float32 positions represent a number 2^112 too small, denormals included. */
    const uint32_t finite = bits_of_f32(f32_of(magnitude << 13) * 0x1p112f);
    const uint32_t special = 0x7f800000u | (magnitude << 13);
    return (half & 0x8000) << 16 | (magnitude < SUM_F16_INFINITY ? finite : special);
}

SUM_INLINE sum_vec widen_f16(const unsigned char *at)
{
    return widen_half((uint32_t)load_16(at));
}

SUM_INLINE void narrow_f16(unsigned char *at, sum_vec value)
{
    const uint32_t bits = (uint32_t)value;
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* A float32 near 0.5 has steps of 2^-24, as a float16 has near zero, so the addition rounds correctly. */
    const uint32_t denormal = bits_of_f32(f32_of(magnitude) + 0.5f) - bits_of_f32(0.5f);
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
    const uint32_t rounded =
        magnitude < 0x477ff000u ? finite : SUM_F16_INFINITY; /* values of 65520 and above become infinity */
    store_16(at, magnitude > 0x7f800000u ? SUM_F16_NAN : (bits >> 16 & 0x8000) | rounded);
}

SUM_INLINE sum_vec widen_bf16(const unsigned char *at)
{
    return load_16(at) << 16;
}

SUM_INLINE void narrow_bf16(unsigned char *at, sum_vec value)
{
    const uint32_t bits = (uint32_t)value;
    const uint32_t rounded =
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* rounding past the largest number gives the bits of infinity */
    store_16(at, (bits & 0x7fffffffu) > 0x7f800000u ? SUM_BF16_NAN : rounded);
}

SUM_INLINE sum_vec widen_e4m3(const unsigned char *at)
{
    const uint32_t magnitude = *at & 0x7f;
    const uint32_t finite = bits_of_f32(f32_of(magnitude << 20) * 0x1p120f); /* see widen_half */
    return (*at & 0x80u) << 24 | (magnitude <= SUM_E4M3_LARGEST ? finite : SUM_F32_NAN);
}

/* The upper half of a float16. */
SUM_INLINE sum_vec widen_e5m2(const unsigned char *at)
{
    return widen_half((uint32_t)*at << 8);
}

SUM_INLINE void narrow_float8(unsigned char *at, sum_vec value, sum_float8 to)
{
    const uint32_t bits = (uint32_t)value;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t denormal = bits_of_f32(f32_of(magnitude) + f32_of(to.steps)) - to.steps;
    const uint32_t below_half = (1u << (to.shift - 1)) - 1;
    const uint32_t normal = (magnitude - to.rebias + below_half + (magnitude >> to.shift & 1)) >> to.shift;
    const uint32_t finite = magnitude < to.normal_from ? denormal : normal;
    const uint32_t rounded = magnitude <= to.finite_until ? finite : to.infinity;
    store_8(at, magnitude > to.nan_above ? to.nan : (bits >> 24 & 0x80) | rounded);
}

SUM_INLINE sum_vec widen_i8(const unsigned char *at)
{
    return (uint64_t)(int64_t)(int8_t)*at;
}

SUM_INLINE sum_vec widen_u8(const unsigned char *at)
{
    return *at;
}

SUM_INLINE sum_vec widen_i16(const unsigned char *at)
{
    return (uint64_t)(int64_t)(int16_t)load_16(at);
}

SUM_INLINE sum_vec widen_u16(const unsigned char *at)
{
    return load_16(at);
}

SUM_INLINE sum_vec widen_u32(const unsigned char *at)
{
    return load_32(at);
}

SUM_INLINE sum_vec widen_i32(const unsigned char *at)
{
    return (uint64_t)(int64_t)(int32_t)load_32(at);
}

SUM_INLINE void narrow_i8(unsigned char *at, sum_vec value)
{
    store_8(at, value);
}

SUM_INLINE void narrow_i16(unsigned char *at, sum_vec value)
{
    store_16(at, value);
}

SUM_INLINE void narrow_i32(unsigned char *at, sum_vec value)
{
    store_32(at, value);
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

SUM_INLINE sum_vec canonical_f32(float value)
{
    return value != value ? SUM_F32_NAN : bits_of_f32(value);
}

SUM_INLINE sum_vec canonical_f64(double value)
{
    return value != value ? SUM_F64_NAN : bits_of_f64(value);
}

SUM_INLINE sum_vec add_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(f32_of(left) + f32_of(right));
}

SUM_INLINE sum_vec add_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(f64_of(left) + f64_of(right));
}

SUM_INLINE sum_vec add_8(sum_vec left, sum_vec right)
{
    return left + right;
}

SUM_INLINE sum_vec add_16(sum_vec left, sum_vec right)
{
    return left + right;
}

SUM_INLINE sum_vec add_32(sum_vec left, sum_vec right)
{
    return left + right;
}

SUM_INLINE sum_vec add_64(sum_vec left, sum_vec right)
{
    return left + right;
}

/* ---- Multiplying, and bits --------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec mul_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(f32_of(left) * f32_of(right));
}

SUM_INLINE sum_vec mul_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(f64_of(left) * f64_of(right));
}

SUM_INLINE sum_vec mul_64(sum_vec left, sum_vec right)
{
    return left * right;
}

/* The low bits of a product depend on the low bits of its factors alone. */
#define mul_8 mul_64
#define mul_16 mul_64
#define mul_32 mul_64

SUM_INLINE sum_vec and_bits(sum_vec left, sum_vec right)
{
    return left & right;
}

SUM_INLINE sum_vec or_bits(sum_vec left, sum_vec right)
{
    return left | right;
}

SUM_INLINE sum_vec xor_bits(sum_vec left, sum_vec right)
{
    return left ^ right;
}

/* ---- Dividing ---------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec div_f32(sum_vec value, const sum_divisor *by)
{
    return canonical_f32(f32_of(value) / by->f32);
}

SUM_INLINE sum_vec div_f64(sum_vec value, const sum_divisor *by)
{
    return canonical_f64(f64_of(value) / by->f64);
}

SUM_INLINE sum_vec div_i32(sum_vec value, const sum_divisor *by)
{
    const uint32_t bits = (uint32_t)value;
    const uint32_t sign = 0 - (bits >> 31);
    const uint32_t magnitude = (bits ^ sign) - sign;
    const uint32_t high = (uint32_t)((uint64_t)magnitude * by->multiplier_32 >> 32);
    const uint32_t quotient = (high + ((magnitude - high) >> by->shift_first)) >> by->shift_last;
    return (quotient ^ sign) - sign;
}

SUM_INLINE sum_vec div_i64(sum_vec value, const sum_divisor *by)
{
    return sum_divide_i64(value, by);
}

SUM_INLINE sum_vec div_u64(sum_vec value, const sum_divisor *by)
{
    return sum_divide_u64(value, by);
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/* Maps float bits to signed integers of the same order. Negative magnitudes are inverted, so -0.0 is below +0.0. */
SUM_INLINE int64_t order_of(int64_t bits, int64_t magnitude_mask)
{
    return bits < 0 ? bits ^ magnitude_mask : bits;
}

/* Takes the signed bits of two floats. A magnitude above infinity's is a NaN. */
SUM_INLINE sum_vec extreme_float(int64_t left, int64_t right, int64_t magnitude_mask, int64_t infinity, uint64_t nan,
                                 bool smaller)
{
    const bool left_less = order_of(left, magnitude_mask) < order_of(right, magnitude_mask);
    const int64_t chosen = left_less == smaller ? left : right;
    const bool is_nan = (left & magnitude_mask) > infinity || (right & magnitude_mask) > infinity;
    return is_nan ? nan : (uint64_t)chosen;
}

SUM_INLINE sum_vec extreme_16(sum_vec left, sum_vec right, int64_t infinity, uint64_t nan, bool smaller)
{
    return extreme_float((int16_t)left, (int16_t)right, 0x7fff, infinity, nan, smaller);
}

SUM_INLINE sum_vec extreme_8(sum_vec left, sum_vec right, int64_t infinity, uint64_t nan, bool smaller)
{
    return extreme_float((int8_t)left, (int8_t)right, 0x7f, infinity, nan, smaller);
}

SUM_INLINE sum_vec min_f32(sum_vec left, sum_vec right)
{
    return extreme_float((int32_t)left, (int32_t)right, INT32_MAX, 0x7f800000, SUM_F32_NAN, true);
}

SUM_INLINE sum_vec max_f32(sum_vec left, sum_vec right)
{
    return extreme_float((int32_t)left, (int32_t)right, INT32_MAX, 0x7f800000, SUM_F32_NAN, false);
}

SUM_INLINE sum_vec min_f64(sum_vec left, sum_vec right)
{
    return extreme_float((int64_t)left, (int64_t)right, INT64_MAX, 0x7ff0000000000000, SUM_F64_NAN, true);
}

SUM_INLINE sum_vec max_f64(sum_vec left, sum_vec right)
{
    return extreme_float((int64_t)left, (int64_t)right, INT64_MAX, 0x7ff0000000000000, SUM_F64_NAN, false);
}

SUM_INLINE sum_vec min_i8(sum_vec left, sum_vec right)
{
    return (int8_t)left < (int8_t)right ? left : right;
}

SUM_INLINE sum_vec max_i8(sum_vec left, sum_vec right)
{
    return (int8_t)left > (int8_t)right ? left : right;
}

SUM_INLINE sum_vec min_u8(sum_vec left, sum_vec right)
{
    return left < right ? left : right;
}

SUM_INLINE sum_vec max_u8(sum_vec left, sum_vec right)
{
    return left > right ? left : right;
}

SUM_INLINE sum_vec min_i32(sum_vec left, sum_vec right)
{
    return (int32_t)left < (int32_t)right ? left : right;
}

SUM_INLINE sum_vec max_i32(sum_vec left, sum_vec right)
{
    return (int32_t)left > (int32_t)right ? left : right;
}

SUM_INLINE sum_vec min_i64(sum_vec left, sum_vec right)
{
    return (int64_t)left < (int64_t)right ? left : right;
}

SUM_INLINE sum_vec max_i64(sum_vec left, sum_vec right)
{
    return (int64_t)left > (int64_t)right ? left : right;
}

SUM_INLINE sum_vec min_i16(sum_vec left, sum_vec right)
{
    return (int16_t)left < (int16_t)right ? left : right;
}

SUM_INLINE sum_vec max_i16(sum_vec left, sum_vec right)
{
    return (int16_t)left > (int16_t)right ? left : right;
}

SUM_INLINE sum_vec min_u16(sum_vec left, sum_vec right)
{
    return (uint16_t)left < (uint16_t)right ? left : right;
}

SUM_INLINE sum_vec max_u16(sum_vec left, sum_vec right)
{
    return (uint16_t)left > (uint16_t)right ? left : right;
}

SUM_INLINE sum_vec min_u32(sum_vec left, sum_vec right)
{
    return (uint32_t)left < (uint32_t)right ? left : right;
}

SUM_INLINE sum_vec max_u32(sum_vec left, sum_vec right)
{
    return (uint32_t)left > (uint32_t)right ? left : right;
}

SUM_INLINE sum_vec min_u64(sum_vec left, sum_vec right)
{
    return (uint64_t)left < (uint64_t)right ? left : right;
}

SUM_INLINE sum_vec max_u64(sum_vec left, sum_vec right)
{
    return (uint64_t)left > (uint64_t)right ? left : right;
}

#include "stages/kernels/sum_template.h"

const trib_kernels trib_kernels_scalar = {"scalar", combine, finish, memcpy, memcpy};
