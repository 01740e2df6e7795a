/*
 * bench_batch.c - see bench_batch.h.
 *
 * Each iteration goes through all ways, so that a machine that becomes slower does so for all of them. The time is that
 * of the slowest worker.
 */
#include "tools/cli/bench_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/part.h"
#include "tools/trace/compare.h"

#define WARMUP 2

typedef enum way { AWAITED, TOGETHER, BATCH, PREPARED, WAYS } way;
static const char *const names[WAYS] = {[AWAITED] = "one by one, each awaited",
                                        [TOGETHER] = "one by one, awaited together",
                                        [BATCH] = "one batch",
                                        [PREPARED] = "prepared, started together"};
static const char *const keys[WAYS] = {
    [AWAITED] = "awaited", [TOGETHER] = "together", [BATCH] = "batch", [PREPARED] = "prepared"};

typedef struct state {
    const bench_batch *bench;
    trib_op_params *params;
    trib_op **ops, **prepared;
    char *data;
    int64_t *times[WAYS];
} state;

static void check(const state *self, trib_status status, const trib_error *error, const char *what)
{
    part_check("bench", self->bench->engine, status, error, what);
}

static void wait_all(const state *self, trib_op **ops)
{
    trib_error error = {.status = TRIB_OK};
    const uint32_t count = self->bench->count;
    check(self, trib_op_wait_some(ops, count, count, -1, NULL, NULL, &error), &error, "wait");
}

static void release_all(const state *self)
{
    for (uint32_t i = 0; i < self->bench->count; i++) {
        trib_op_release(self->ops[i]);
    }
}

static void submit_one_by_one(const state *self, bool awaits)
{
    trib_error error = {.status = TRIB_OK};
    for (uint32_t i = 0; i < self->bench->count; i++) {
        check(self, trib_push_pull(self->bench->engine, &self->params[i], &self->ops[i], &error), &error, "submit");
        if (awaits) {
            check(self, trib_op_wait(self->ops[i], -1, &error), &error, "wait");
        }
    }
    if (!awaits) {
        wait_all(self, self->ops);
    }
    release_all(self);
}

static void go(const state *self, way how)
{
    trib_error error = {.status = TRIB_OK};
    const uint32_t count = self->bench->count;
    switch (how) {
    case AWAITED:
    case TOGETHER:
        submit_one_by_one(self, how == AWAITED);
        break;
    case BATCH:
        check(self, trib_submit_batch(self->bench->engine, self->params, count, self->ops, &error), &error, "batch");
        wait_all(self, self->ops);
        release_all(self);
        break;
    default:
        check(self, trib_op_start(self->prepared, count, 0, &error), &error, "start");
        wait_all(self, self->prepared);
        break;
    }
}

static void open_all(state *self)
{
    const bench_batch *bench = self->bench;
    trib_error error = {.status = TRIB_OK};
    self->params = part_zalloc("bench", bench->engine, bench->count, sizeof *self->params);
    self->ops = part_zalloc("bench", bench->engine, bench->count, sizeof *self->ops);
    self->prepared = part_zalloc("bench", bench->engine, bench->count, sizeof *self->prepared);
    self->data = part_alloc("bench", bench->engine, bench->count * bench->bytes);
    memset(self->data, 0, bench->count * bench->bytes);
    for (int how = 0; how < WAYS; how++) {
        self->times[how] = part_zalloc("bench", bench->engine, bench->iterations, sizeof *self->times[how]);
    }
    for (uint32_t i = 0; i < bench->count; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench batch %u", i);
        trib_op_params *params = &self->params[i];
        trib_op_params_init(params, sizeof *params);
        params->tensor = part_declare("bench", self->bench->engine, name, bench->dtype,
                                      bench->bytes / trib_dtype_size(bench->dtype));
        params->input = params->output = self->data + i * bench->bytes;
        check(self, trib_op_prepare(bench->engine, params, &self->prepared[i], &error), &error, "prepare");
    }
}

static void close_all(state *self)
{
    for (uint32_t i = 0; i < self->bench->count; i++) {
        trib_op_release(self->prepared[i]);
    }
    for (int how = 0; how < WAYS; how++) {
        free(self->times[how]);
    }
    trib_free(self->bench->engine, self->data);
    free(self->params);
    free(self->ops);
    free(self->prepared);
}

/* Leaves each iteration's time of the slowest worker in times. */
static void find_slowest(const state *self)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor =
        part_declare("bench", self->bench->engine, "bench batch times", TRIB_INT64, self->bench->iterations);
    params.reduce = TRIB_MAX;
    for (int how = 0; how < WAYS; how++) {
        trib_op *op = NULL;
        trib_error error = {.status = TRIB_OK};
        params.input = params.output = self->times[how];
        check(self, trib_push_pull(self->bench->engine, &params, &op, &error), &error, "times");
        check(self, trib_op_wait(op, -1, &error), &error, "times");
        trib_op_release(op);
    }
}

static void report(const state *self, json_t *rows)
{
    const bench_batch *bench = self->bench;
    double median_us[WAYS];
    for (int how = 0; how < WAYS; how++) {
        qsort(self->times[how], bench->iterations, sizeof *self->times[how], compare_i64_values);
        median_us[how] = (double)self->times[how][bench->iterations / 2] / 1e3;
    }
    if (rows != NULL) {
        json_t *row = json_pack("{s:i,s:I}", "operations", (int)bench->count, "bytes", (json_int_t)bench->bytes);
        for (int how = 0; how < WAYS; how++) {
            json_object_set_new(row, keys[how], json_real(median_us[how]));
        }
        json_array_append_new(rows, row);
        return;
    }
    printf("%u operations of %llu bytes, median of %u, microseconds:\n", bench->count, (unsigned long long)bench->bytes,
           bench->iterations);
    for (int how = 0; how < WAYS; how++) {
        printf("%32s %12.1f %8.2f times as fast as each awaited, %5.2f as awaited together\n", names[how],
               median_us[how], median_us[AWAITED] / median_us[how], median_us[TOGETHER] / median_us[how]);
    }
}

void bench_batch_measure(const bench_batch *bench, json_t *rows)
{
    state self = {.bench = bench};
    open_all(&self);
    for (int i = -WARMUP; i < (int)bench->iterations; i++) {
        for (int how = 0; how < WAYS; how++) {
            part_barrier("bench", bench->engine);
            const int64_t begin_ns = part_now_ns();
            go(&self, (way)how);
            if (i >= 0) {
                self.times[how][i] = part_now_ns() - begin_ns;
            }
        }
    }
    find_slowest(&self);
    if (bench->info.rank == 0) {
        report(&self, rows);
    }
    close_all(&self);
}
