/*
 * reactor_ev.c - struct trib_reactor_ops on libev.
 *
 * Invariants
 * - Posts run from the check watcher, which has the lowest priority and therefore comes after all input and timers of
 *   its turn. The prepare watcher keeps the loop from blocking, through an idle watcher, while there are posts to
 *   run. So one turn (EVRUN_ONCE) never runs a post and then blocks: a host that tests a flag between turns sees what
 *   callbacks did.
 * - The watchers of timers and descriptors live in the storage of trib_timer and trib_io; nothing is allocated for
 *   them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setaffinity_np, pthread_setname_np */
#endif
#include "engine/reactor_ev.h"

#include <errno.h>
#include <ev.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/assert.h"
#include "engine/linger.h"
#include "engine/ticks.h"

#define NS_PER_S INT64_C(1000000000)

typedef struct reactor_ev {
    trib_reactor base; /* first */
    struct ev_loop *loop;
    bool attached;
    bool started; /* has a thread to join */
    bool busy_poll;
    int first_core;     /* to be pinned to when it starts */
    int core;           /* that it is pinned to; -1: none */
    cpu_set_t anywhere; /* where its thread might run when it began */
    pthread_t thread;
    _Atomic pthread_t runner; /* who ran the loop last */
    atomic_bool stopping, released;
    sem_t leave; /* the thread waits for it before it runs the loop: released, or stopped */
    ev_async wake;
    ev_prepare prepare;
    ev_check check;
    ev_idle idle;
    trib_linger linger;
    int64_t turn_ns; /* when it was over that the loop waited */
    trib_ticks ticks;
    bool worked;        /* in this turn */
    bool posted;        /* some of it came by post */
    bool looks, asleep; /* has a core to look on; has asked pollers to wake the loop */
} reactor_ev;

typedef struct timer_ev {
    ev_timer watcher; /* first; its data is the reactor */
    int64_t at_ns;
} timer_ev;

_Static_assert(sizeof(timer_ev) <= TRIB_TIMER_STORAGE, "a libev timer fits the storage of a trib_timer");
_Static_assert(sizeof(ev_io) <= TRIB_IO_STORAGE, "a libev io watcher fits the storage of a trib_io");
_Static_assert(_Alignof(timer_ev) <= 16 && _Alignof(ev_io) <= 16, "the storage is aligned for them");

static reactor_ev *reactor_of(trib_reactor *reactor)
{
    return (reactor_ev *)reactor;
}

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

static int64_t often_ns(trib_reactor *reactor)
{
    return trib_ticks_now(&reactor_of(reactor)->ticks);
}

static void wake(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    ev_async_send(self->loop, &self->wake);
}

static void timer_begin(reactor_ev *self, timer_ev *state)
{
    int64_t delay_ns = state->at_ns - now_ns(&self->base);
    if (delay_ns < 0) {
        delay_ns = 0;
    }
    /* libev counts from the time at which its turn began; long work in this turn would make the timer early. One that is early
     * goes back, which costs a turn; a far one may, as it hardly ever gets there. */
    if (delay_ns < NS_PER_S) {
        ev_now_update(self->loop);
    }
    ev_timer_set(&state->watcher, (double)delay_ns / (double)NS_PER_S, 0.0);
    ev_timer_start(self->loop, &state->watcher);
}

static void timer_expired(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)loop;
    (void)events;
    reactor_ev *self = watcher->data;
    timer_ev *state = (timer_ev *)(void *)watcher;
    trib_timer *timer = (trib_timer *)(void *)((unsigned char *)watcher - offsetof(trib_timer, storage));
    /* libev computes in double and rounds to its backend's resolution: what is early goes back. */
    if (now_ns(&self->base) < state->at_ns) {
        timer_begin(self, state);
        return;
    }
    timer->armed = false;
    timer->fired(&self->base, timer);
}

static void timer_stop(trib_reactor *reactor, trib_timer *timer)
{
    if (timer->armed) {
        timer_ev *state = (timer_ev *)(void *)timer->storage;
        ev_timer_stop(reactor_of(reactor)->loop, &state->watcher);
        timer->armed = false;
    }
}

static void timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    trib_assert(timer->fired != NULL);
    reactor_ev *self = reactor_of(reactor);
    timer_stop(reactor, timer);
    timer_ev *state = (timer_ev *)(void *)timer->storage;
    ev_timer_init(&state->watcher, timer_expired, 0.0, 0.0);
    state->watcher.data = self;
    state->at_ns = at_ns < 0 ? 0 : at_ns;
    timer->armed = true;
    timer_begin(self, state);
}

static void io_ready(struct ev_loop *loop, ev_io *watcher, int events)
{
    (void)loop;
    trib_io *io = (trib_io *)(void *)((unsigned char *)watcher - offsetof(trib_io, storage));
    ((reactor_ev *)watcher->data)->worked = true;
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
        ev_io_start(self->loop, watcher);
    }
}

static void charge(trib_reactor *reactor, trib_cost cost, size_t bytes)
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
    .often_ns = often_ns,
    .wake = wake,
    .timer_arm = timer_arm,
    .timer_stop = timer_stop,
    .io_watch = io_watch,
    .charge = charge,
    .random = random_bytes,
};

/* ---- The loop's own watchers ---- */

/* True while it is worth looking for more before it sleeps. */
static bool lingers(reactor_ev *self)
{
    if (self->linger.most_ns == 0) {
        return false;
    }
    const int64_t now = often_ns(&self->base);
    if (self->worked) {
        /* Heartbeats come milliseconds after one another. */
        const bool teaches = self->posted || self->linger.most_ns < NS_PER_S / 1000;
        trib_linger_worked_since(&self->linger, self->turn_ns, now, teaches);
        self->worked = self->posted = false;
        return trib_linger_goes_on(&self->linger, now);
    }
    if (!trib_linger_goes_on(&self->linger, now)) {
        return false;
    }
    sched_yield();
    trib_linger_yielded(&self->linger, now, often_ns(&self->base));
    return true;
}

static void prepare_called(struct ev_loop *loop, ev_prepare *watcher, int events)
{
    (void)events;
    reactor_ev *self = watcher->data;
    atomic_store_explicit(&self->runner, pthread_self(), memory_order_relaxed);
    /* Mail that comes after this look wakes the loop. */
    if (trib_reactor_has_posts(&self->base) || lingers(self)) {
        ev_idle_start(loop, &self->idle);
    } else if (self->base.pollers != NULL && !self->busy_poll) {
        self->asleep = true;
        if (!trib_reactor_rest(&self->base)) {
            ev_idle_start(loop, &self->idle);
        }
    }
}

static bool look(reactor_ev *self)
{
    const bool looks = self->busy_poll || self->looks;
    const trib_turn turn = trib_reactor_turn(&self->base, looks); /* prepare sees what is left */
    self->worked = self->worked || turn.worked;
    self->posted = self->posted || turn.posted;
    return turn.worked;
}

bool trib_reactor_ev_poll(trib_reactor *reactor)
{
    return look(reactor_of(reactor));
}

static void check_called(struct ev_loop *loop, ev_check *watcher, int events)
{
    (void)events;
    reactor_ev *self = watcher->data;
    ev_idle_stop(loop, &self->idle);
    self->turn_ns = self->linger.most_ns > 0 ? often_ns(&self->base) : 0;
    if (self->asleep) {
        self->asleep = false;
        trib_reactor_woken(&self->base);
    }
    (void)look(self);
}

static void wake_called(struct ev_loop *loop, ev_async *watcher, int events)
{
    (void)events;
    reactor_ev *self = watcher->data;
    if (atomic_load(&self->stopping)) {
        ev_break(loop, EVBREAK_ALL);
    }
}

static void idle_called(struct ev_loop *loop, ev_idle *watcher, int events)
{
    (void)loop;
    (void)watcher;
    (void)events; /* its being active is what keeps the loop from blocking */
}

static void start_watchers(reactor_ev *self)
{
    ev_async_init(&self->wake, wake_called);
    self->wake.data = self;
    ev_async_start(self->loop, &self->wake);
    ev_prepare_init(&self->prepare, prepare_called);
    self->prepare.data = self;
    ev_prepare_start(self->loop, &self->prepare);
    ev_check_init(&self->check, check_called);
    ev_set_priority(&self->check, EV_MINPRI);
    self->check.data = self;
    ev_check_start(self->loop, &self->check);
    ev_idle_init(&self->idle, idle_called);
    self->idle.data = self;
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
    errno = 0; /* libev leaves there what it lacked */
    self->core = -1;
    self->loop = self->attached ? host_loop : ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    if (self->loop == NULL) {
        free(self);
        return TRIB_SYSTEM;
    }
    trib_reactor_init(&self->base, &ev_ops, index, logger);
    atomic_init(&self->runner, pthread_self());
    atomic_init(&self->stopping, false);
    atomic_init(&self->released, false);
    (void)sem_init(&self->leave, 0, 0);
    trib_ticks_init(&self->ticks, clock_ns);
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
    ev_async_stop(self->loop, &self->wake);
    ev_prepare_stop(self->loop, &self->prepare);
    ev_check_stop(self->loop, &self->check);
    ev_idle_stop(self->loop, &self->idle);
    if (!self->attached) {
        ev_loop_destroy(self->loop);
    }
    sem_destroy(&self->leave);
    free(self);
}

static void pin(reactor_ev *self, int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    int error = EINVAL;
    if (core >= 0 && core < CPU_SETSIZE) {
        CPU_SET(core, &cores);
        error = pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    }
    if (error != 0) {
        char why[64];
        trib_log(self->base.logger, TRIB_LOG_WARN, "reactor %u could not be pinned to core %d: %s", self->base.index,
                 core, strerror_r(error, why, sizeof why));
    } else {
        self->core = core;
    }
}

void trib_reactor_ev_pin(trib_reactor *reactor, int core)
{
    reactor_ev *self = reactor_of(reactor);
    /* `started` is for who starts and joins: the thread may be here before it is set. */
    trib_assert(!self->attached && trib_reactor_ev_on_thread(reactor));
    if (core >= 0) {
        pin(self, core);
    } else if (self->core >= 0 && pthread_setaffinity_np(pthread_self(), sizeof self->anywhere, &self->anywhere) == 0) {
        self->core = -1;
    }
}

static void *thread_main(void *argument)
{
    reactor_ev *self = argument;
    char name[16];
    snprintf(name, sizeof name, "trib-%u", self->base.index);
    pthread_setname_np(pthread_self(), name);
    if (pthread_getaffinity_np(pthread_self(), sizeof self->anywhere, &self->anywhere) != 0) {
        CPU_ZERO(&self->anywhere); /* more cores than a set has: once pinned it stays so */
    }
    if (self->first_core >= 0) {
        pin(self, self->first_core);
    }
    atomic_store(&self->runner, pthread_self());
    while (sem_wait(&self->leave) < 0 && errno == EINTR) {}
    if (!atomic_load(&self->released)) {
        return NULL;
    }
    /* A stop may come before the loop runs; its wake-up is then still pending and is seen in the first turn. */
    const bool spun = self->busy_poll;
    while (self->busy_poll && !atomic_load_explicit(&self->stopping, memory_order_relaxed)) {
        self->worked = false;
        ev_run(self->loop, EVRUN_NOWAIT);
        if (!self->worked) {
            sched_yield(); /* whom it waits for may be waiting for this core */
        }
    }
    /* Spinning may have ended because of a stop, whose wake-up it has then seen. */
    if (!spun || !atomic_load(&self->stopping)) {
        ev_run(self->loop, 0);
    }
    return NULL;
}

trib_status trib_reactor_ev_start_held(trib_reactor *reactor, int core, bool busy_poll)
{
    reactor_ev *self = reactor_of(reactor);
    if (self->attached || self->started) {
        return TRIB_STATE;
    }
    self->first_core = core;
    self->busy_poll = busy_poll;
    /* The thread inherits the mask, so there is no moment at which a signal of the host's could land on it. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, thread_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        char why[64];
        trib_log(self->base.logger, TRIB_LOG_ERROR, "no thread for reactor %u: %s", self->base.index,
                 strerror_r(error, why, sizeof why));
        return TRIB_SYSTEM;
    }
    /* From here the caller is not the reactor's thread any more, even if that has not run yet. */
    atomic_store(&self->runner, self->thread);
    self->started = true;
    return TRIB_OK;
}

void trib_reactor_ev_release(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    atomic_store(&self->released, true);
    (void)sem_post(&self->leave);
}

void trib_reactor_ev_stop_spinning(trib_reactor *reactor)
{
    trib_assert(trib_reactor_ev_on_thread(reactor));
    reactor_of(reactor)->busy_poll = false;
}

void trib_reactor_ev_linger(trib_reactor *reactor, int64_t least_ns, int64_t most_ns, bool crowded)
{
    reactor_of(reactor)->linger = trib_linger_between(least_ns, most_ns);
    reactor_of(reactor)->looks = most_ns > 0 && !crowded;
}

void trib_reactor_ev_stop(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    if (self->attached) {
        return; /* breaking the caller's loop is the caller's business */
    }
    atomic_store(&self->stopping, true);
    (void)sem_post(&self->leave);
    ev_async_send(self->loop, &self->wake);
}

void trib_reactor_ev_join(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    if (self->started) {
        pthread_join(self->thread, NULL);
        self->started = false;
        /* Who joins tears down: what needs the reactor's thread is now that one's to do. */
        atomic_store(&self->runner, pthread_self());
    }
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
