/* test_reactor.c - the guarantees of a reactor on libev: posts, deferral, timers, descriptors, threads. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/reactor/reactor_ev_internal.h"
#include "tests/unit/reactor/reactor_bed.h"

#define THREADS 4u
#define POSTS 5000u

/* ---- Posts ---- */

typedef struct numbered {
    trib_post post; /* first */
    unsigned thread, number;
    struct counting *counting;
} numbered;

typedef struct counting {
    trib_reactor *reactor;
    unsigned next[THREADS];
    atomic_uint arrived;
    bool in_order;
    numbered posts[THREADS][POSTS];
} counting;

static void count_post(trib_reactor *reactor, trib_post *post)
{
    numbered *one = (numbered *)post;
    counting *all = one->counting;
    all->in_order = all->in_order && all->next[one->thread] == one->number && trib_reactor_ev_on_thread(reactor);
    all->next[one->thread]++;
    atomic_fetch_add(&all->arrived, 1);
}

static void *post_many(void *argument)
{
    numbered *mine = argument;
    for (unsigned i = 0; i < POSTS; i++) {
        trib_reactor_post(mine->counting->reactor, &mine[i].post);
    }
    return NULL;
}

static counting *counting_create(trib_reactor *reactor)
{
    counting *all = calloc(1, sizeof *all);
    assert_non_null(all);
    all->reactor = reactor;
    all->in_order = true;
    for (unsigned t = 0; t < THREADS; t++) {
        for (unsigned i = 0; i < POSTS; i++) {
            all->posts[t][i] = (numbered){.post.run = count_post, .thread = t, .number = i, .counting = all};
        }
    }
    return all;
}

static void check_posts(trib_reactor *reactor, bool busy_poll)
{
    counting *all = counting_create(reactor);
    assert_int_equal(trib_reactor_ev_start(reactor, -1, busy_poll), TRIB_OK);
    assert_int_equal(trib_reactor_ev_start(reactor, -1, busy_poll), TRIB_STATE);
    pthread_t threads[THREADS];
    for (unsigned t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, post_many, all->posts[t]), 0);
    }
    for (unsigned t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    assert_false(trib_reactor_ev_on_thread(reactor));
    while (atomic_load(&all->arrived) < THREADS * POSTS) {
        sched_yield();
    }
    trib_reactor_ev_stop(reactor);
    trib_reactor_ev_join(reactor);
    assert_true(trib_reactor_ev_on_thread(reactor));
    assert_true(all->in_order);
    assert_int_equal(atomic_load(&all->arrived), THREADS * POSTS);
    free(all);
}

static void posts_arrive_in_order(void **state)
{
    check_posts(*state, false);
}

static void posts_arrive_while_polling(void **state)
{
    check_posts(*state, true);
}

/* ... and the reactor sleeps when it has had nothing to do for that long. */
static void posts_arrive_inside_the_window(void **state)
{
    trib_reactor_ev_set_poll_window(*state, 20000, 200000, false);
    check_posts(*state, false);
}

static void note_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    *(bool *)timer->user = true;
}

static void polls_and_sleeps(void **state)
{
    trib_reactor *reactor = *state;
    struct ev_loop *loop = trib_reactor_ev_loop(reactor);
    trib_reactor_ev_set_poll_window(reactor, 1000000, 10000000, false);
    bool fired = false;
    trib_timer timer = {.fired = note_fired, .user = &fired};
    trib_timer_arm(reactor, &timer, trib_now(reactor) + 300 * INT64_C(1000000));
    while (!fired) {
        ev_run(loop, EVRUN_ONCE);
    }
    assert_true(ev_iteration(loop) < 100); /* nothing to do: it slept from the beginning */
}

/* Runs a turn in which a descriptor was ready; payload: it brought some. Returns how long the reactor polls from
 * then on. */
static int64_t window_after(trib_reactor *reactor, bool payload)
{
    reactor_of(reactor)->worked = true;
    reactor->got_payload = payload;
    ev_run(trib_reactor_ev_loop(reactor), EVRUN_NOWAIT);
    assert_false(reactor->got_payload);
    return reactor_of(reactor)->poll_window.window_ns;
}

/* Payload arrives when peers send it; heartbeats arrive on a schedule. */
static void payload_teaches_to_poll(void **state)
{
    trib_reactor *reactor = *state;
    trib_reactor_ev_set_poll_window(reactor, 0, 3600 * INT64_C(1000000000), false);
    reactor_of(reactor)->poll_window.worked_ns = trib_now_fast(reactor);
    assert_int_equal(window_after(reactor, false), 0);
    assert_true(window_after(reactor, true) > 0);
}

typedef struct looking {
    trib_poller poller; /* first */
    unsigned looks, finds_at;
} looking;

static bool look(trib_reactor *reactor, trib_poller *poller)
{
    looking *self = (looking *)poller;
    const bool found = ++self->looks == self->finds_at;
    reactor->awaited -= found;
    return found;
}

static bool rest_never(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    (void)poller;
    return false;
}

/* A reactor with a core of its own polls several times a turn for work that it awaits. */
static void polls_for_what_is_awaited(void **state)
{
    trib_reactor *reactor = *state;
    struct ev_loop *loop = trib_reactor_ev_loop(reactor);
    looking self = {.poller = {.poll = look, .before_block = rest_never, .after_block = ignore_wake_up}};
    trib_reactor_poller_add(reactor, &self.poller);
    reactor->awaited = 1;
    ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(self.looks, 1); /* it may not poll on */

    trib_reactor_ev_set_poll_window(reactor, 1000000, 1000000, true);
    self.looks = 0;
    ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(self.looks, 1); /* other threads need its core */

    trib_reactor_ev_set_poll_window(reactor, 1000000, 1000000, false);
    self.looks = 0;
    self.finds_at = 20;
    ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(self.looks, 20); /* the awaited work has arrived */
    assert_int_equal(reactor->awaited, 0);

    self.looks = self.finds_at = 0;
    ev_run(loop, EVRUN_NOWAIT);
    assert_int_equal(self.looks, 1);
    reactor->awaited = 1;
    self.looks = 0;
    ev_run(loop, EVRUN_NOWAIT);
    assert_in_range(self.looks, 2, 1000); /* other threads do not have to wait */
    reactor->awaited = 0;
    trib_reactor_poller_remove(reactor, &self.poller);
}

typedef struct calming {
    trib_post post;
    trib_timer timer;
    unsigned turns; /* between the two */
    atomic_bool done;
} calming;

static void note_turns(trib_reactor *reactor, trib_timer *timer)
{
    calming *self = timer->user;
    self->turns = ev_iteration(trib_reactor_ev_loop(reactor)) - self->turns;
    atomic_store(&self->done, true);
}

static void stop_spinning(trib_reactor *reactor, trib_post *post)
{
    calming *self = (calming *)post;
    trib_reactor_ev_stop_spinning(reactor);
    self->turns = ev_iteration(trib_reactor_ev_loop(reactor));
    trib_timer_arm(reactor, &self->timer, trib_now(reactor) + 300 * INT64_C(1000000));
}

static void sleeps_when_it_is_to_spin_no_more(void **state)
{
    trib_reactor *reactor = *state;
    calming self = {.post.run = stop_spinning, .timer = {.fired = note_turns, .user = &self}};
    assert_int_equal(trib_reactor_ev_start(reactor, -1, true), TRIB_OK);
    trib_reactor_post(reactor, &self.post);
    while (!atomic_load(&self.done)) {
        sched_yield();
    }
    trib_reactor_ev_stop(reactor);
    trib_reactor_ev_join(reactor);
    assert_true(self.turns < 100);
}

static void reactor_stops_before_its_first_turn(void **state)
{
    trib_reactor_ev_stop(*state);
    assert_int_equal(trib_reactor_ev_start(*state, -1, false), TRIB_OK);
    trib_reactor_ev_join(*state);
}

static void one_run_is_bounded(void **state)
{
    trib_reactor *reactor = *state;
    counting *all = counting_create(reactor);
    post_many(all->posts[0]);
    unsigned runs = 0;
    while (trib_reactor_run_posts(reactor)) {
        runs++;
        assert_true(atomic_load(&all->arrived) <= runs * 1024);
    }
    assert_true(runs >= 4);
    assert_int_equal(atomic_load(&all->arrived), POSTS);
    assert_true(all->in_order);
    free(all);
}

/* ---- Deferral ---- */

typedef struct deferring {
    trib_post first, second, endless; /* first is the first member */
    unsigned first_runs, second_runs, endless_runs;
    bool inside, nested;
} deferring;

static void run_second(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    deferring *self = (deferring *)((char *)post - offsetof(deferring, second));
    self->second_runs++;
    self->nested = self->nested || self->inside;
}

static void run_first(trib_reactor *reactor, trib_post *post)
{
    deferring *self = (deferring *)post;
    self->first_runs++;
    self->inside = true;
    trib_reactor_defer(reactor, &self->second);
    trib_reactor_defer(reactor, &self->second);
    self->inside = false;
}

static void run_endless(trib_reactor *reactor, trib_post *post)
{
    deferring *self = (deferring *)((char *)post - offsetof(deferring, endless));
    self->endless_runs++;
    trib_reactor_defer(reactor, post);
}

static void defers_until_the_callback_returns(void **state)
{
    trib_reactor *reactor = *state;
    deferring self = {.first.run = run_first, .second.run = run_second};
    trib_reactor_defer(reactor, &self.first);
    assert_int_equal(self.first_runs, 0);
    ev_run(trib_reactor_ev_loop(reactor), EVRUN_NOWAIT);
    assert_int_equal(self.first_runs, 1);
    assert_int_equal(self.second_runs, 1); /* deferred twice, it runs once */
    assert_false(self.nested);
}

static void readable(trib_reactor *reactor, trib_io *io, unsigned events)
{
    char byte;
    assert_int_equal(events, TRIB_IO_READ);
    assert_int_equal(read(io->fd, &byte, 1), 1);
    ++*(unsigned *)io->user;
    trib_io_watch(reactor, io, 0);
}

static void input_comes_through_endless_deferral(void **state)
{
    trib_reactor *reactor = *state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    deferring self = {.endless.run = run_endless};
    trib_reactor_defer(reactor, &self.endless);
    unsigned reads = 0;
    trib_io io = {.ready = readable, .user = &reads, .fd = pair[0]};
    trib_io_watch(reactor, &io, TRIB_IO_READ);
    assert_int_equal(write(pair[1], "x", 1), 1);
    for (unsigned i = 0; i < 5 && reads == 0; i++) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
    assert_int_equal(reads, 1);
    assert_true(self.endless_runs > 0);
    assert_int_equal(io.events, 0);
    /* The descriptor is not watched, so data that arrives now is not reported. */
    assert_int_equal(write(pair[1], "y", 1), 1);
    ev_run(trib_reactor_ev_loop(reactor), EVRUN_NOWAIT);
    assert_int_equal(reads, 1);
    close(pair[0]);
    close(pair[1]);
}

/* ---- Timers ---- */

typedef struct ringing {
    trib_timer timers[5];
    unsigned order[8], count;
    int64_t started_ns;
    unsigned repeats;
    bool early;
} ringing;

static void ring(trib_reactor *reactor, trib_timer *timer)
{
    ringing *self = timer->user;
    unsigned which = (unsigned)(timer - self->timers);
    self->order[self->count++] = which;
    self->early = self->early || trib_now(reactor) < self->started_ns + 1000000 * (int64_t)which;
    assert_false(timer->armed);
    if (which == 0 && self->repeats-- > 0) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + 1);
    }
}

static void timers_fire_in_order(void **state)
{
    trib_reactor *reactor = *state;
    ringing self = {.repeats = 2, .started_ns = trib_now(reactor)};
    for (unsigned i = 5; i-- > 0;) {
        self.timers[i].fired = ring;
        self.timers[i].user = &self;
        trib_timer_arm(reactor, &self.timers[i], self.started_ns + 1000000 * (int64_t)i);
    }
    trib_timer_arm(reactor, &self.timers[3], INT64_C(1) << 60); /* moved far away ... */
    trib_timer_arm(reactor, &self.timers[2], self.started_ns + 2000000);
    trib_timer_stop(reactor, &self.timers[1]);
    trib_timer_stop(reactor, &self.timers[1]);
    while (self.count < 5) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
    assert_false(self.early);
    assert_true(self.timers[3].armed);
    trib_timer_stop(reactor, &self.timers[3]); /* ... and stopped there */
    assert_int_equal(self.order[0], 0);
    unsigned seen[5] = {0};
    for (unsigned i = 0; i < 5; i++) {
        seen[self.order[i]]++;
        assert_true(self.order[i] != 4 || seen[2] == 1); /* the timer that was due earlier fired earlier */
    }
    assert_int_equal(seen[0], 3);
    assert_int_equal(seen[2] + seen[4], 2);
}

static void random_bytes_differ(void **state)
{
    trib_reactor *reactor = *state;
    unsigned char a[32] = {0};
    unsigned char b[32] = {0};
    reactor->ops->random(reactor, a, sizeof a);
    reactor->ops->random(reactor, b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* ---- Attached ---- */

static void lives_on_a_host_loop(void **state)
{
    (void)state;
    struct ev_loop *host = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    trib_reactor *reactor = NULL;
    assert_int_equal(trib_reactor_ev_create(3, &logger, host, &reactor), TRIB_OK);
    assert_int_equal(reactor->index, 3);
    assert_int_equal(trib_reactor_ev_start(reactor, -1, false), TRIB_STATE);
    deferring self = {.first.run = run_first, .second.run = run_second};
    trib_reactor_post(reactor, &self.first);
    ev_run(host, EVRUN_ONCE);
    assert_int_equal(self.second_runs, 1);
    trib_reactor_ev_destroy(reactor);
    ev_run(host, 0); /* returns, because the reactor has nothing left on it */
    ev_loop_destroy(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(posts_arrive_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(posts_arrive_while_polling, setup, teardown),
        cmocka_unit_test_setup_teardown(posts_arrive_inside_the_window, setup, teardown),
        cmocka_unit_test_setup_teardown(polls_and_sleeps, setup, teardown),
        cmocka_unit_test_setup_teardown(payload_teaches_to_poll, setup, teardown),
        cmocka_unit_test_setup_teardown(polls_for_what_is_awaited, setup, teardown),
        cmocka_unit_test_setup_teardown(sleeps_when_it_is_to_spin_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(reactor_stops_before_its_first_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(one_run_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(defers_until_the_callback_returns, setup, teardown),
        cmocka_unit_test_setup_teardown(input_comes_through_endless_deferral, setup, teardown),
        cmocka_unit_test_setup_teardown(timers_fire_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(random_bytes_differ, setup, teardown),
        cmocka_unit_test(lives_on_a_host_loop),
    };
    return cmocka_run_group_tests_name("reactor", tests, NULL, NULL);
}
