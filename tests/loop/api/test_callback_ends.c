/* test_callback_ends.c - callbacks that do not return: the engine goes on after a longjmp, or after the end of the
 * thread (which unwinds as an exception does). Callbacks that run for too long are named in the log. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <ev.h>
#include <poll.h>
#include <unistd.h>

#include "engine/job/job.h"
#include "tests/loop/job.h"

enum { OPS = 5, LEAVES_AT = 2 };

static jmp_buf outside;
static int called;

static trib_engine *open_one(trib_mode mode, struct ev_loop *loop)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = mode;
    config.loop = loop;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    return engine;
}

static void submit_all(trib_engine *engine, trib_done_cb done_cb, float *data, trib_op **ops)
{
    called = 0;
    for (int i = 0; i < OPS; i++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = job_declare(engine, (const char[]){(char)('a' + i), '\0'}, TRIB_FLOAT32, 1);
        params.input = params.output = &data[i];
        params.done_cb = done_cb;
        assert_int_equal(trib_push_pull(engine, &params, &ops[i], NULL), TRIB_OK);
    }
}

/* Checks that all operations have completed, also the one whose callback was left, and that no callback ran twice. */
static void check_all(trib_op *const *ops)
{
    assert_int_equal(called, OPS);
    for (int i = 0; i < OPS; i++) {
        assert_int_equal(trib_op_status(ops[i]), TRIB_OK);
        trib_op_release(ops[i]);
    }
}

static void leave_by_longjmp(const trib_result *result, void *user)
{
    (void)result;
    (void)user;
    if (++called == LEAVES_AT) {
        longjmp(outside, 1);
    }
}

static void queue_goes_on_after_longjmp(void **state)
{
    (void)state;
    trib_engine *volatile engine = open_one(TRIB_MODE_QUEUE, NULL);
    float data[OPS] = {0};
    trib_op *ops[OPS];
    volatile bool left = false;
    submit_all(engine, leave_by_longjmp, data, ops);
    if (setjmp(outside) != 0) {
        left = true;
    }
    while (called < OPS) {
        (void)trib_engine_dispatch(engine, 0);
    }
    assert_true(left);
    assert_int_equal(trib_op_wait(ops[0], -1, NULL), TRIB_OK);
    check_all(ops);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void attached_goes_on_after_longjmp(void **state)
{
    (void)state;
    struct ev_loop *volatile loop = ev_loop_new(EVFLAG_AUTO);
    trib_engine *volatile engine = open_one(TRIB_MODE_ATTACHED, loop);
    float data[OPS] = {0};
    trib_op *ops[OPS];
    volatile bool left = false;
    submit_all(engine, leave_by_longjmp, data, ops);
    if (setjmp(outside) != 0) {
        left = true;
    }
    while (called < OPS) {
        ev_run(loop, EVRUN_NOWAIT);
    }
    assert_true(left);
    check_all(ops);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(loop);
}

static void leave_with_thread(const trib_result *result, void *user)
{
    (void)result;
    (void)user;
    if (++called == LEAVES_AT) {
        pthread_exit(NULL);
    }
}

static void *dispatch_all(void *engine)
{
    while (called < OPS) {
        (void)trib_engine_dispatch(engine, 0);
    }
    return NULL;
}

static void *run_loop(void *loop)
{
    while (called < OPS) {
        ev_run(loop, EVRUN_NOWAIT);
    }
    return NULL;
}

static void run_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, argument), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static int count_waiting(trib_engine *engine)
{
    int count = 0;
    pthread_mutex_lock(&engine->mutex);
    for (trib_post *at = engine->done_head; at != NULL; at = atomic_load(&at->next)) {
        count++;
    }
    pthread_mutex_unlock(&engine->mutex);
    return count;
}

static void queue_goes_on_after_unwinding(void **state)
{
    (void)state;
    trib_engine *engine = open_one(TRIB_MODE_QUEUE, NULL);
    float data[OPS] = {0};
    trib_op *ops[OPS];
    submit_all(engine, leave_with_thread, data, ops);
    while (count_waiting(engine) < OPS) { /* so that one dispatch takes them all */
        sched_yield();
    }
    run_thread(dispatch_all, engine);
    assert_int_equal(called, LEAVES_AT);
    struct pollfd left = {.fd = trib_engine_get_fd(engine), .events = POLLIN};
    assert_int_equal(poll(&left, 1, 0), 1); /* the other callbacks of that dispatch wait again */
    dispatch_all(engine);
    check_all(ops);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void attached_goes_on_after_unwinding(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    trib_engine *engine = open_one(TRIB_MODE_ATTACHED, loop);
    float data[OPS] = {0};
    trib_op *ops[OPS];
    submit_all(engine, leave_with_thread, data, ops);
    run_thread(run_loop, loop);
    assert_int_equal(called, LEAVES_AT);
    run_thread(run_loop, loop);
    check_all(ops);
    /* libev still counts the run that the thread left; a run of this thread makes the engine this thread's. */
    (void)trib_engine_dispatch(engine, 0);
    ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(loop);
}

/* ---- For too long ---- */

typedef struct watched_log {
    const char *awaited;
    atomic_bool seen;
} watched_log;

static void look(trib_log_level level, const char *line, void *user)
{
    watched_log *self = user;
    if (level == TRIB_LOG_WARN && strstr(line, self->awaited) != NULL) {
        atomic_store(&self->seen, true);
    }
}

/* Runs until the log has named it. */
static void run_until_named(const trib_result *result, void *user)
{
    const watched_log *self = user;
    if (result->status == TRIB_OK || result->status == TRIB_CLOSED) {
        while (!atomic_load(&self->seen)) {
            sched_yield();
        }
    }
}

static trib_engine *open_watched(watched_log *self, const char *awaited, int64_t peer_timeout_ns, uint32_t reactors)
{
    self->awaited = awaited;
    atomic_store(&self->seen, false);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.reactors = reactors;
    config.peer_timeout_ns = peer_timeout_ns;
    config.close_timeout_ns = INT64_C(10000000);
    config.log_cb = look;
    config.log_user = self;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    return engine;
}

static void submit_long(trib_engine *engine, watched_log *self)
{
    static float data;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(engine, "slow one", TRIB_FLOAT32, 1);
    params.input = params.output = &data;
    params.done_cb = run_until_named;
    params.user = self;
    assert_int_equal(trib_push_pull(engine, &params, NULL, NULL), TRIB_OK);
}

static void named_while_it_runs(void **state)
{
    (void)state;
    for (uint32_t reactors = 1; reactors <= 2; reactors++) { /* a single one has no other that could watch it */
        watched_log self;
        trib_engine *engine = open_watched(&self, "is held up by the callback of tensor \"slow one\" (push_pull)",
                                           INT64_C(600000000), reactors);
        submit_long(engine, &self);
        while (!atomic_load(&self.seen)) {
            sched_yield();
        }
        assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    }
}

static void named_while_destroy_waits(void **state)
{
    (void)state;
    watched_log self;
    trib_engine *engine = open_watched(&self, "trib_engine_destroy waits for the callback of tensor \"slow one\"",
                                       INT64_C(60000000000), 2);
    submit_long(engine, &self);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_true(atomic_load(&self.seen));
}

/* ---- Lost for it ---- */

static void impatient(trib_config *config, int member)
{
    (void)member;
    config->reactors = 1;
    config->peer_timeout_ns = INT64_C(600000000);
}

typedef struct slow_one {
    atomic_bool has_begun, is_lost;
} slow_one;

static void run_until_lost(const trib_result *result, void *user)
{
    (void)result;
    slow_one *self = user;
    atomic_store(&self->has_begun, true);
    while (!atomic_load(&self->is_lost)) {
        sched_yield();
    }
}

enum { WORKERS = 3, NAMES = 6 };

/* One round of each of some more tensors, on all workers. */
static void push_all(const job *jobs, trib_op *ops[NAMES][WORKERS])
{
    static float data[NAMES][WORKERS];
    for (int n = 0; n < NAMES; n++) {
        for (int i = 0; i < WORKERS; i++) {
            trib_tensor *tensor = job_declare(jobs->engines[i], (const char[]){(char)('a' + n), '\0'}, TRIB_FLOAT32, 1);
            ops[n][i] = job_push_pull(jobs->engines[i], tensor, &data[n][i], &data[n][i], TRIB_SUM);
        }
    }
}

static void begin_slow(trib_engine *engine, trib_tensor *tensor, float *data, slow_one *victim)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.done_cb = run_until_lost;
    params.user = victim;
    assert_int_equal(trib_push_pull(engine, &params, NULL, NULL), TRIB_OK);
}

static void check_blamed(const trib_error *error, bool is_own)
{
    const char *own = "this process itself was held up by the callback of tensor \"slow one\"";
    const char *words = is_own ? own : "or kept busy by a callback, which its log names";
    if (strstr(error->text, words) == NULL || (strstr(error->text, own) != NULL) != is_own) {
        fail_msg("%s", error->text);
    }
}

/* The callback of rank 1 runs until the others have lost it. The error of each of its operations then names the
 * callback, whichever farewell it has heard first. The others' errors do not, because they cannot know. */
static void named_to_who_was_lost(void **state)
{
    (void)state;
    job jobs;
    slow_one victim = {.has_begun = false};
    float data[WORKERS] = {0};
    trib_tensor *slow[WORKERS];
    trib_op *begun[WORKERS], *ops[NAMES][WORKERS];
    trib_error error;
    job_open(&jobs, WORKERS, 0, impatient);
    for (int i = 0; i < WORKERS; i++) {
        slow[i] = job_declare(jobs.engines[i], "slow one", TRIB_FLOAT32, 1);
    }
    push_all(&jobs, ops); /* places the tensors */
    for (int i = 0; i < NAMES * WORKERS; i++) {
        assert_int_equal(job_wait(ops[i / WORKERS][i % WORKERS], NULL), TRIB_OK);
    }
    begin_slow(jobs.engines[1], slow[1], &data[1], &victim);
    for (int i = 0; i < WORKERS; i += 2) {
        begun[i] = job_push_pull(jobs.engines[i], slow[i], &data[i], &data[i], TRIB_SUM);
    }
    assert_int_equal(job_wait(begun[0], NULL), TRIB_OK);
    assert_int_equal(job_wait(begun[2], NULL), TRIB_OK);
    while (!atomic_load(&victim.has_begun)) { /* else rank 1 may still take part in the next sums */
        sched_yield();
    }
    push_all(&jobs, ops);
    for (int i = 0; i < NAMES * WORKERS; i++) {
        if (i % WORKERS != 1) {
            assert_int_equal(job_wait(ops[i / WORKERS][i % WORKERS], &error), TRIB_PEER_LOST);
            check_blamed(&error, false);
        }
    }
    for (int i = 0; i < WORKERS; i += 2) { /* rank 1 hears their farewells in any order */
        assert_int_equal(trib_engine_destroy(jobs.engines[i]), TRIB_OK);
        jobs.engines[i] = NULL;
    }
    atomic_store(&victim.is_lost, true);
    for (int n = 0; n < NAMES; n++) {
        assert_int_equal(job_wait(ops[n][1], &error), TRIB_PEER_LOST);
        check_blamed(&error, true);
    }
    job_close(&jobs);
}

int main(void)
{
    alarm(120); /* ends a callback that is never named */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queue_goes_on_after_longjmp),   cmocka_unit_test(attached_goes_on_after_longjmp),
        cmocka_unit_test(queue_goes_on_after_unwinding), cmocka_unit_test(attached_goes_on_after_unwinding),
        cmocka_unit_test(named_while_it_runs),           cmocka_unit_test(named_while_destroy_waits),
        cmocka_unit_test(named_to_who_was_lost),
    };
    return cmocka_run_group_tests_name("callback_ends", tests, NULL, NULL);
}
