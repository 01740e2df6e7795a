/* test_attached.c - an engine on a loop of the caller's, while another thread runs that loop. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ev.h>

#include "api/tributary.h"

typedef struct run_loop {
    struct ev_loop *loop;
    ev_async end;
    ev_idle turns; /* the loop does not sleep, so it is always being run */
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
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK); /* nobody runs the loop any more */
    ev_loop_destroy(self.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(destroyed_from_another_thread)};
    return cmocka_run_group_tests_name("attached", tests, NULL, NULL);
}
