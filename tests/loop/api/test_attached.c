/* test_attached.c - engines attached to the caller's loop, run from another thread or from inside a callback. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <ev.h>

#include "tests/loop/job.h"

enum { TENSORS = 8 };

typedef struct run_loop {
    struct ev_loop *loop;
    ev_async end;
    ev_idle turns; /* the loop never sleeps, so some thread always runs it */
    atomic_bool runs;
} run_loop;

static void loop_ends(struct ev_loop *loop, ev_async *watcher, int events)
{
    (void)watcher;
    (void)events;
    ev_break(loop, EVBREAK_ALL);
}

static void loop_turns(struct ev_loop *loop, ev_idle *watcher, int events)
{
    (void)loop;
    (void)events;
    atomic_store(&((run_loop *)watcher->data)->runs, true);
}

static void *run_it(void *user)
{
    run_loop *self = user;
    ev_run(self->loop, 0);
    return NULL;
}

static void destroyed_from_another_thread(void **state)
{
    (void)state;
    run_loop self = {.loop = ev_loop_new(EVFLAG_AUTO)};
    assert_non_null(self.loop);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = self.loop;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    ev_async_init(&self.end, loop_ends);
    ev_async_start(self.loop, &self.end);
    ev_idle_init(&self.turns, loop_turns);
    self.turns.data = &self;
    ev_idle_start(self.loop, &self.turns);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_it, &self), 0);
    while (!atomic_load(&self.runs)) {
        sched_yield();
    }
    assert_int_equal(trib_engine_destroy(engine), TRIB_WRONG_THREAD);
    ev_async_send(self.loop, &self.end);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ev_async_stop(self.loop, &self.end);
    ev_idle_stop(self.loop, &self.turns);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK); /* the loop no longer runs here */
    ev_loop_destroy(self.loop);
}

/* Two engines on one loop. */
typedef struct pair {
    struct ev_loop *loop;
    trib_engine *engines[2];
    int ready, done;
} pair;

static void one_is_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    assert_int_equal(error->status, TRIB_OK);
    ((pair *)user)->ready++;
}

static void run_the_loop(const trib_result *result, void *user)
{
    pair *self = user;
    assert_int_equal(result->status, TRIB_OK);
    self->done++;
    ev_run(self->loop, EVRUN_NOWAIT);
}

/* The call runs the loop until the other engine is closed. By then the other operations are complete. */
static void destroy_the_other(const trib_result *result, void *user)
{
    pair *self = user;
    assert_int_equal(result->status, TRIB_OK);
    self->done++;
    trib_engine *other = self->engines[1];
    self->engines[1] = NULL;
    assert_int_equal(trib_engine_destroy(other), TRIB_OK);
}

static void open_pair(pair *self)
{
    self->loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(self->loop);
    for (int i = 0; i < 2; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.mode = TRIB_MODE_ATTACHED;
        config.loop = self->loop;
        config.ready_cb = one_is_ready;
        config.ready_user = self;
        assert_int_equal(trib_engine_create(&config, &self->engines[i], NULL), TRIB_OK);
    }
    while (self->ready < 2) {
        ev_run(self->loop, EVRUN_ONCE);
    }
}

/* Operations complete while the loop is run inside the callback of one. */
static void run_from_a_callback(void **state)
{
    const trib_done_cb callback = *(const trib_done_cb *)*state;
    pair self = {.ready = 0};
    float data[TENSORS] = {0};
    open_pair(&self);
    for (int round = 0; round < 3; round++) {
        self.done = 0;
        for (int i = 0; i < TENSORS; i++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = job_declare(self.engines[0], (const char[]){(char)('a' + i), '\0'}, TRIB_FLOAT32, 1);
            params.input = params.output = &data[i];
            params.done_cb = callback;
            params.user = &self;
            assert_int_equal(trib_push_pull(self.engines[0], &params, NULL, NULL), TRIB_OK);
        }
        while (self.done < TENSORS) {
            ev_run(self.loop, EVRUN_ONCE);
        }
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trib_engine_destroy(self.engines[i]), TRIB_OK);
    }
    ev_loop_destroy(self.loop);
}

static void note_error(trib_log_level level, const char *line, void *user)
{
    *(bool *)user = level == TRIB_LOG_ERROR && strstr(line, "before the engine") != NULL;
}

/* The error is logged at once, and every later call fails instead of reading the loop's memory. */
static void loop_destroyed_first(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    bool is_said = false;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = loop;
    config.log_cb = note_error;
    config.log_user = &is_said;
    static trib_engine *engine; /* stays reachable: it is never freed */
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    ev_run(loop, EVRUN_NOWAIT);
    ev_loop_destroy(loop);
    assert_true(is_said);
    trib_error error = {.text = ""};
    assert_int_equal(trib_barrier(engine, NULL, NULL, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "loop"));
    assert_int_equal(trib_engine_dispatch(engine, 0), 0);
    assert_int_equal(trib_engine_destroy(engine), TRIB_STATE);
}

int main(void)
{
    static trib_done_cb runs = run_the_loop, destroys = destroy_the_other;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(destroyed_from_another_thread),
        cmocka_unit_test(loop_destroyed_first),
        cmocka_unit_test_prestate(run_from_a_callback, &runs),
        cmocka_unit_test_prestate(run_from_a_callback, &destroys),
    };
    return cmocka_run_group_tests_name("attached", tests, NULL, NULL);
}
