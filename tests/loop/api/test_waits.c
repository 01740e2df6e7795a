/* test_waits.c - a caller that waits in TRIB_MODE_QUEUE runs callbacks meanwhile, and never waits longer than it asked
 * for. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/blocking.h"
#include "tests/loop/job.h"

enum { TIMES = 100, PATIENCE_MS = 20000 };

/* A callback that never leaves the queue empty. */
typedef struct chain {
    trib_engine *engine;
    trib_op_params params;
    float value;
    int done;
    bool ends;
} chain;

static void queue_on_rank_0(trib_config *config, int member)
{
    config->mode = member == 0 ? TRIB_MODE_QUEUE : TRIB_MODE_THREADS;
}

static void submit_next(const trib_result *result, void *user)
{
    chain *self = user;
    if (result->status == TRIB_OK && ++self->done < TIMES && !self->ends) {
        struct pollfd fd = {.fd = trib_engine_get_fd(self->engine), .events = POLLIN};
        assert_int_equal(trib_push_pull(self->engine, &self->params, NULL, NULL), TRIB_OK);
        assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
    }
}

static void there_is_always_more(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 0, queue_on_rank_0);
    float values[2] = {0}, lonely = 0;
    trib_tensor *other = job_declare(jobs.engines[1], "busy", TRIB_FLOAT32, 1);
    for (int i = 0; i < TIMES; i++) {
        trib_op_release(job_push_pull(jobs.engines[1], other, &values[1], &values[1], TRIB_SUM));
    }
    chain self = {.engine = jobs.engines[0]};
    trib_op_params_init(&self.params, sizeof self.params);
    self.params.tensor = job_declare(jobs.engines[0], "busy", TRIB_FLOAT32, 1);
    self.params.input = self.params.output = &self.value;
    self.params.done_cb = submit_next;
    self.params.user = &self;
    trib_tensor *tensor = job_declare(jobs.engines[0], "lonely", TRIB_FLOAT32, 1);
    trib_op *op = job_push_pull(jobs.engines[0], tensor, &lonely, &lonely, TRIB_SUM);
    struct pollfd fd = {.fd = trib_engine_get_fd(jobs.engines[0]), .events = POLLIN};
    assert_int_equal(trib_push_pull(jobs.engines[0], &self.params, NULL, NULL), TRIB_OK);
    assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
    assert_int_equal(trib_op_wait(op, 1, NULL), TRIB_TIMEOUT);
    assert_true(self.done > 0 && self.done < TIMES);
    self.ends = true;
    trib_op_cancel(op);
    assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
    job_close(&jobs);
}

/* The longest time that a caller can ask for does not overflow when the engine computes what is left of it. */
static void contribute(const trib_result *result, void *user)
{
    chain *self = user;
    assert_int_equal(result->status, TRIB_OK);
    assert_int_equal(trib_push_pull(self->engine, &self->params, NULL, NULL), TRIB_OK);
}

static void as_long_as_can_be_expressed(void **state)
{
    (void)state;
    const struct timespec deadline = trib_api_deadline_in(INT64_MAX);
    const int64_t left_ns = trib_api_left_ns(&deadline);
    assert_true(left_ns > 0 && left_ns <= TRIB_TIMEOUT_MAX_NS);

    job jobs;
    job_open(&jobs, 2, 0, queue_on_rank_0);
    trib_tensor *first[2], *second[2];
    float values[4] = {0};
    for (int i = 0; i < 2; i++) {
        first[i] = job_declare(jobs.engines[i], "first", TRIB_FLOAT32, 1);
        second[i] = job_declare(jobs.engines[i], "second", TRIB_FLOAT32, 1);
    }
    chain other = {.engine = jobs.engines[1]};
    trib_op_params_init(&other.params, sizeof other.params);
    other.params.tensor = second[1];
    other.params.input = other.params.output = &values[0];
    trib_op_params params = other.params;
    params.tensor = first[0];
    params.input = params.output = &values[1];
    params.done_cb = contribute; /* it runs inside the wait, so the wait computes what is left */
    params.user = &other;
    trib_op *op = job_push_pull(jobs.engines[0], second[0], &values[2], &values[2], TRIB_SUM);
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, NULL), TRIB_OK);
    trib_op_release(job_push_pull(jobs.engines[1], first[1], &values[3], &values[3], TRIB_SUM));
    assert_int_equal(trib_op_wait(op, INT64_MAX, NULL), TRIB_OK);
    trib_op_release(op);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_always_more),
        cmocka_unit_test(as_long_as_can_be_expressed),
    };
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
