/* values.c - see values.h. */
#include "tests/support/values.h"

#include <math.h>
#include <string.h>

double values_round(trib_dtype dtype, double value)
{
    int exponent = 0;
    (void)frexp(value, &exponent); /* the value is below 2^exponent */
    switch (dtype) {
    case TRIB_FLOAT16:
        exponent = exponent > -13 ? exponent : -13;
        return ldexp(nearbyint(ldexp(value, 11 - exponent)), exponent - 11);
    case TRIB_BFLOAT16:
        return ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8);
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
        ((uint8_t *)buffer)[i] = (uint8_t)(int)value;
        break;
    case TRIB_INT32:
        ((int32_t *)buffer)[i] = (int32_t)value;
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
        return ((const uint8_t *)buffer)[i];
    case TRIB_INT32:
        return ((const int32_t *)buffer)[i];
    default:
        return (double)((const int64_t *)buffer)[i];
    }
}
