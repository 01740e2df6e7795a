/* test_reactor_wakes.c - when a reactor on libev wakes up: some posts do not wake it, and pinned threads have short
 * slices. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>

#include "engine/base/thread_signals.h"
#include "tests/unit/reactor/reactor_bed.h"

/* Returns the slice of the calling thread; 0: this kernel does not report it, or has none. */
static uint64_t slice_ns(void)
{
    trib_sched_attr attributes = {.size = 0};
    const long result = syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0);
    return result == 0 && attributes.policy == 0 ? attributes.runtime : 0;
}

static bool can_be_prompt(void)
{
    trib_thread_set_timer_slack(true);
    const uint64_t prompt = slice_ns();
    trib_thread_set_timer_slack(false);
    return prompt == TRIB_SLICE_NS && slice_ns() > TRIB_SLICE_NS;
}

typedef struct slices {
    trib_post post; /* first */
    uint64_t pinned, free;
    atomic_bool done;
} slices;

static void look_at_slices(trib_reactor *reactor, trib_post *post)
{
    slices *self = (slices *)post;
    self->pinned = slice_ns();
    trib_reactor_ev_pin(reactor, -1);
    self->free = slice_ns();
    atomic_store(&self->done, true);
}

/* A pinned thread cannot move away from another thread. */
static void pinned_threads_are_prompt(void **state)
{
    const int core = sched_getcpu();
    if (!can_be_prompt() || core < 0) {
        print_message(
            "# threads cannot ask for slices here: with the usual policy, on Linux 6.12 and newer, they can\n");
        skip();
    }
    const uint64_t usual = slice_ns();
    slices self = {.post.run = look_at_slices};
    assert_int_equal(trib_reactor_ev_start(*state, core, false), TRIB_OK);
    trib_reactor_post(*state, &self.post);
    while (!atomic_load(&self.done)) {
        sched_yield();
    }
    trib_reactor_ev_stop(*state);
    trib_reactor_ev_join(*state);
    assert_int_equal(self.pinned, TRIB_SLICE_NS);
    assert_int_equal(self.free, usual);
}

/* Posts made while the loop is about to block, as other threads would make them. */
typedef struct nowake {
    trib_poller poller; /* first */
    trib_post quiet, loud;
    trib_timer timer;
    bool posts_loud, wakes;
    bool quiet_ran, loud_ran, timed_out, quiet_was_first;
} nowake;

static void quiet_run(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    nowake *self = (nowake *)((char *)post - offsetof(nowake, quiet));
    self->quiet_ran = true;
    self->quiet_was_first = !self->timed_out && !self->loud_ran;
}

static void loud_run(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    ((nowake *)((char *)post - offsetof(nowake, loud)))->loud_ran = true;
}

static void time_out(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    ((nowake *)timer->user)->timed_out = true;
}

static bool find_nothing(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    (void)poller;
    return false;
}

static bool post_while_it_dozes(trib_reactor *reactor, trib_poller *poller)
{
    nowake *self = (nowake *)poller;
    trib_reactor_post_nowake(reactor, &self->quiet);
    if (self->posts_loud) {
        trib_reactor_post(reactor, &self->loud);
    }
    if (self->wakes) {
        trib_reactor_wake(reactor);
    }
    return true;
}

static nowake block_once(trib_reactor *reactor, bool posts_loud, bool wakes, int64_t timeout_ns)
{
    nowake self = {.poller = {.poll = find_nothing, .before_block = post_while_it_dozes, .after_block = ignore_wake_up},
                   .quiet.run = quiet_run,
                   .loud.run = loud_run,
                   .timer.fired = time_out,
                   .posts_loud = posts_loud,
                   .wakes = wakes};
    self.timer.user = &self;
    trib_reactor_poller_add(reactor, &self.poller);
    trib_timer_arm(reactor, &self.timer, trib_now(reactor) + timeout_ns);
    ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    trib_timer_stop(reactor, &self.timer);
    trib_reactor_poller_remove(reactor, &self.poller);
    return self;
}

/* A loop runs such a post when it wakes for another reason. Ordinary posts wake it, however full its mailbox is. */
static void nowake_posts_wait_for_a_wake_up(void **state)
{
    const int64_t soon_ns = 20 * INT64_C(1000000), never_ns = 3600 * INT64_C(1000000000);
    const nowake late = block_once(*state, false, false, soon_ns);
    assert_true(late.quiet_ran && late.timed_out && !late.quiet_was_first);
    const nowake woken_up = block_once(*state, false, true, never_ns);
    assert_true(woken_up.quiet_was_first && !woken_up.timed_out);
    const nowake by_others = block_once(*state, true, false, never_ns);
    assert_true(by_others.quiet_was_first && by_others.loud_ran && !by_others.timed_out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pinned_threads_are_prompt, setup, teardown),
        cmocka_unit_test_setup_teardown(nowake_posts_wait_for_a_wake_up, setup, teardown),
    };
    return cmocka_run_group_tests_name("a reactor's wake-ups", tests, NULL, NULL);
}
