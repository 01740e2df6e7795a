/* values.c - see values.h. */
#include "tests/support/values.h"

#include <math.h>
#include <string.h>

/* Rounds to that many digits, and to a multiple of the smallest number. `exponent`: the value is below its power. */
static double round_to(double value, int exponent, int digits, int lowest)
{
    exponent = exponent > lowest ? exponent : lowest;
    return ldexp(nearbyint(ldexp(value, digits - exponent)), exponent - digits);
}

double values_round(trib_dtype dtype, double value)
{
    int exponent = 0;
    (void)frexp(value, &exponent); /* the value is below 2^exponent */
    switch (dtype) {
    case TRIB_FLOAT16:
        return round_to(value, exponent, 11, -13);
    case TRIB_BFLOAT16:
        return round_to(value, exponent, 8, -125);
    case TRIB_FLOAT8_E4M3:
        return round_to(value, exponent, 4, -5);
    case TRIB_FLOAT8_E5M2:
        return round_to(value, exponent, 3, -13);
    case TRIB_FLOAT32:
        return (float)value;
    default:
        return value;
    }
}

/* Values that a type can hold have exactly one bit pattern. Half precision goes by way of float. */
static uint16_t to_half(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) == 0) {
        return (uint16_t)(bits >> 16);
    }
    const float size = value < 0 ? -value : value;
    if (size < 0x1p-14f) { /* subnormal: in steps of 2^-24 */
        return (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)(size * 0x1p24f));
    }
    const uint32_t exponent = ((bits >> 23) & 0xffu) - 127u + 15u;
    return (uint16_t)((bits >> 16 & 0x8000u) | exponent << 10 | (bits >> 13 & 0x3ffu));
}

/* A subnormal's exponent field is 0, and the hidden digit is missing: the sum covers both. */
static uint8_t to_float8(double value, int fraction, int bias)
{
    const unsigned sign = signbit(value) ? 0x80u : 0;
    int exponent = 0;
    (void)frexp(value, &exponent);
    exponent = value != 0 && exponent - 1 > 1 - bias ? exponent - 1 : 1 - bias;
    const unsigned whole = (unsigned)ldexp(fabs(value), fraction - exponent);
    return (uint8_t)(sign | (((unsigned)(exponent + bias - 1) << fraction) + whole));
}

static double from_float8(uint8_t bits, int fraction, int bias)
{
    const int field = (bits & 0x7f) >> fraction, rest = bits & ((1 << fraction) - 1);
    const int whole = field == 0 ? rest : rest + (1 << fraction);
    const double size = ldexp(whole, (field == 0 ? 1 : field) - bias - fraction);
    return (bits & 0x80) != 0 ? -size : size;
}

void values_store(trib_dtype dtype, void *buffer, uint64_t i, double value)
{
    const float single = (float)value;
    uint32_t bits = 0;
    memcpy(&bits, &single, sizeof bits);
    switch (dtype) {
    case TRIB_FLOAT32:
        ((float *)buffer)[i] = single;
        break;
    case TRIB_FLOAT64:
        ((double *)buffer)[i] = value;
        break;
    case TRIB_FLOAT16:
        ((uint16_t *)buffer)[i] = to_half(single);
        break;
    case TRIB_BFLOAT16:
        ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
        break;
    case TRIB_INT8:
    case TRIB_UINT8:
        ((uint8_t *)buffer)[i] = (uint8_t)(int64_t)value;
        break;
    case TRIB_BOOL:
        ((uint8_t *)buffer)[i] = value != 0;
        break;
    case TRIB_INT16:
    case TRIB_UINT16:
        ((uint16_t *)buffer)[i] = (uint16_t)(int64_t)value;
        break;
    case TRIB_INT32:
    case TRIB_UINT32:
        ((uint32_t *)buffer)[i] = (uint32_t)(int64_t)value;
        break;
    case TRIB_FLOAT8_E4M3:
        ((uint8_t *)buffer)[i] = to_float8(value, 3, 7);
        break;
    case TRIB_FLOAT8_E5M2:
        ((uint8_t *)buffer)[i] = to_float8(value, 2, 15);
        break;
    default:
        ((int64_t *)buffer)[i] = (int64_t)value;
        break;
    }
}

static double from_half(uint16_t bits)
{
    const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
    const int exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0x1f) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

double values_load(trib_dtype dtype, const void *buffer, uint64_t i)
{
    uint32_t bits = 0;
    float single = 0;
    switch (dtype) {
    case TRIB_FLOAT32:
        return ((const float *)buffer)[i];
    case TRIB_FLOAT64:
        return ((const double *)buffer)[i];
    case TRIB_FLOAT16:
        return from_half(((const uint16_t *)buffer)[i]);
    case TRIB_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)buffer)[i] << 16;
        memcpy(&single, &bits, sizeof single);
        return single;
    case TRIB_INT8:
        return ((const int8_t *)buffer)[i];
    case TRIB_UINT8:
    case TRIB_BOOL:
        return ((const uint8_t *)buffer)[i];
    case TRIB_INT16:
        return ((const int16_t *)buffer)[i];
    case TRIB_UINT16:
        return ((const uint16_t *)buffer)[i];
    case TRIB_INT32:
        return ((const int32_t *)buffer)[i];
    case TRIB_UINT32:
        return ((const uint32_t *)buffer)[i];
    case TRIB_UINT64:
        return (double)((const uint64_t *)buffer)[i];
    case TRIB_FLOAT8_E4M3:
        return from_float8(((const uint8_t *)buffer)[i], 3, 7);
    case TRIB_FLOAT8_E5M2:
        return from_float8(((const uint8_t *)buffer)[i], 2, 15);
    default:
        return (double)((const int64_t *)buffer)[i];
    }
}
