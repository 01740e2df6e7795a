/* values.c - see values.h. */
#include "tests/support/values.h"

#include <string.h>

/* What a type can hold has one pattern of bits in it; half precision by way of float. */
static uint16_t to_half(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) == 0) {
        return (uint16_t)(bits >> 16);
    }
    const float size = value < 0 ? -value : value;
    if (size < 0x1p-14f) { /* in steps of 2^-24 */
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
