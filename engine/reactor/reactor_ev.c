/*
 * reactor_ev.c - struct trib_reactor_ops on libev.
 *
 * Invariants
 * - Posts run from the check watcher, which has the lowest priority and therefore comes after all input and timers of
 *   its turn. The prepare watcher keeps the loop from blocking, through an idle watcher, while there are posts to
 *   run. So one turn (EVRUN_ONCE) never runs a post and then blocks: a host that tests a flag between turns sees what
 *   callbacks did.
 * - The watchers of timers (reactor_ev_timer.c) and descriptors live in the storage of trib_timer and trib_io; nothing
 *   is allocated for them.
 * - Other threads wake it through an eventfd of its own, and not through ev_async: libev ends the process if there is
 *   no descriptor for that. They write to it only while the loop may be about to block: `dozes` is set before the last
 *   look at the mailbox, and the thread that clears it writes. A poster looks at `dozes` after it has posted, the loop
 *   at the mailbox after it has set `dozes`; all four accesses are sequentially consistent, so one of the two sees the
 *   other. A loop that does not doze costs its callers no exchange.
 * - In a child of a fork (fork.h) every watcher that is called stops itself and does nothing else.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* cpu_set_t */
#endif
#include "engine/reactor/reactor_ev_internal.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"

#define NS_PER_S INT64_C(1000000000)

_Static_assert(sizeof(ev_io) <= TRIB_IO_STORAGE, "a libev io watcher fits the storage of a trib_io");
_Static_assert(_Alignof(ev_io) <= 16, "the storage is aligned for it");

/* ---- The table ---- */

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int64_t now_ns(trib_reactor *reactor)
{
    (void)reactor;
    return clock_ns();
}

static int64_t now_fast_ns(trib_reactor *reactor)
{
    return trib_tsc_clock_now(&reactor_of(reactor)->tsc_clock);
}

static void wake_loop(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    if (atomic_load(&self->dozes) && atomic_exchange(&self->dozes, false)) {
        const uint64_t one = 1;
        /* Fails only if nobody has read it 2^64 - 1 times, and then it is readable. */
        (void)!write(self->wake_fd, &one, sizeof one);
    }
}

static void io_ready(struct ev_loop *loop, ev_io *watcher, int events)
{
    trib_io *io = trib_container_of((unsigned char(*)[TRIB_IO_STORAGE])(void *)watcher, trib_io, storage);
    reactor_ev *self = watcher->data;
    if (trib_reactor_ev_is_foreign(self)) {
        ev_io_stop(loop, watcher);
        return;
    }
    TRIB_REACTOR_EV_SCOPE(self);
    self->worked = true;
    unsigned ready = ((events & EV_READ) != 0 ? TRIB_IO_READ : 0u) | ((events & EV_WRITE) != 0 ? TRIB_IO_WRITE : 0u);
    if ((events & EV_ERROR) != 0) {
        /* libev could not watch it and has stopped; the owner's system call will say what is wrong. */
        ready |= io->events;
        io->events = 0;
    }
    io->ready(watcher->data, io, ready);
}

static void io_watch(trib_reactor *reactor, trib_io *io, unsigned events)
{
    trib_assert((events & ~(TRIB_IO_READ | TRIB_IO_WRITE)) == 0);
    if (events == io->events) {
        return;
    }
    reactor_ev *self = reactor_of(reactor);
    ev_io *watcher = (ev_io *)(void *)io->storage;
    if (io->events != 0) {
        ev_io_stop(self->loop, watcher);
    }
    io->events = events;
    if (events != 0) {
        trib_assert(io->ready != NULL && io->fd >= 0);
        int mask = ((events & TRIB_IO_READ) != 0 ? EV_READ : 0) | ((events & TRIB_IO_WRITE) != 0 ? EV_WRITE : 0);
        ev_io_init(watcher, io_ready, io->fd, mask);
        watcher->data = reactor;
        if (self->attached) {
            trib_fork_stand_in(io->fd);
        }
        ev_io_start(self->loop, watcher);
    }
}

static void charge_cost(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    (void)reactor;
    (void)cost;
    (void)bytes;
}

static void random_bytes(trib_reactor *reactor, void *buffer, size_t size)
{
    (void)reactor;
    randombytes_buf(buffer, size);
}

static const trib_reactor_ops ev_ops = {
    .name = "ev",
    .now_ns = now_ns,
    .now_fast_ns = now_fast_ns,
    .wake = wake_loop,
    .timer_arm = trib_reactor_ev_timer_arm,
    .timer_stop = trib_reactor_ev_timer_stop,
    .io_watch = io_watch,
    .charge = charge_cost,
    .random = random_bytes,
};

/* ---- The loop's own watchers ---- */

/* True while polling before the sleep is worth its cost. */
static bool keeps_polling(reactor_ev *self)
{
    if (self->poll_window.most_ns == 0) {
        return false;
    }
    const int64_t now = now_fast_ns(&self->base);
    if (self->worked || self->base.got_payload) {
        /* Heartbeats are milliseconds apart. */
        const bool teaches = self->posted || self->base.got_payload || self->poll_window.most_ns < NS_PER_S / 1000;
        trib_poll_window_note_work_since(&self->poll_window, self->turn_ns, now, teaches);
        self->worked = self->posted = self->base.got_payload = false;
        return trib_poll_window_is_open(&self->poll_window, now);
    }
    if (!trib_poll_window_is_open(&self->poll_window, now)) {
        return false;
    }
    sched_yield();
    trib_poll_window_note_yield(&self->poll_window, now, now_fast_ns(&self->base));
    return true;
}

static void stop_watchers(reactor_ev *self)
{
    ev_io_stop(self->loop, &self->wake);
    ev_prepare_stop(self->loop, &self->prepare);
    ev_check_stop(self->loop, &self->check);
    ev_idle_stop(self->loop, &self->idle);
    ev_timer_stop(self->loop, &self->horizon);
    ev_cleanup_stop(self->loop, &self->cleanup);
}

/* The host destroys its loop before the engine. libev would read freed memory from now on. */
static void cleanup_called(struct ev_loop *loop, ev_cleanup *watcher, int events)
{
    (void)loop;
    (void)events;
    reactor_ev *self = watcher->data;
    if (!trib_reactor_ev_is_foreign(self)) {
        atomic_store(&self->base.lost, true);
        trib_log(
            self->base.logger, TRIB_LOG_ERROR,
            "the loop of a TRIB_MODE_ATTACHED engine is destroyed before the engine, which cannot be used or freed any "
            "more: call trib_engine_destroy before ev_loop_destroy");
    }
}

/* True: the mailbox is empty, and a post from now on wakes the loop. */
static bool may_doze(reactor_ev *self)
{
    (void)atomic_exchange(&self->dozes, true);
    return !trib_reactor_has_posts(&self->base) && !atomic_load(&self->stopping);
}

static void prepare_called(struct ev_loop *loop, ev_prepare *watcher, int events)
{
    (void)events;
    reactor_ev *self = watcher->data;
    if (trib_reactor_ev_is_foreign(self)) {
        stop_watchers(self);
        if (!self->attached) { /* a callback forked: the thread ends when its child returns from that */
            ev_break(loop, EVBREAK_ALL);
        }
        return;
    }
    TRIB_REACTOR_EV_SCOPE(self);
    atomic_store_explicit(&self->runner, pthread_self(), memory_order_relaxed);
    /* A loop that spins does not block, and needs nobody to wake it. */
    if (trib_reactor_has_posts(&self->base) || keeps_polling(self) || (!self->busy_poll && !may_doze(self))) {
        ev_idle_start(loop, &self->idle);
    } else if (self->base.pollers != NULL && !self->busy_poll) {
        self->asleep = true;
        if (!trib_reactor_before_block(&self->base)) {
            ev_idle_start(loop, &self->idle);
        }
    }
}

static bool run_turn(reactor_ev *self)
{
    const bool polls_more = self->busy_poll || self->polls_more;
    /* The prepare watcher sees the posts that are left. */
    const trib_turn turn = trib_reactor_turn(&self->base, polls_more);
    self->worked = self->worked || turn.worked;
    self->posted = self->posted || turn.posted;
    return turn.worked;
}

bool trib_reactor_ev_poll(trib_reactor *reactor)
{
    TRIB_REACTOR_EV_SCOPE(reactor_of(reactor));
    return run_turn(reactor_of(reactor));
}

static void check_called(struct ev_loop *loop, ev_check *watcher, int events)
{
    (void)events;
    reactor_ev *self = watcher->data;
    if (trib_reactor_ev_is_foreign(self)) {
        stop_watchers(self);
        return;
    }
    TRIB_REACTOR_EV_SCOPE(self);
    ev_idle_stop(loop, &self->idle);
    if (atomic_load_explicit(&self->dozes, memory_order_relaxed)) {
        (void)atomic_exchange(&self->dozes, false);
    }
    if (atomic_load(&self->stopping)) {
        ev_break(loop, EVBREAK_ALL);
    }
    self->turn_ns = self->poll_window.most_ns > 0 ? now_fast_ns(&self->base) : 0;
    if (self->asleep) {
        self->asleep = false;
        trib_reactor_after_block(&self->base);
    }
    (void)run_turn(self);
}

static void wake_called(struct ev_loop *loop, ev_io *watcher, int events)
{
    (void)loop;
    (void)events;
    uint64_t times = 0;
    (void)!read(watcher->fd, &times, sizeof times); /* check_called looks at the input for which the loop was woken */
}

static void idle_called(struct ev_loop *loop, ev_idle *watcher, int events)
{
    (void)loop;
    (void)watcher;
    (void)events; /* while the idle watcher is active the loop does not block */
}

static void start_watchers(reactor_ev *self)
{
    ev_io_init(&self->wake, wake_called, self->wake_fd, EV_READ);
    self->wake.data = self;
    ev_io_start(self->loop, &self->wake);
    ev_prepare_init(&self->prepare, prepare_called);
    self->prepare.data = self;
    ev_prepare_start(self->loop, &self->prepare);
    ev_check_init(&self->check, check_called);
    ev_set_priority(&self->check, EV_MINPRI);
    self->check.data = self;
    ev_check_start(self->loop, &self->check);
    ev_idle_init(&self->idle, idle_called);
    self->idle.data = self;
    ev_cleanup_init(&self->cleanup, cleanup_called);
    self->cleanup.data = self;
    if (self->attached) {
        ev_cleanup_start(self->loop, &self->cleanup);
    }
    trib_reactor_ev_timers_open(self);
}

/* ---- Life ---- */

trib_status trib_reactor_ev_create(uint32_t index, trib_logger *logger, struct ev_loop *host_loop,
                                   trib_reactor **reactor_out)
{
    if (sodium_init() < 0) {
        return TRIB_SYSTEM;
    }
    reactor_ev *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->attached = host_loop != NULL;
    errno = 0; /* libev leaves the number of the shortage in errno */
    self->core = -1;
    self->wake_fd = trib_descriptor_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (self->wake_fd < 0) {
        free(self);
        return TRIB_SYSTEM;
    }
    self->loop = self->attached ? host_loop : ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    if (self->loop == NULL) {
        const int error = errno;
        close(self->wake_fd);
        free(self);
        errno = error;
        return TRIB_SYSTEM;
    }
    trib_fork_own(self->wake_fd);
    if (self->attached) {
        trib_fork_stand_in(self->wake_fd);
    }
    self->process = trib_fork_process();
    trib_reactor_init(&self->base, &ev_ops, index, logger);
    atomic_init(&self->runner, pthread_self());
    atomic_init(&self->stopping, false);
    atomic_init(&self->dozes, false);
    atomic_init(&self->released, false);
    (void)sem_init(&self->leave, 0, 0);
    trib_tsc_clock_init(&self->tsc_clock, clock_ns);
    start_watchers(self);
    *reactor_out = &self->base;
    return TRIB_OK;
}

void trib_reactor_ev_destroy(trib_reactor *reactor)
{
    if (reactor == NULL) {
        return;
    }
    reactor_ev *self = reactor_of(reactor);
    trib_assert(!self->started);
    stop_watchers(self);
    trib_fork_close(self->wake_fd);
    if (!self->attached) {
        ev_loop_destroy(self->loop);
    }
    sem_destroy(&self->leave);
    free(self);
}

void trib_reactor_ev_set_poll_window(trib_reactor *reactor, int64_t least_ns, int64_t most_ns, bool crowded)
{
    reactor_of(reactor)->poll_window = trib_poll_window_between(least_ns, most_ns);
    reactor_of(reactor)->polls_more = most_ns > 0 && !crowded;
}

struct ev_loop *trib_reactor_ev_loop(trib_reactor *reactor)
{
    return reactor_of(reactor)->loop;
}

bool trib_reactor_ev_on_thread(const trib_reactor *reactor)
{
    const reactor_ev *self = (const reactor_ev *)reactor;
    return pthread_equal(atomic_load_explicit(&self->runner, memory_order_relaxed), pthread_self()) != 0;
}
