/* bench_ops.h - the operations that `tributary bench` measures: their buffers, their results, and the bytes that they
 * move. */
#ifndef TRIB_TOOLS_BENCH_OPS_H
#define TRIB_TOOLS_BENCH_OPS_H

#include "api/tributary.h"

typedef struct bench_op {
    const char *name;
    trib_layout layout;
    bool sums;
    trib_status (*run)(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error);
} bench_op;

extern const bench_op bench_ops[];
/* Their names, with a NULL at the end. */
extern const char *const bench_op_names[];

/* An operation of one size, and the buffers of this worker. */
typedef struct bench_case {
    const bench_op *op;
    trib_dtype dtype;
    uint64_t rank, workers;
    uint32_t prescale, postscale; /* factors of a sum; 0: none */
    uint64_t count; /* elements by which nccl-tests counts the size: of the larger one of input and output */
    uint64_t slice; /* elements of a worker's slice */
    unsigned char *data, *other; /* other: the second buffer, where input and output cannot share memory */
} bench_case;

/* Elements of `count` that the operation uses: slices are equally long. */
uint64_t bench_count(const bench_op *op, uint64_t count, uint64_t workers);
/* Fills the buffers with the inputs, and drops the last result. */
void bench_fill(const bench_case *what);
void bench_set_buffers(const bench_case *what, trib_op_params *params);
/* The number of elements of the result that are wrong. */
uint64_t bench_count_wrong(const bench_case *what);
/* The part of each byte of the size that a link carries, as nccl-tests counts for its bus bandwidth. */
double bench_bus_factor(const bench_case *what);

#endif
