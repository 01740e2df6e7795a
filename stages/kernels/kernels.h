/*
 * kernels.h - the sum kernels: the implementations and the exact results that they compute.
 *
 * Every implementation returns the same bits for the same operands. Machines of different ages can then share a job,
 * and a sum can move from one to another. tests/unit/stages/test_kernels.c checks each implementation against these
 * rules:
 *
 * SUM, AVG,  Integers wrap modulo 2^bits of the accumulator. Floats round to nearest even, with denormals; no fused
 * PRODUCT    operations. A NaN result is always the same NaN: positive, quiet, no payload (0x7fc00000 in float32,
 *            0x7e00 in float16, 0x7fc0 in bfloat16, 0x7f in E4M3, 0x7e in E5M2). Processors differ in whose payload
 *            survives, and compilers in the order of operands. The cost of this rule is not measurable beside that of
 *            memory.
 * AND, OR,   Of bits, without regard to the type. Bools are 0 or 1: their SUM and MAX are OR, their PRODUCT and MIN
 * XOR        are AND.
 * MIN, MAX   Of floats: the same NaN if an operand is NaN; -0.0 is below +0.0.
 * finish     AVG of floats divides in the accumulator's type, then rounds to the wire type. AVG of integers truncates
 *            towards zero, exactly, and keeps the low bits if too few contributors were claimed for the sum.
 *            Conversion to a smaller float rounds to nearest even: overflow to infinity (E4M3, which has none: to
 *            NaN), gradual underflow, NaN as above. A plain copy (see engine/base/kernel_ops.h) leaves NaNs unchanged.
 *
 * Threads that call the kernels must use the default floating-point environment: rounding to nearest, no
 * flush-to-zero. In another environment the results differ from those of the peers.
 */
#ifndef TRIB_STAGES_KERNELS_H
#define TRIB_STAGES_KERNELS_H

#include "engine/base/kernel_ops.h"

/* Returns the fastest implementation that this processor runs; never NULL. */
const trib_kernels *trib_kernels_best(void);

/* Returns "scalar", "avx2" or "avx512"; NULL if it does not exist or this processor cannot run it. */
const trib_kernels *trib_kernels_by_name(const char *name);

/* Returns the implementations that this processor runs, slowest first; NULL from their count on. */
const trib_kernels *trib_kernels_at(size_t index);

#endif
