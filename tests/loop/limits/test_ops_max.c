/* test_ops_max.c - ops_max counts the operations that the program knows of. An operation whose completion was delivered
 * and whose handle is released no longer counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>

#include "tests/loop/job.h"

enum { TIMES = 3000, FEW = 4 };

static void one_with_threads(trib_config *config, int member)
{
    (void)member;
    config->ops_max = 1;
}

static void one_in_queue(trib_config *config, int member)
{
    one_with_threads(config, member);
    config->mode = TRIB_MODE_QUEUE;
}

static void four_at_once(trib_config *config, int member)
{
    (void)member;
    config->ops_max = FEW;
}

/* ---- Handles ---- */

static void one_after_the_other(job_tweak tweak)
{
    job jobs;
    job_open(&jobs, 1, 0, tweak);
    double data[4] = {1, 2, 3, 4};
    trib_tensor *tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 4);
    for (int i = 0; i < TIMES; i++) {
        /* Fails the test if the submit is rejected. */
        trib_op *op = job_push_pull(jobs.engines[0], tensor, data, data, TRIB_SUM);
        assert_int_equal(job_wait(op, NULL), TRIB_OK);
    }
    job_close(&jobs);
}

static void waited_for(void **state)
{
    (void)state;
    one_after_the_other(one_with_threads);
}

static void waited_for_in_queue(void **state)
{
    (void)state;
    one_after_the_other(one_in_queue);
}

/* ---- Callbacks ---- */

typedef struct chain {
    trib_engine *engine;
    trib_op_params params;
    atomic_int left, refused;
    atomic_bool over;
} chain;

static void submit_next(const trib_result *result, void *user)
{
    chain *self = user;
    bool goes_on = result->status == TRIB_OK && atomic_fetch_sub(&self->left, 1) > 1;
    if (goes_on && trib_push_pull(self->engine, &self->params, NULL, NULL) != TRIB_OK) {
        atomic_fetch_add(&self->refused, 1);
        goes_on = false;
    }
    if (!goes_on) {
        atomic_store(&self->over, true);
    }
}

static void chained(job_tweak tweak)
{
    job jobs;
    job_open(&jobs, 1, 0, tweak);
    double data[4] = {1, 2, 3, 4};
    chain self = {.engine = jobs.engines[0], .left = TIMES};
    trib_op_params_init(&self.params, sizeof self.params);
    self.params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 4);
    self.params.input = self.params.output = data;
    self.params.done_cb = submit_next;
    self.params.user = &self;
    assert_int_equal(trib_push_pull(jobs.engines[0], &self.params, NULL, NULL), TRIB_OK);
    while (!atomic_load(&self.over)) {
        struct pollfd fd = {.fd = trib_engine_get_fd(jobs.engines[0]), .events = POLLIN};
        (void)poll(&fd, 1, 1);
        trib_engine_dispatch(jobs.engines[0], 0);
    }
    assert_int_equal(atomic_load(&self.refused), 0);
    assert_int_equal(atomic_load(&self.left), 0);
    job_close(&jobs);
}

static void from_the_callback(void **state)
{
    (void)state;
    chained(one_with_threads);
}

static void from_the_callback_in_queue(void **state)
{
    (void)state;
    chained(one_in_queue);
}

/* A caller that gets TRIB_BUSY waits for a completion, which is all that wakes it, and then the next submit
 * succeeds. */
static void after_dispatch(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, one_in_queue);
    double data[4] = {1, 2, 3, 4};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 4);
    params.input = params.output = data;
    for (int i = 0; i < TIMES; i++) {
        assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, NULL), TRIB_OK);
        assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, NULL), TRIB_BUSY);
        struct pollfd fd = {.fd = trib_engine_get_fd(jobs.engines[0]), .events = POLLIN};
        while (trib_engine_dispatch(jobs.engines[0], 0) == 0) {
            assert_true(poll(&fd, 1, -1) >= 0);
        }
    }
    job_close(&jobs);
}

/* ---- Cancelled operations ---- */

/* Operations behind one that waits for the other worker are cancelled. The program is done with them, but their rounds
 * still take room until they are complete. That number is bounded too, and the error says so. */
static void given_up_and_waiting(void **state)
{
    (void)state;
    enum { MOST = 3000 };
    job jobs;
    job_open(&jobs, 2, 0, four_at_once);
    double data[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}};
    trib_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        tensors[i] = job_declare(jobs.engines[i], "t", TRIB_FLOAT64, 4);
    }
    trib_op *first = job_push_pull(jobs.engines[0], tensors[0], data[0], data[0], TRIB_SUM);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensors[0];
    params.input = params.output = data[0];
    int cancelled = 0;
    trib_status status = TRIB_OK;
    trib_error error = {.text = ""};
    while (status == TRIB_OK && cancelled < MOST) {
        trib_op *op = NULL;
        status = trib_push_pull(jobs.engines[0], &params, &op, &error);
        if (status == TRIB_OK) {
            trib_op_cancel(op);
            assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
            cancelled++;
        }
    }
    assert_int_equal(status, TRIB_BUSY);
    assert_true(cancelled >= FEW && cancelled < MOST);
    assert_non_null(strstr(error.text, "given up"));
    assert_int_equal(job_wait(job_push_pull(jobs.engines[1], tensors[1], data[1], data[1], TRIB_SUM), NULL), TRIB_OK);
    assert_int_equal(job_wait(first, NULL), TRIB_OK);
    for (int i = 0; i < cancelled; i++) {
        trib_op *op = job_push_pull(jobs.engines[1], tensors[1], data[1], data[1], TRIB_SUM);
        assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
    }
    /* Rank 1's operations fail when these rounds are complete here, so the next submit succeeds. */
    first = job_push_pull(jobs.engines[0], tensors[0], data[0], data[0], TRIB_SUM);
    assert_int_equal(job_wait(job_push_pull(jobs.engines[1], tensors[1], data[1], data[1], TRIB_SUM), NULL), TRIB_OK);
    assert_int_equal(job_wait(first, NULL), TRIB_OK);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waited_for),        cmocka_unit_test(waited_for_in_queue),
        cmocka_unit_test(from_the_callback), cmocka_unit_test(from_the_callback_in_queue),
        cmocka_unit_test(after_dispatch),    cmocka_unit_test(given_up_and_waiting),
    };
    return cmocka_run_group_tests_name("ops_max", tests, NULL, NULL);
}
