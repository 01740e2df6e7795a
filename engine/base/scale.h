/*
 * scale.h - the factors of a round (trib_op_params.prescale and postscale), as frames have them. The sum is multiplied
 * by one of them: the bits of a float64, changed so that 0 is the factor 1. So frames that say nothing scale nothing.
 * Integers have been multiplied by the other one, which is only compared: a float32, changed likewise.
 */
#ifndef TRIB_ENGINE_BASE_SCALE_H
#define TRIB_ENGINE_BASE_SCALE_H

#include <stdint.h>
#include <string.h>

#define TRIB_SCALE_ONE_BITS UINT64_C(0x3ff0000000000000)

static inline uint64_t trib_scale_pack(double factor)
{
    uint64_t bits;
    memcpy(&bits, &factor, sizeof bits);
    return bits ^ TRIB_SCALE_ONE_BITS;
}

static inline double trib_scale_unpack(uint64_t packed)
{
    const uint64_t bits = packed ^ TRIB_SCALE_ONE_BITS;
    double factor;
    memcpy(&factor, &bits, sizeof factor);
    return factor;
}

static inline uint32_t trib_prescale_pack(double factor)
{
    const float one = 1, rounded = (float)factor;
    uint32_t bits, one_bits;
    memcpy(&bits, &rounded, sizeof bits);
    memcpy(&one_bits, &one, sizeof one_bits);
    return bits ^ one_bits;
}

static inline double trib_prescale_unpack(uint32_t packed)
{
    const float one = 1;
    uint32_t bits;
    float factor;
    memcpy(&bits, &one, sizeof bits);
    bits ^= packed;
    memcpy(&factor, &bits, sizeof factor);
    return (double)factor;
}

#endif
