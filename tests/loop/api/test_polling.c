/* test_polling.c - an engine on the caller's loop that polls sees messages over shared memory without a turn of that
 * loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ev.h>

#include "tests/loop/job.h"

#define COUNT 1000
#define TRIES 1000000

typedef struct pair {
    struct ev_loop *loop;
    trib_engine *engines[2];
    trib_tensor *tensors[2];
    float data[2][COUNT];
    int ready, done;
} pair;

static void ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    assert_int_equal(error->status, TRIB_OK);
    ((pair *)user)->ready++;
}

static void done(pair *self, const trib_result *result, int rank)
{
    assert_int_equal(result->status, TRIB_OK);
    /* The callback runs inside a call of the same engine. */
    assert_int_equal(trib_engine_dispatch(self->engines[rank], 0), 0);
    self->done++;
}

static void done_0(const trib_result *result, void *user)
{
    done(user, result, 0);
}

static void done_1(const trib_result *result, void *user)
{
    done(user, result, 1);
}

static void join(pair *self)
{
    char address[32];
    job_free_address(address, sizeof address);
    self->loop = ev_loop_new(EVFLAG_AUTO);
    for (int i = 0; i < 2; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.mode = TRIB_MODE_ATTACHED;
        config.loop = self->loop;
        config.worker_count = 2;
        config.rank = i;
        config.coordinator = address;
        config.transport = "shm";
        config.ready_cb = ready;
        config.ready_user = self;
        assert_int_equal(trib_engine_create(&config, &self->engines[i], NULL), TRIB_OK);
    }
    while (self->ready < 2) {
        ev_run(self->loop, EVRUN_ONCE);
    }
    for (int i = 0; i < 2; i++) {
        self->tensors[i] = job_declare(self->engines[i], "t", TRIB_FLOAT32, COUNT);
    }
}

static void submit(pair *self)
{
    self->done = 0;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < COUNT; k++) {
            self->data[i][k] = (float)(k * (i + 1));
        }
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = self->tensors[i];
        params.input = params.output = self->data[i];
        params.done_cb = i == 0 ? done_0 : done_1;
        params.user = self;
        assert_int_equal(trib_push_pull(self->engines[i], &params, NULL, NULL), TRIB_OK);
    }
}

static void without_turns_of_the_loop(void **state)
{
    (void)state;
    pair self = {.ready = 0};
    join(&self);
    submit(&self);
    while (self.done < 2) { /* the first round also declares the tensor, which other sockets report */
        ev_run(self.loop, EVRUN_ONCE);
    }
    for (int round = 0; round < 10; round++) {
        submit(&self);
        assert_int_equal(self.done, 0); /* no operation completes inside a call that submits */
        const unsigned turns = ev_iteration(self.loop);
        for (int i = 0; i < TRIES && self.done < 2; i++) {
            (void)trib_engine_dispatch(self.engines[i % 2], 0);
        }
        assert_int_equal(self.done, 2);
        assert_int_equal(ev_iteration(self.loop), turns);
        for (int k = 0; k < COUNT; k++) {
            assert_true(self.data[0][k] == (float)(3 * k) && self.data[1][k] == (float)(3 * k));
        }
    }
    int silent = 0;
    for (int i = 0; i < TRIES && silent < 2; i++) {
        silent = trib_engine_dispatch(self.engines[i % 2], 0) == 0 ? silent + 1 : 0;
    }
    assert_int_equal(silent, 2); /* dispatch reports that nothing is left to do */
    for (int i = 1; i >= 0; i--) {
        trib_engine_close(self.engines[i], NULL, NULL);
    }
    for (int i = 1; i >= 0; i--) {
        assert_int_equal(trib_engine_destroy(self.engines[i]), TRIB_OK);
    }
    ev_loop_destroy(self.loop);
}

/* Where the engine has threads of its own they poll. */
static void not_with_threads(void **state)
{
    (void)state;
    job jobs;
    float data[COUNT] = {0};
    job_open(&jobs, 1, 0, NULL);
    trib_op *op =
        job_push_pull(jobs.engines[0], job_declare(jobs.engines[0], "t", TRIB_FLOAT32, COUNT), data, data, TRIB_SUM);
    assert_int_equal(trib_engine_dispatch(jobs.engines[0], 0), 0);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(trib_engine_dispatch(jobs.engines[0], 0), 0);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_turns_of_the_loop),
        cmocka_unit_test(not_with_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
