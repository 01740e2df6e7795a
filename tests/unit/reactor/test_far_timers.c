/* test_far_timers.c - a reactor's timers of a second or more fire at their times, whatever other timers do. */
#include "tests/unit/reactor/reactor_bed.h"

#define FAR_TIMERS 20u

typedef struct far_ringing {
    trib_timer timers[FAR_TIMERS];
    unsigned rang[FAR_TIMERS], count;
    bool early;
} far_ringing;

static void ring_from_far(trib_reactor *reactor, trib_timer *timer)
{
    far_ringing *self = timer->user;
    self->early = self->early || trib_now(reactor) < timer->due_ns;
    self->rang[timer - self->timers]++;
    if (self->count++ == 0) { /* while the other timers are about to fire */
        trib_timer_arm(reactor, &self->timers[0], timer->due_ns + (INT64_C(1) << 49));
    }
}

/* Timers armed at falling times are each the first so far, and timers armed at rising times the last. In between
 * there are more timers than are searched for a place. */
static void far_timers_fire(void **state)
{
    trib_reactor *reactor = *state;
    far_ringing self = {.count = 0};
    const int64_t first_ns = trib_now(reactor) + INT64_C(1010000000);
    for (unsigned i = FAR_TIMERS; i-- > 0;) {
        const unsigned which = i % 2 == 0 ? i : FAR_TIMERS - i;
        self.timers[which].fired = ring_from_far;
        self.timers[which].user = &self;
        trib_timer_arm(reactor, &self.timers[which], first_ns + 1000000 * (int64_t)which);
    }
    trib_timer_stop(reactor, &self.timers[0]); /* the horizon stays */
    trib_timer_stop(reactor, &self.timers[7]);
    trib_timer_stop(reactor, &self.timers[FAR_TIMERS - 1]);
    trib_timer_arm(reactor, &self.timers[7], first_ns + (INT64_C(1) << 50));
    while (self.count < FAR_TIMERS - 3) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
    assert_false(self.early);
    for (unsigned i = 0; i < FAR_TIMERS; i++) {
        const bool stopped = i == 0 || i == 7 || i == FAR_TIMERS - 1;
        assert_int_equal(self.rang[i], stopped ? 0 : 1);
        assert_true(self.timers[i].armed == (i == 0 || i == 7));
    }
    trib_timer_stop(reactor, &self.timers[0]);
    trib_timer_stop(reactor, &self.timers[7]);
}

typedef struct waiting_timers {
    trib_timer first, second, late; /* late: the second should have fired long before */
    bool second_rang, late_rang, is_over;
} waiting_timers;

static void note_rang(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    *(bool *)timer->user = true;
}

static void wait_for_second(trib_reactor *reactor, trib_timer *timer)
{
    waiting_timers *self = timer->user;
    trib_timer_arm(reactor, &self->late, self->second.due_ns + 500 * INT64_C(1000000));
    while (!self->second_rang && !self->late_rang) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
    self->is_over = true;
}

/* A timer's callback may run the loop, and wait for another timer. */
static void a_far_timer_may_wait_for_another(void **state)
{
    trib_reactor *reactor = *state;
    waiting_timers self = {.second_rang = false};
    self.first = (trib_timer){.fired = wait_for_second, .user = &self};
    self.second = (trib_timer){.fired = note_rang, .user = &self.second_rang};
    self.late = (trib_timer){.fired = note_rang, .user = &self.late_rang};
    const int64_t first_ns = trib_now(reactor) + INT64_C(1010000000);
    trib_timer_arm(reactor, &self.first, first_ns);
    trib_timer_arm(reactor, &self.second, first_ns + 10 * INT64_C(1000000));
    while (!self.is_over) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
    assert_true(self.second_rang);
    trib_timer_stop(reactor, &self.late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(far_timers_fire, setup, teardown),
        cmocka_unit_test_setup_teardown(a_far_timer_may_wait_for_another, setup, teardown),
    };
    return cmocka_run_group_tests_name("far_timers", tests, NULL, NULL);
}
