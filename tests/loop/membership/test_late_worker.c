/*
 * test_late_worker.c - a worker that has contributed closes while another one is late. Its server or relay stays for
 * the round, which then succeeds, or fails only for the members that miss a contribution.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "numa/arena.h"
#include "tests/loop/job.h"

enum { MEMBERS = 4, TENSORS = 12, COUNT = 4096 };

typedef struct round_of_all {
    job jobs;
    trib_tensor *tensors[MEMBERS][TENSORS];
    trib_op *ops[MEMBERS][TENSORS];
    float data[MEMBERS][TENSORS][COUNT];
} round_of_all;

static void tweak(trib_config *config, int member)
{
    (void)member;
    config->reactors = 1;
    config->close_timeout_ns = INT64_C(15000000000);
    config->op_timeout_ns = INT64_C(60000000000);
}

static void two_reactors(trib_config *config, int member)
{
    tweak(config, member);
    config->reactors = 2;
}

static void two_a_machine(trib_config *config, int member)
{
    static char hosts[JOB_MEMBERS_MAX][32];
    tweak(config, member);
    snprintf(hosts[member], sizeof hosts[member], "127.0.0.%d", 1 + config->rank / 2);
    config->listen = hosts[member];
    config->local_sum = TRIB_LOCAL_SUM_AUTO;
}

static void rest(long ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static round_of_all *begin(int workers, job_tweak how)
{
    round_of_all *self = calloc(1, sizeof *self);
    assert_non_null(self);
    job_open(&self->jobs, workers, 0, how);
    for (int i = 0; i < TENSORS; i++) {
        for (int rank = 0; rank < workers; rank++) {
            char name[32];
            snprintf(name, sizeof name, "tensor %d", i);
            self->tensors[rank][i] = job_declare(self->jobs.engines[rank], name, TRIB_FLOAT32, COUNT);
            for (int k = 0; k < COUNT; k++) {
                self->data[rank][i][k] = (float)(rank + 1);
            }
        }
    }
    return self;
}

static void hand_in(round_of_all *self, int rank)
{
    for (int i = 0; i < TENSORS; i++) {
        float *data = self->data[rank][i];
        self->ops[rank][i] = job_push_pull(self->jobs.engines[rank], self->tensors[rank][i], data, data, TRIB_SUM);
    }
}

static void must_succeed(round_of_all *self, int rank)
{
    for (int i = 0; i < TENSORS; i++) {
        trib_error error = {.status = TRIB_OK};
        const trib_status status = job_wait(self->ops[rank][i], &error);
        if (status != TRIB_OK) {
            fail_msg("rank %d, tensor %d: %s: %s", rank, i, trib_status_name(status), error.text);
        }
        const int n = self->jobs.worker_count;
        assert_true(self->data[rank][i][COUNT - 1] == (float)(n * (n + 1) / 2));
    }
}

static void end(round_of_all *self)
{
    job_close(&self->jobs);
    free(self);
}

/* The late worker is on the closing worker's machine, or on another one. */
static void run_machines(int closes, int late)
{
    round_of_all *self = begin(4, two_a_machine);
    trib_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(trib_engine_get_info(self->jobs.engines[0], &info), TRIB_OK);
    assert_int_equal(info.local_sum, 2);
    for (int rank = 0; rank < 4; rank++) {
        if (rank != late) {
            hand_in(self, rank);
        }
    }
    job_await_contributed(self->jobs.engines[closes]);
    trib_engine_close(self->jobs.engines[closes], NULL, NULL);
    rest(1500); /* stall notices arrive meanwhile; the test covers less if they do not */
    hand_in(self, late);
    for (int rank = 0; rank < 4; rank++) {
        for (int i = 0; rank == closes && i < TENSORS; i++) {
            assert_int_equal(job_wait(self->ops[rank][i], NULL), TRIB_CLOSED);
        }
        if (rank != closes) {
            must_succeed(self, rank);
        }
    }
    end(self);
}

static void of_a_machine(void **state)
{
    (void)state;
    run_machines(1, 0);
    run_machines(0, 1);
    run_machines(1, 2);
}

/* The news of a departure reaches core 0. The only round that is waited for may be on another core. */
static void run_round(int which)
{
    round_of_all *self = begin(4, two_reactors);
    trib_op *ops[3] = {NULL};
    for (int rank = 1; rank < 3; rank++) {
        float *data = self->data[rank][which];
        ops[rank] = job_push_pull(self->jobs.engines[rank], self->tensors[rank][which], data, data, TRIB_SUM);
    }
    for (int rank = 1; rank < 3; rank++) {
        job_await_contributed(self->jobs.engines[rank]);
    }
    trib_engine_close(self->jobs.engines[1], NULL, NULL);
    rest(200); /* the news of its departure arrives meanwhile; the test covers less if it does not */
    trib_engine_close(self->jobs.engines[3], NULL, NULL); /* rank 3 has not contributed, and rank 0 is late */
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(ops[2], &error), TRIB_PEER_LEFT);
    if (strstr(error.text, "rank 3 ") == NULL) {
        fail_msg("tensor %d: %s", which, error.text);
    }
    (void)job_wait(ops[1], NULL);
    end(self);
}

static void on_any_core(void **state)
{
    (void)state;
    for (int which = 0; which < 8; which++) { /* enough tensors to reach both cores of each member */
        run_round(which);
    }
}

/* ---- A server without memory for a while ---- */

static atomic_bool learns, out_of_memory;
static trib_arena *_Atomic poor;

__typeof__(trib_arena_alloc) __real_trib_arena_alloc, __wrap_trib_arena_alloc;
void *__wrap_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment)
{
    if (atomic_load(&learns)) {
        atomic_store(&poor, arena);
    }
    return atomic_load(&out_of_memory) && arena == atomic_load(&poor) ? NULL
                                                                      : __real_trib_arena_alloc(arena, size, alignment);
}

/* A server that is closing resumes reading when memory is available again. */
static void without_memory_for_a_while(void **state)
{
    (void)state;
    round_of_all *self = begin(3, tweak);
    hand_in(self, 1);
    job_await_contributed(self->jobs.engines[1]);
    void *memory = NULL;
    atomic_store(&learns, true);
    assert_int_equal(trib_alloc(self->jobs.engines[1], 64, &memory), TRIB_OK);
    atomic_store(&learns, false);
    trib_free(self->jobs.engines[1], memory);
    trib_engine_close(self->jobs.engines[1], NULL, NULL);
    rest(100);
    atomic_store(&out_of_memory, true);
    hand_in(self, 0);
    hand_in(self, 2);
    rest(200);
    atomic_store(&out_of_memory, false);
    must_succeed(self, 0);
    must_succeed(self, 2);
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(job_wait(self->ops[1][i], NULL), TRIB_CLOSED);
    }
    end(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_machine),
        cmocka_unit_test(on_any_core),
        cmocka_unit_test(without_memory_for_a_while),
    };
    return cmocka_run_group_tests_name("late", tests, NULL, NULL);
}
