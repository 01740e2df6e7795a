/* test_callbacks.c - what callbacks may not do is refused in every mode, and who waits while one runs sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <ev.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include "tests/loop/job.h"

#define CALLBACK_NS (300 * INT64_C(1000000))

typedef struct seen {
    trib_engine *engine;
    int done, ready;
    trib_status destroy_status;
} seen;

static void destroy_when_done(const trib_result *result, void *user)
{
    seen *self = user;
    assert_int_equal(result->status, TRIB_OK);
    self->destroy_status = trib_engine_destroy(self->engine);
    self->done++;
}

static void destroy_when_ready(trib_engine *engine, const trib_error *error, void *user)
{
    assert_int_equal(error->status, TRIB_OK);
    assert_int_equal(trib_engine_destroy(engine), TRIB_WRONG_THREAD);
    ((seen *)user)->ready++;
}

/* On the caller's loop, where nothing but the callback itself tells that one runs. */
static void attached(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    seen self = {.engine = NULL};
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = loop;
    config.ready_cb = destroy_when_ready;
    config.ready_user = &self;
    assert_int_equal(trib_engine_create(&config, &self.engine, NULL), TRIB_OK);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    double data[4] = {1, 2, 3, 4};
    params.tensor = job_declare(self.engine, "t", TRIB_FLOAT64, 4);
    params.input = params.output = data;
    params.done_cb = destroy_when_done;
    params.user = &self;
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(trib_push_pull(self.engine, &params, NULL, NULL), TRIB_OK);
        while (self.done < i) {
            ev_run(loop, EVRUN_ONCE);
        }
        assert_int_equal(self.destroy_status, TRIB_WRONG_THREAD);
    }
    assert_int_equal(self.ready, 1);
    assert_int_equal(trib_engine_destroy(self.engine), TRIB_OK);
    ev_loop_destroy(loop);
}

/* Handles that are not given back count, and the refusal says so. */
static void four_at_once(trib_config *config, int member)
{
    (void)member;
    config->ops_max = 4;
}

static void handles_not_given_back(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, four_at_once);
    double data[4] = {1, 2, 3, 4};
    trib_tensor *tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 4);
    trib_op *ops[4];
    for (int i = 0; i < 4; i++) {
        ops[i] = job_push_pull(jobs.engines[0], tensor, data, data, TRIB_SUM);
        assert_int_equal(trib_op_wait(ops[i], -1, NULL), TRIB_OK);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_BUSY);
    assert_non_null(strstr(error.text, "trib_op_release"));
    for (int i = 0; i < 4; i++) {
        trib_op_release(ops[i]);
    }
    assert_int_equal(job_wait(job_push_pull(jobs.engines[0], tensor, data, data, TRIB_SUM), NULL), TRIB_OK);
    job_close(&jobs);
}

/* ---- Waiting while another thread dispatches ---- */

typedef struct waiting {
    pthread_t thread;
    trib_op *op;
    trib_status status;
    int64_t cpu_ns; /* of the thread that waits */
} waiting;

static int64_t cpu_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void *wait_for_it(void *user)
{
    waiting *self = user;
    const int64_t begin_ns = cpu_time_ns();
    self->status = trib_op_wait(self->op, -1, NULL);
    self->cpu_ns = cpu_time_ns() - begin_ns;
    return NULL;
}

/* While this takes its time, the next operation completes, and another thread waits for that one. */
static void take_long(const trib_result *result, void *user)
{
    waiting *self = user;
    const struct timespec time = {.tv_nsec = CALLBACK_NS};
    assert_int_equal(result->status, TRIB_OK);
    assert_int_equal(pthread_create(&self->thread, NULL, wait_for_it, self), 0);
    nanosleep(&time, NULL);
}

static void queue_mode(trib_config *config, int member)
{
    (void)member;
    config->mode = TRIB_MODE_QUEUE;
}

static void waiting_is_no_spinning(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, queue_mode);
    double data[4] = {1, 2, 3, 4};
    waiting self = {.status = TRIB_PENDING};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 4);
    params.input = params.output = data;
    params.done_cb = take_long;
    params.user = &self;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, NULL), TRIB_OK);
    params.done_cb = NULL;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, &self.op, NULL), TRIB_OK);
    while (trib_engine_dispatch(jobs.engines[0], 1) == 0) {
        struct pollfd fd = {.fd = trib_engine_get_fd(jobs.engines[0]), .events = POLLIN};
        assert_true(poll(&fd, 1, -1) >= 0);
    }
    assert_int_equal(pthread_join(self.thread, NULL), 0);
    assert_int_equal(self.status, TRIB_OK);
    assert_true(self.cpu_ns < CALLBACK_NS / 3);
    trib_op_release(self.op);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attached),
        cmocka_unit_test(handles_not_given_back),
        cmocka_unit_test(waiting_is_no_spinning),
    };
    return cmocka_run_group_tests_name("callbacks", tests, NULL, NULL);
}
