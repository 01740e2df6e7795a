/*
 * kernels.h - the sums themselves: which implementations there are, and what exactly they compute.
 *
 * Every implementation gives the same bits for the same operands, so that machines of different age can share a job
 * and a sum can move from one to another. That needs these rules; tests/unit/stages/test_kernels.c holds each to them.
 *
 * SUM, AVG   Integers wrap modulo 2^bits of the accumulator. Floats round to nearest even, with denormals; no fused
 *            operations. A result that is NaN is always the same NaN: positive, quiet, no payload (0x7fc00000 in
 *            float32, 0x7e00 in float16, 0x7fc0 in bfloat16). Processors disagree about whose payload survives, and
 *            compilers about which operand comes first; this costs nothing that can be measured next to memory.
 * MIN, MAX   Of floats: NaN (the same) if an operand is NaN; -0.0 is below +0.0.
 * finish     AVG of floats divides in the accumulator's type, then rounds to the wire type; of integers truncates
 *            towards zero, exactly, and keeps the low bits if contributors were claimed too few for the sum. Going to
 *            float16 or bfloat16 rounds to nearest even: overflow to infinity, gradual underflow, NaN as above.
 *            A plain copy (see engine/base/kernel_ops.h) leaves NaNs as they are.
 *
 * Threads that call these must have the floating-point environment that processes start with: rounding to nearest, no
 * flush-to-zero. A host whose threads set another one gets what it asked for, and other bits than its peers.
 */
#ifndef TRIB_STAGES_KERNELS_H
#define TRIB_STAGES_KERNELS_H

#include "engine/base/kernel_ops.h"

/* The fastest implementation that this processor runs; never NULL. */
const trib_kernels *trib_kernels_best(void);

/* "scalar", "avx2" or "avx512"; NULL if there is no such implementation or this processor cannot run it. */
const trib_kernels *trib_kernels_by_name(const char *name);

/* Implementations that this processor runs, slowest first; NULL from index = how many there are. */
const trib_kernels *trib_kernels_at(size_t index);

#endif
