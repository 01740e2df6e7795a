/* test_callbacks.c - in every mode the calls that a callback may not make are refused, and the others work. A thread
 * that waits while a callback runs sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <ev.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
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

/* On the caller's loop nothing but the callback itself shows that a callback is running. */
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

/* Handles that the caller has not released count towards ops_max, and the error says so. */
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
    int64_t cpu_ns; /* CPU time of the waiting thread */
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

/* While this callback runs, the next operation completes and another thread waits for it. */
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

/* ---- The engine's own callbacks in a queue ---- */

typedef struct told {
    pthread_t thread; /* all callbacks must run on this thread */
    char order[8];    /* r: ready, e: ended, c: closed */
    trib_status ready_status, ended_status;
} told;

static void told_of(trib_engine *engine, told *self, char what)
{
    assert_true(pthread_equal(self->thread, pthread_self()));
    assert_int_equal(trib_engine_dispatch(engine, 0), 0);
    assert_int_equal(trib_engine_destroy(engine), TRIB_WRONG_THREAD);
    self->order[strlen(self->order)] = what;
}

static void told_ready(trib_engine *engine, const trib_error *error, void *user)
{
    told *self = user;
    self->ready_status = error->status;
    told_of(engine, self, 'r');
}

static void told_ended(trib_engine *engine, const trib_error *error, void *user)
{
    told *self = user;
    self->ended_status = error->status;
    told_of(engine, self, 'e');
}

static void told_closed(trib_engine *engine, void *user)
{
    told_of(engine, user, 'c');
}

static trib_engine *tell_in_queue(told *self, int workers, int64_t join_timeout_ns)
{
    *self = (told){.thread = pthread_self(), .ready_status = TRIB_PENDING, .ended_status = TRIB_PENDING};
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_QUEUE;
    config.worker_count = workers;
    config.coordinator = address;
    config.join_timeout_ns = join_timeout_ns;
    config.ready_cb = told_ready;
    config.ended_cb = told_ended;
    config.ready_user = config.ended_user = self;
    config.log_level = TRIB_LOG_NONE;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    return engine;
}

static void await_fd(trib_engine *engine)
{
    struct pollfd fd = {.fd = trib_engine_get_fd(engine), .events = POLLIN};
    assert_true(poll(&fd, 1, -1) == 1);
}

/* Each callback waits until it is dispatched, and runs on the dispatching thread. */
static void queued_ready_and_closed(void **state)
{
    (void)state;
    told self;
    trib_engine *engine = tell_in_queue(&self, 1, 0);
    await_fd(engine);
    assert_string_equal(self.order, "");
    assert_int_equal(trib_engine_dispatch(engine, 1), 1);
    assert_string_equal(self.order, "r");
    assert_int_equal(self.ready_status, TRIB_OK);
    assert_int_equal(trib_engine_dispatch(engine, 0), 0);
    trib_engine_close(engine, told_closed, &self);
    await_fd(engine);
    assert_string_equal(self.order, "r");
    assert_int_equal(trib_engine_dispatch(engine, 0), 1);
    assert_string_equal(self.order, "rc");
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_string_equal(self.order, "rc");
}

/* Nobody dispatches, so destroying the engine runs the callbacks, in order. ready_cb reports how joining went, not what
 * happened later. */
static void queued_and_destroyed(void **state)
{
    (void)state;
    told self;
    trib_engine *engine = tell_in_queue(&self, 1, 0);
    assert_int_equal(trib_engine_wait_ready(engine, -1, NULL), TRIB_OK);
    trib_engine_close(engine, told_closed, &self);
    assert_string_equal(self.order, "");
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_string_equal(self.order, "rc");
    assert_int_equal(self.ready_status, TRIB_OK);
}

static void queued_and_not_joined(void **state)
{
    (void)state;
    told self;
    trib_engine *engine = tell_in_queue(&self, 2, CALLBACK_NS);
    assert_int_equal(trib_engine_wait_ready(engine, -1, NULL), TRIB_JOIN_FAILED);
    while (strlen(self.order) < 2) {
        await_fd(engine);
        assert_int_equal(trib_engine_dispatch(engine, 1), 1);
    }
    assert_string_equal(self.order, "re");
    assert_int_equal(self.ready_status, TRIB_JOIN_FAILED);
    assert_int_equal(self.ended_status, TRIB_JOIN_FAILED);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_string_equal(self.order, "re");
}

/* ---- Several threads wait ---- */

enum { WAITERS = 4, WAITS = 300 };

static void *wait_often(void *user)
{
    trib_engine *engine = user;
    for (int i = 0; i < WAITS; i++) {
        trib_op *op = NULL;
        assert_int_equal(trib_barrier(engine, NULL, &op, NULL), TRIB_OK);
        /* TRIB_WRONG_THREAD here means that another thread's callback was mistaken for one of this thread's. */
        assert_int_equal(trib_op_wait(op, -1, NULL), TRIB_OK);
        trib_op_release(op);
    }
    return NULL;
}

static void waiters_are_in_no_callback(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, queue_mode);
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_often, jobs.engines[0]), 0);
    }
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    job_close(&jobs);
}

/* ---- Callbacks on several reactors at once ---- */

static void three_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 3;
    config->pin = false;
}

static void count_one(const trib_result *result, void *user)
{
    assert_int_equal(result->status, TRIB_OK);
    atomic_fetch_add((atomic_int *)user, 1);
}

/* The race detector shows whether all reactors write the same memory of the engine. */
static void callbacks_side_by_side(void **state)
{
    (void)state;
    enum { TENSORS = 12, ROUNDS = 20 };
    job jobs;
    job_open(&jobs, 1, 0, three_reactors);
    atomic_int done = 0;
    double data[TENSORS] = {0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.done_cb = count_one;
    params.user = &done;
    for (int i = 0; i < TENSORS * ROUNDS; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i % TENSORS);
        params.tensor = job_declare(jobs.engines[0], name, TRIB_FLOAT64, 1);
        params.input = params.output = &data[i % TENSORS];
        assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, NULL), TRIB_OK);
    }
    while (atomic_load(&done) < TENSORS * ROUNDS) {
        (void)poll(NULL, 0, 1);
    }
    job_close(&jobs);
}

/* ---- The log's callback ---- */

typedef struct logging {
    /* The program holds it while it submits, and its log callback takes it, as an interpreter's lock. */
    pthread_mutex_t lock;
    atomic_bool is_in;
    atomic_int got, missed;
} logging;

static void log_with_lock(trib_log_level level, const char *line, void *user)
{
    (void)level;
    logging *self = user;
    if (strstr(line, "job is over") == NULL) {
        return;
    }
    atomic_store(&self->is_in, true);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    const bool got = pthread_mutex_timedlock(&self->lock, &until) == 0;
    atomic_fetch_add(got ? &self->got : &self->missed, 1);
    if (got) {
        pthread_mutex_unlock(&self->lock);
    }
}

static void log_callback_may_hold_the_submitters_lock(void **state)
{
    (void)state;
    logging self = {.lock = PTHREAD_MUTEX_INITIALIZER};
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = 2; /* the other worker never joins */
    config.coordinator = address;
    config.join_timeout_ns = CALLBACK_NS;
    config.log_cb = log_with_lock;
    config.log_user = &self;
    config.log_level = TRIB_LOG_ERROR;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    pthread_mutex_lock(&self.lock);
    while (!atomic_load(&self.is_in)) {
        (void)poll(NULL, 0, 1);
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "t";
    desc.count = 1;
    trib_tensor *tensor = NULL;
    assert_int_not_equal(trib_barrier(engine, NULL, NULL, NULL), TRIB_OK); /* the job is over */
    assert_int_not_equal(trib_tensor_declare(engine, &desc, &tensor, NULL), TRIB_OK);
    assert_int_equal(atomic_load(&self.missed), 0);
    pthread_mutex_unlock(&self.lock);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_int_equal(atomic_load(&self.got), 1);
    pthread_mutex_destroy(&self.lock);
}

/* ---- For ever ---- */

static void endless(trib_config *config, int member)
{
    (void)member;
    config->join_timeout_ns = config->op_timeout_ns = config->close_timeout_ns = config->peer_timeout_ns = INT64_MAX;
}

static void timeouts_may_be_endless(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 0, endless);
    trib_op *ops[2];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.timeout_ns = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trib_barrier(jobs.engines[i], &params, &ops[i], NULL), TRIB_OK);
        assert_int_equal(trib_op_wait(ops[0], i == 0 ? CALLBACK_NS : INT64_MAX, NULL), i == 0 ? TRIB_TIMEOUT : TRIB_OK);
    }
    assert_int_equal(trib_op_wait(ops[1], INT64_MAX, NULL), TRIB_OK);
    trib_op_release(ops[0]);
    trib_op_release(ops[1]);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attached),
        cmocka_unit_test(handles_not_given_back),
        cmocka_unit_test(waiting_is_no_spinning),
        cmocka_unit_test(queued_ready_and_closed),
        cmocka_unit_test(queued_and_destroyed),
        cmocka_unit_test(queued_and_not_joined),
        cmocka_unit_test(waiters_are_in_no_callback),
        cmocka_unit_test(callbacks_side_by_side),
        cmocka_unit_test(log_callback_may_hold_the_submitters_lock),
        cmocka_unit_test(timeouts_may_be_endless),
    };
    return cmocka_run_group_tests_name("callbacks", tests, NULL, NULL);
}
