/*
 * sum_small_floats.h - floats of 8 and 16 bits: the primitives of sum_template.h that every implementation makes of its
 * own narrow_float8, extreme_16 and extreme_8.
 */
#ifndef TRIB_STAGES_SUM_SMALL_FLOATS_H
#define TRIB_STAGES_SUM_SMALL_FLOATS_H

SUM_INLINE void narrow_e4m3(unsigned char *at, sum_vec value)
{
    narrow_float8(at, value, sum_e4m3);
}

SUM_INLINE void narrow_e5m2(unsigned char *at, sum_vec value)
{
    narrow_float8(at, value, sum_e5m2);
}

SUM_INLINE sum_vec min_f16(sum_vec left, sum_vec right)
{
    return extreme_16(left, right, SUM_F16_INFINITY, SUM_F16_NAN, true);
}

SUM_INLINE sum_vec max_f16(sum_vec left, sum_vec right)
{
    return extreme_16(left, right, SUM_F16_INFINITY, SUM_F16_NAN, false);
}

SUM_INLINE sum_vec min_bf16(sum_vec left, sum_vec right)
{
    return extreme_16(left, right, SUM_BF16_INFINITY, SUM_BF16_NAN, true);
}

SUM_INLINE sum_vec max_bf16(sum_vec left, sum_vec right)
{
    return extreme_16(left, right, SUM_BF16_INFINITY, SUM_BF16_NAN, false);
}

SUM_INLINE sum_vec min_e4m3(sum_vec left, sum_vec right)
{
    return extreme_8(left, right, SUM_E4M3_LARGEST, SUM_E4M3_NAN, true);
}

SUM_INLINE sum_vec max_e4m3(sum_vec left, sum_vec right)
{
    return extreme_8(left, right, SUM_E4M3_LARGEST, SUM_E4M3_NAN, false);
}

SUM_INLINE sum_vec min_e5m2(sum_vec left, sum_vec right)
{
    return extreme_8(left, right, SUM_E5M2_INFINITY, SUM_E5M2_NAN, true);
}

SUM_INLINE sum_vec max_e5m2(sum_vec left, sum_vec right)
{
    return extreme_8(left, right, SUM_E5M2_INFINITY, SUM_E5M2_NAN, false);
}

#endif
