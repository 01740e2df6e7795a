/* reactor_hand.c - see reactor_hand.h. */
#include "tests/contract/reactor_hand.h"

#include <poll.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/assert.h"

#define PASSES 8u /* of a turn; a connection that waits for another side checks again in the next turn */

static reactor_hand *hand_of(trib_reactor *reactor)
{
    return (reactor_hand *)reactor;
}

static int64_t now_ns(trib_reactor *reactor)
{
    return *hand_of(reactor)->clock_ns;
}

static void wake(trib_reactor *reactor)
{
    (void)reactor; /* the test decides when the reactor turns */
}

static void timer_stop(trib_reactor *reactor, trib_timer *timer)
{
    reactor_hand *self = hand_of(reactor);
    for (uint32_t i = 0; i < self->timer_count && timer->armed; i++) {
        if (self->timers[i] == timer) {
            self->timers[i] = self->timers[--self->timer_count];
            timer->armed = false;
        }
    }
}

static void timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    reactor_hand *self = hand_of(reactor);
    (void)at_ns; /* timer->due_ns */
    timer_stop(reactor, timer);
    trib_assert(self->timer_count < HAND_TIMERS_MAX);
    self->timers[self->timer_count++] = timer;
    timer->armed = true;
}

static void io_watch(trib_reactor *reactor, trib_io *io, unsigned events)
{
    reactor_hand *self = hand_of(reactor);
    for (uint32_t i = 0; i < self->io_count; i++) {
        if (self->ios[i] == io) {
            self->ios[i] = self->ios[--self->io_count];
        }
    }
    io->events = events;
    if (events != 0) {
        trib_assert(self->io_count < HAND_IOS_MAX);
        self->ios[self->io_count++] = io;
    }
}

static void charge(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    (void)reactor;
    (void)cost;
    (void)bytes;
}

static void draw_random(trib_reactor *reactor, void *buffer, size_t size)
{
    (void)reactor;
    trib_assert(getrandom(buffer, size, 0) == (ssize_t)size); /* names and numbers that mean nothing */
}

static const trib_reactor_ops ops = {
    .name = "hand",
    .now_ns = now_ns,
    .now_fast_ns = now_ns,
    .wake = wake,
    .timer_arm = timer_arm,
    .timer_stop = timer_stop,
    .io_watch = io_watch,
    .charge = charge,
    .random = draw_random,
};

void reactor_hand_init(reactor_hand *self, uint32_t index, trib_logger *logger, const int64_t *clock_ns)
{
    memset(self, 0, sizeof *self);
    trib_reactor_init(&self->base, &ops, index, logger);
    self->clock_ns = clock_ns;
}

/* One at a time: whatever is called may change the list. */
static bool run_ready(reactor_hand *self)
{
    for (uint32_t i = 0; i < self->io_count; i++) {
        trib_io *io = self->ios[i];
        struct pollfd one = {.fd = io->fd, .events = (io->events & TRIB_IO_READ) != 0 ? POLLIN : POLLOUT};
        if (poll(&one, 1, 0) > 0) {
            io->ready(&self->base, io, io->events);
            return true;
        }
    }
    return false;
}

static bool run_due(reactor_hand *self)
{
    for (uint32_t i = 0; i < self->timer_count; i++) {
        trib_timer *timer = self->timers[i];
        if (timer->due_ns <= *self->clock_ns) {
            timer_stop(&self->base, timer);
            timer->fired(&self->base, timer);
            return true;
        }
    }
    return false;
}

void reactor_hand_turn(reactor_hand *self)
{
    bool found = true;
    trib_reactor_after_block(&self->base);
    for (unsigned i = 0; i < PASSES && found; i++) {
        found = run_ready(self) || run_due(self);
        found = trib_reactor_turn(&self->base, false).worked || found;
    }
    (void)trib_reactor_before_block(
        &self->base); /* until the next turn the reactor sleeps, as far as other sides can see */
}
