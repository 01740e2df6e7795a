/*
 * kernel_ops.h - the tables through which the engine calls the arithmetic that sums chunks, and that checks them.
 *
 * A contributor's chunk arrives in WIRE form: elements of the tensor's type. Chunks are combined two by two along a
 * tree. A combination is in ACCUMULATOR form, whose elements may be wider, so that nothing overflows or is rounded on
 * the way. Finishing divides (AVG) and returns to WIRE form, rounding once. stages/kernels/kernels.h has the
 * implementations, and the exact rules for NaN, zeros and rounding. The engine gets one table and passes it on.
 *
 * The tables are const and the functions keep no state, so any thread may call them.
 */
#ifndef TRIB_ENGINE_BASE_KERNEL_OPS_H
#define TRIB_ENGINE_BASE_KERNEL_OPS_H

#include "api/tributary.h"
#include "engine/base/assert.h"

typedef void *trib_copy(void *restrict dst, const void *restrict src, size_t size);

typedef enum trib_form {
    TRIB_FORM_WIRE = 0, /* elements of the tensor's type */
    TRIB_FORM_ACC = 1,  /* elements of trib_acc_dtype(dtype, reduce) */
} trib_form;

/* Buffers need no alignment. Counts are in elements. With a count of 0 no pointer is read. */
typedef struct trib_kernels {
    const char *name; /* "scalar", "avx2", "avx512" */
    void (*combine)(trib_dtype dtype, trib_reduce reduce, void *dst_acc, const void *left, trib_form left_form,
                    const void *right, trib_form right_form, size_t count);
    void (*finish)(trib_dtype dtype, trib_reduce reduce, void *dst_wire, const void *src, trib_form src_form,
                   size_t count, uint32_t contributors);
    trib_copy *copy;             /* copies a payload that is not summed */
    trib_copy *copy_nontemporal; /* the same past the caches */
} trib_kernels;

/* A way to compute the CRC32C of bytes; 0 bytes have 0. */
typedef struct trib_crc32c {
    const char *name; /* "table", "sse4.2", "armv8" */
    uint32_t (*compute)(const void *data, size_t size);
    bool is_fast; /* by the processor's own instructions, which cost little beside moving the bytes */
} trib_crc32c;

/* Returns the type of the elements in accumulator form. */
static inline trib_dtype trib_acc_dtype(trib_dtype dtype, trib_reduce reduce)
{
    const bool rounds = reduce == TRIB_SUM || reduce == TRIB_AVG || reduce == TRIB_PRODUCT;
    switch (dtype) {
    case TRIB_FLOAT16:
    case TRIB_BFLOAT16:
    case TRIB_FLOAT8_E4M3:
    case TRIB_FLOAT8_E5M2:
        return rounds ? TRIB_FLOAT32 : dtype;
    case TRIB_INT8:
    case TRIB_UINT8:
    case TRIB_INT16:
    case TRIB_UINT16:
        return reduce == TRIB_AVG ? TRIB_INT32 : dtype;
    case TRIB_INT32:
    case TRIB_UINT32:
        return reduce == TRIB_AVG ? TRIB_INT64 : dtype;
    default:
        return dtype;
    }
}

/* True if both forms are the same, so that wire bytes can serve as accumulators. */
static inline bool trib_acc_is_wire(trib_dtype dtype, trib_reduce reduce)
{
    return trib_acc_dtype(dtype, reduce) == dtype;
}

/* Returns the bytes of an element in accumulator form. */
static inline size_t trib_acc_size(trib_dtype dtype, trib_reduce reduce)
{
    trib_assert((unsigned)dtype < TRIB_DTYPE_COUNT && (unsigned)reduce < TRIB_REDUCE_COUNT);
    return trib_dtype_size(trib_acc_dtype(dtype, reduce));
}

/*
 * Computes dst_acc[i] = left[i] (+, min, ...) right[i]; trib_reduce_suits(dtype, reduce) must hold. The bits depend on
 * the two values alone. The implementation, the place in the buffer and the order of the operands do not change them.
 *
 * dst_acc may be exactly an operand that is in accumulator form (or either, if trib_acc_is_wire). Otherwise it overlaps
 * neither.
 */
static inline void trib_kernel_combine(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, void *dst_acc,
                                       const void *left, trib_form left_form, const void *right, trib_form right_form,
                                       size_t count)
{
    trib_assert(trib_reduce_suits(dtype, reduce));
    if (count > 0) {
        kernels->combine(dtype, reduce, dst_acc, left, left_form, right, right_form, count);
    }
}

/*
 * Turns the combination of all contributors' elements into their result: AVG is divided by contributors, and
 * accumulators become wire elements.
 *
 * dst_wire is exactly src (the result then lies at its beginning) or does not overlap it. The bytes are copied, or left
 * in place, where nothing is to be done: for all but AVG in wire form, and for AVG of one contributor in wire form.
 */
static inline void trib_kernel_finish(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, void *dst_wire,
                                      const void *src, trib_form src_form, size_t count, uint32_t contributors)
{
    trib_assert(trib_reduce_suits(dtype, reduce) && contributors > 0);
    if (count > 0) {
        kernels->finish(dtype, reduce, dst_wire, src, src_form, count, contributors);
    }
}

#endif
