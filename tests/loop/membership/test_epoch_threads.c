/*
 * test_epoch_threads.c - threads of the caller look at an engine and make groups while its membership changes, which
 * empties the cores and writes ranks and counts. The thread sanitizer sees whether they read any of that unguarded.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { WORKERS = 2, EPOCHS = 24 };

typedef struct looker {
    trib_engine *engine;
    int rank;
    trib_tensor *slices;
    atomic_uint turns; /* that it has had */
    atomic_bool *ends;
    trib_status wrong; /* TRIB_OK: nothing was */
} looker;

/* An answer that a change of the membership explains is right, too, or that groups have not ended everywhere. */
static void note(looker *self, trib_status status)
{
    self->wrong = status == TRIB_OK || status == TRIB_EPOCH_CHANGED || status == TRIB_TIMEOUT || status == TRIB_BUSY
                      ? self->wrong
                      : status;
}

static void make_group(looker *self)
{
    const int32_t ranks[WORKERS] = {0, 1};
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "both";
    desc.ranks = ranks;
    desc.rank_count = WORKERS;
    trib_group *group = NULL;
    trib_error error = {.status = TRIB_OK};
    note(self, trib_group_create(self->engine, &desc, &group, &error));
    note(self, trib_group_release(group, &error));
}

/* The operation comes to nothing, as its root is no rank. */
static void submit(looker *self)
{
    int32_t value = 1;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.flags = TRIB_OP_ONCE;
    params.dtype = TRIB_INT32;
    params.bytes = sizeof value;
    params.input = params.output = &value;
    params.root = WORKERS;
    trib_error error = {.status = TRIB_OK};
    const trib_status status = trib_broadcast(self->engine, &params, NULL, &error);
    note(self, status == TRIB_INVALID ? TRIB_OK : status == TRIB_OK ? TRIB_SYSTEM : status);
}

/* Where the others have not declared the tensor in this epoch, core 0 is asked to. */
static void count_slices(looker *self)
{
    uint64_t counts[WORKERS];
    size_t count = 0;
    const trib_status status = trib_tensor_counts(self->slices, counts, WORKERS, &count, NULL);
    note(self, status == TRIB_AGAIN ? TRIB_OK : status);
}

static void write_trace(looker *self)
{
    char pattern[64], path[64];
    snprintf(pattern, sizeof pattern, "/tmp/epoch_threads.%d.%%p", self->rank);
    snprintf(path, sizeof path, "/tmp/epoch_threads.%d.%ld", self->rank, (long)getpid());
    trib_error error = {.status = TRIB_OK};
    note(self, trib_trace_start(self->engine, 1 << 20, &error));
    note(self, trib_trace_write(self->engine, pattern, &error));
    trib_trace_stop(self->engine);
    (void)unlink(path);
}

static trib_tensor *declare_slices(trib_engine *engine)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "slices";
    desc.dtype = TRIB_INT32;
    desc.count = 3;
    desc.layout = TRIB_SLICES;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), TRIB_OK);
    return tensor;
}

static void *look(void *user)
{
    looker *self = user;
    while (!atomic_load(self->ends)) {
        trib_error error = {.status = TRIB_OK};
        trib_waiting waiting[4];
        size_t count = 0;
        trib_stats stats = {.struct_size = sizeof stats};
        note(self, trib_engine_waiting(self->engine, waiting, 4, &count));
        note(self, trib_engine_get_stats(self->engine, &stats));
        note(self, trib_trace_start(self->engine, 1 << 20, &error));
        trib_trace_stop(self->engine);
        count_slices(self);
        submit(self);
        make_group(self); /* hundreds have not ended at each change */
        if (atomic_fetch_add(&self->turns, 1) % 8 == 0) {
            write_trace(self);
        }
    }
    return NULL;
}

static void survives(trib_config *config, int member)
{
    (void)member;
    config->survive = TRIB_SURVIVE_WORKERS;
    config->reactors = 2;
}

static void callers_meet_changes(void **state)
{
    (void)state;
    job jobs;
    atomic_bool ends = false;
    looker lookers[WORKERS];
    pthread_t threads[WORKERS];
    trib_error error = {.status = TRIB_OK};
    job_open(&jobs, WORKERS, 0, survives);
    for (int i = 0; i < WORKERS; i++) {
        lookers[i] = (looker){.engine = jobs.engines[i], .rank = i, .ends = &ends, .wrong = TRIB_OK};
        lookers[i].slices = declare_slices(jobs.engines[i]);
        assert_int_equal(pthread_create(&threads[i], NULL, look, &lookers[i]), 0);
    }
    for (uint32_t epoch = 0; epoch < EPOCHS || atomic_load(&lookers[0].turns) < 2; epoch++) {
        for (int i = 0; i < WORKERS; i++) {
            assert_int_equal(trib_membership_advance(jobs.engines[i], NULL, NULL, &error), TRIB_OK);
        }
        for (int i = 0; i < WORKERS; i++) {
            assert_int_equal(trib_membership_wait(jobs.engines[i], -1, NULL, &error), TRIB_OK);
        }
    }
    atomic_store(&ends, true);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(lookers[i].wrong, TRIB_OK);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(callers_meet_changes)};
    return cmocka_run_group_tests_name("epoch threads", tests, NULL, NULL);
}
