/* bench_batch.h - `tributary bench --batch`: the cost of submitting many small operations, in four ways. */
#ifndef TRIB_TOOLS_BENCH_BATCH_H
#define TRIB_TOOLS_BENCH_BATCH_H

#include <jansson.h>

#include "api/tributary.h"

typedef struct bench_batch {
    trib_engine *engine;
    trib_engine_info info;
    uint32_t count, iterations;
    uint64_t bytes; /* size of each operation; whole elements of dtype */
    trib_dtype dtype;
} bench_batch;

/* Measures, and prints a table on rank 0. With rows, fills that array instead. */
void bench_batch_measure(const bench_batch *bench, json_t *rows);

#endif
