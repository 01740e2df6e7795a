/* test_float_env.c - the host's floating-point environment does not reach sums, and the library's does not reach the
 * host: in engine threads, on a loop of the host's, and after a callback that changes its thread's environment. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>
#include <ev.h>

#include "engine/base/thread_signals.h"
#include "tests/loop/job.h"

enum { COUNT = 65536, WORKERS = 2 };

/* Rounds upward, traps, and on x86-64 flushes denormal numbers as well. */
static void spoil(void)
{
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
    feenableexcept(FE_INVALID | FE_OVERFLOW);
#endif
}

static void assert_spoilt(void)
{
    assert_int_equal(fegetround(), FE_UPWARD);
#if defined(__x86_64__)
    assert_int_equal(_mm_getcsr() & 0x8040u, 0x8040u);
    assert_int_equal(fegetexcept() & FE_INVALID, FE_INVALID);
#endif
}

/* The elements take turns: a sum that rounds differently upward, a sum that is flushed, a sum that traps. They are
 * given as bits, because float arithmetic of the test's own would depend on its environment. */
static const uint32_t inputs[3][WORKERS] = {{0x3f800000u, 0x3089705fu}, {100, 101}, {0x7f800000u, 0xff800000u}};
static const uint32_t sums[2] = {0x3f800000u, 201};

static void fill(uint32_t *data, int rank)
{
    for (int i = 0; i < COUNT; i++) {
        data[i] = inputs[i % 3][rank];
    }
}

static void check(const uint32_t *data)
{
    for (int i = 0; i < COUNT; i++) {
        const bool right = i % 3 < 2 ? data[i] == sums[i % 3] : (data[i] & 0x7fffffffu) > 0x7f800000u; /* a NaN */
        if (!right) {
            fail_msg("element %d is %08x", i, data[i]);
        }
    }
}

static void spoil_for_rank_0(trib_config *config, int member)
{
    config->reactors = 2;
    if (member == 0) {
        spoil();
    } else {
        fesetenv(FE_DFL_ENV);
    }
}

static void spoil_in_callback(const trib_result *result, void *user)
{
    (void)result;
    spoil();
    atomic_fetch_add((atomic_int *)user, 1);
}

static void sum_once(job *jobs, trib_tensor **tensors, uint32_t *const *data, trib_done_cb done_cb, atomic_int *done)
{
    trib_op *ops[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++) {
        fill(data[rank], rank);
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensors[rank];
        params.input = params.output = data[rank];
        params.done_cb = done_cb;
        params.user = done;
        assert_int_equal(trib_push_pull(jobs->engines[rank], &params, &ops[rank], NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(job_wait(ops[rank], NULL), TRIB_OK);
        check(data[rank]);
    }
}

static void engine_threads_compute_as_by_default(void **state)
{
    (void)state;
    job jobs;
    trib_tensor *tensors[WORKERS];
    uint32_t *data[WORKERS];
    atomic_int done = 0;
    job_open(&jobs, WORKERS, 0, spoil_for_rank_0);
    fesetenv(FE_DFL_ENV);
    for (int rank = 0; rank < WORKERS; rank++) {
        data[rank] = calloc(COUNT, sizeof **data);
        assert_non_null(data[rank]);
        tensors[rank] = job_declare(jobs.engines[rank], "sums", TRIB_FLOAT32, COUNT);
    }
    sum_once(&jobs, tensors, data, NULL, NULL);
    for (int i = 0; i < 4; i++) { /* each callback leaves its thread's environment changed */
        sum_once(&jobs, tensors, data, spoil_in_callback, &done);
    }
    assert_int_equal(atomic_load(&done), 4 * WORKERS);
    sum_once(&jobs, tensors, data, NULL, NULL);
    job_close(&jobs);
    for (int rank = 0; rank < WORKERS; rank++) {
        free(data[rank]);
    }
}

static void creating_keeps_the_callers(void **state)
{
    (void)state;
    spoil();
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    assert_spoilt();
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_spoilt();
    fesetenv(FE_DFL_ENV);
}

static void *see_default(void *user)
{
    volatile float one = 1.0F, little = 1e-9F;
    *(int *)user = one + little == 1.0F ? fegetround() : -1;
    return NULL;
}

/* Threads that are started after the creation have it, too. */
static void every_thread_begins_with_the_default(void **state)
{
    (void)state;
    pthread_t thread;
    int rounding = FE_UPWARD;
    spoil();
    assert_int_equal(trib_thread_start(&thread, NULL, see_default, &rounding), 0);
    assert_spoilt();
    fesetenv(FE_DFL_ENV);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(rounding, FE_TONEAREST);
}

static int called;

static void see_own(const trib_result *result, void *user)
{
    (void)user;
    assert_int_equal(result->status, TRIB_OK);
    assert_spoilt();
    called++;
}

static void own_loop_computes_as_by_default(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    char address[32];
    trib_engine *engines[WORKERS];
    uint32_t *data[WORKERS];
    assert_non_null(loop);
    job_free_address(address, sizeof address);
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.mode = TRIB_MODE_ATTACHED;
        config.loop = loop;
        config.rank = rank;
        config.worker_count = WORKERS;
        config.coordinator = address;
        assert_int_equal(trib_engine_create(&config, &engines[rank], NULL), TRIB_OK);
        data[rank] = calloc(COUNT, sizeof **data);
        assert_non_null(data[rank]);
        fill(data[rank], rank);
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = job_declare(engines[rank], "sums", TRIB_FLOAT32, COUNT);
        params.input = params.output = data[rank];
        params.done_cb = see_own;
        assert_int_equal(trib_push_pull(engines[rank], &params, NULL, NULL), TRIB_OK);
    }
    spoil();
    called = 0;
    while (called < WORKERS) {
        ev_run(loop, EVRUN_NOWAIT);
        assert_spoilt();
        (void)trib_engine_dispatch(engines[0], 0);
        assert_spoilt();
    }
    fesetenv(FE_DFL_ENV);
    for (int rank = 0; rank < WORKERS; rank++) {
        check(data[rank]);
        trib_engine_close(engines[rank], NULL, NULL);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_engine_destroy(engines[rank]), TRIB_OK);
        free(data[rank]);
    }
    ev_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_threads_compute_as_by_default),
        cmocka_unit_test(creating_keeps_the_callers),
        cmocka_unit_test(every_thread_begins_with_the_default),
        cmocka_unit_test(own_loop_computes_as_by_default),
    };
    return cmocka_run_group_tests_name("float_env", tests, NULL, NULL);
}
