/*
 * sum_scale.h - finishes sums that are multiplied by a factor, and multiplies integers before they are summed.
 */
#ifndef TRIB_ENGINE_SUM_SCALE_H
#define TRIB_ENGINE_SUM_SCALE_H

#include "engine/base/kernel_ops.h"

/* True if sums of the type with this reduction can be scaled. */
static inline bool trib_scale_suits(trib_dtype dtype, trib_reduce reduce)
{
    return dtype != TRIB_BOOL && (reduce == TRIB_SUM || reduce == TRIB_AVG);
}

/*
 * As trib_kernel_finish, for SUM and AVG, and multiplies by `factor` first. The product, and its quotient by the number
 * of contributors, are computed in float64. The result is rounded to the type once. Integers are truncated, and what
 * the type does not hold becomes its nearest value.
 */
void trib_finish_scaled(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, void *dst_wire,
                        const void *src, trib_form src_form, size_t count, uint32_t contributors, double factor);

/* dst[i] = src[i] * factor, as trib_finish_scaled computes it; for integers. dst is src, or does not overlap it. */
void trib_scale_integers(trib_dtype dtype, void *dst, const void *src, size_t count, double factor);

#endif
