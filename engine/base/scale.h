/*
 * scale.h - the factor by which the sum of a round is multiplied (trib_op_params.prescale and postscale), as frames
 * have it: the bits of a float64, changed so that 0 is the factor 1. So frames that say nothing scale nothing.
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

#endif
