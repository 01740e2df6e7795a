/*
 * reactor_ev_timer.c - the timers of a reactor on libev: timers that go off soon are libev's, far timers wait in a
 * list.
 *
 * Hardly a far timer ever goes off: most are deadlines of work that is done in time. In libev's heap each would cost an
 * insertion and a removal, and a reading of the system's clock. So far timers wait in a list by time, which is nearly
 * always the order in which they were armed, and libev has one timer for all of them, the horizon.
 *
 * Invariants
 * - The horizon is armed while there are far timers, for the time of the first of them or an earlier one: it is left
 *   alone when the first is stopped, and armed anew when it has gone off.
 * - A timer does not go off before its time. libev counts in double, from the time at which its turn began: what is
 *   early goes back.
 */
#include "engine/reactor/reactor_ev_internal.h"

#include <stddef.h>

#include <utlist.h>

#include "engine/base/assert.h"

#define NS_PER_S INT64_C(1000000000)
#define FAR_NS NS_PER_S
#define STEPS_MAX 8u /* to the place of a far timer in the list; one that is further away is libev's */

typedef struct timer_ev {
    union {
        ev_timer watcher; /* its data is the reactor */
        struct {
            struct timer_ev *next, *previous; /* of far_timers */
        } far;
    };
    int64_t at_ns;
    bool is_far;
} timer_ev;

_Static_assert(sizeof(timer_ev) <= TRIB_TIMER_STORAGE, "a timer's state fits the storage of a trib_timer");
_Static_assert(_Alignof(timer_ev) <= 16, "the storage is aligned for it");
_Static_assert(offsetof(timer_ev, watcher) == 0, "a watcher is where its timer's storage is");

static timer_ev *state_of(trib_timer *timer)
{
    return (timer_ev *)(void *)timer->storage;
}

static trib_timer *timer_of(timer_ev *state)
{
    return trib_container_of((unsigned char(*)[TRIB_TIMER_STORAGE])(void *)state, trib_timer, storage);
}

static void expire_timer(reactor_ev *self, trib_timer *timer)
{
    TRIB_REACTOR_EV_SCOPE(self);
    timer->armed = false;
    timer->fired(&self->base, timer);
}

/* ---- Soon ---- */

static void begin_at(reactor_ev *self, ev_timer *watcher, int64_t at_ns)
{
    const int64_t delay_ns = at_ns - trib_now(&self->base);
    ev_now_update(self->loop); /* long work in this turn would make it early */
    ev_timer_set(watcher, delay_ns > 0 ? (double)delay_ns / (double)NS_PER_S : 0.0, 0.0);
    ev_timer_start(self->loop, watcher);
}

static void soon_called(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)loop;
    (void)events;
    reactor_ev *self = watcher->data;
    timer_ev *state = trib_container_of(watcher, timer_ev, watcher);
    if (trib_reactor_ev_is_foreign(self)) {
        return;
    }
    if (trib_now(&self->base) < state->at_ns) {
        begin_at(self, watcher, state->at_ns);
        return;
    }
    expire_timer(self, timer_of(state));
}

/* ---- Far ---- */

static void horizon_begin(reactor_ev *self, int64_t at_ns)
{
    ev_timer_stop(self->loop, &self->horizon);
    self->horizon_ns = at_ns;
    begin_at(self, &self->horizon, at_ns);
}

static void horizon_follow(reactor_ev *self)
{
    if (self->far_timers != NULL && !ev_is_active(&self->horizon)) {
        horizon_begin(self, self->far_timers->at_ns);
    }
}

/* False: its place is too far from the end. */
static bool far_add(reactor_ev *self, timer_ev *state)
{
    timer_ev *before = self->far_timers != NULL ? self->far_timers->far.previous : NULL; /* the last one */
    for (unsigned steps = 0; before != NULL && before->at_ns > state->at_ns; steps++) {
        if (steps == STEPS_MAX) {
            return false;
        }
        before = before != self->far_timers ? before->far.previous : NULL;
    }
    state->is_far = true;
    DL_APPEND_ELEM2(self->far_timers, before, state, far.previous, far.next);
    return true;
}

static void far_remove(reactor_ev *self, timer_ev *state)
{
    DL_DELETE2(self->far_timers, state, far.previous, far.next);
    state->is_far = false;
}

static void horizon_called(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)loop;
    (void)events;
    reactor_ev *self = watcher->data;
    if (trib_reactor_ev_is_foreign(self)) {
        return;
    }
    const int64_t now_ns = trib_now(&self->base);
    while (self->far_timers != NULL && self->far_timers->at_ns <= now_ns) {
        timer_ev *state = self->far_timers;
        far_remove(self, state);
        horizon_follow(self); /* it may run the loop until another one goes off */
        expire_timer(self, timer_of(state));
    }
    horizon_follow(self);
}

/* ---- The table's ---- */

void trib_reactor_ev_timers_open(reactor_ev *self)
{
    ev_timer_init(&self->horizon, horizon_called, 0.0, 0.0);
    self->horizon.data = self;
    self->far_timers = NULL;
}

void trib_reactor_ev_timer_stop(trib_reactor *reactor, trib_timer *timer)
{
    reactor_ev *self = reactor_of(reactor);
    if (!timer->armed) {
        return;
    }
    timer->armed = false;
    if (state_of(timer)->is_far) {
        far_remove(self, state_of(timer));
    } else {
        ev_timer_stop(self->loop, &state_of(timer)->watcher);
    }
}

void trib_reactor_ev_timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    trib_assert(timer->fired != NULL);
    reactor_ev *self = reactor_of(reactor);
    trib_reactor_ev_timer_stop(reactor, timer);
    timer_ev *state = state_of(timer);
    state->at_ns = at_ns < 0 ? 0 : at_ns;
    state->is_far = false;
    timer->armed = true;
    if (state->at_ns - trib_now_fast(reactor) < FAR_NS || !far_add(self, state)) {
        ev_timer_init(&state->watcher, soon_called, 0.0, 0.0);
        state->watcher.data = self;
        begin_at(self, &state->watcher, state->at_ns);
    } else if (!ev_is_active(&self->horizon) || state->at_ns < self->horizon_ns) {
        horizon_begin(self, self->far_timers->at_ns); /* of another, where one that goes off arms this one */
    }
}
