/* reactor_ev_thread.c - the thread that runs a reactor's loop: how it begins, where it runs, how it ends. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setaffinity_np, pthread_setname_np */
#endif
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/reactor/reactor_ev_internal.h"
#include "engine/base/thread_signals.h"

static void pin_thread(reactor_ev *self, int core)
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
        trib_thread_set_timer_slack(
            true); /* another thread on that core, such as a caller that spins, cannot be avoided */
    }
}

void trib_reactor_ev_pin(trib_reactor *reactor, int core)
{
    reactor_ev *self = reactor_of(reactor);
    /* `started` belongs to the thread that starts and joins: this one may be here before it is set. */
    trib_assert(!self->attached && trib_reactor_ev_on_thread(reactor));
    if (core >= 0) {
        pin_thread(self, core);
    } else if (self->core >= 0 && pthread_setaffinity_np(pthread_self(), sizeof self->anywhere, &self->anywhere) == 0) {
        self->core = -1;
        trib_thread_set_timer_slack(false);
    }
}

static void *thread_main(void *argument)
{
    reactor_ev *self = argument;
    char name[16];
    snprintf(name, sizeof name, "trib-%u", self->base.index);
    pthread_setname_np(pthread_self(), name);
    if (pthread_getaffinity_np(pthread_self(), sizeof self->anywhere, &self->anywhere) != 0) {
        CPU_ZERO(&self->anywhere); /* the machine has more cores than a set can name: a pinned thread stays pinned */
    }
    if (self->first_core >= 0) {
        pin_thread(self, self->first_core);
    }
    atomic_store(&self->runner, pthread_self());
    while (sem_wait(&self->leave) < 0 && errno == EINTR) {}
    if (!atomic_load(&self->released)) {
        return NULL;
    }
    /* A stop may come before the loop runs: the first turn sees it. */
    const bool spun = self->busy_poll;
    while (self->busy_poll && !atomic_load_explicit(&self->stopping, memory_order_relaxed)) {
        self->worked = false;
        ev_run(self->loop, EVRUN_NOWAIT);
        if (!self->worked) {
            sched_yield(); /* the peer that it waits for may be waiting for this core */
        }
    }
    /* Spinning may have ended because of a stop. */
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
    int error = trib_thread_start(&self->thread, NULL, thread_main, self);
    if (error != 0) {
        char why[TRIB_REASON_MAX];
        trib_log(self->base.logger, TRIB_LOG_ERROR, "no thread for reactor %u: %s", self->base.index,
                 trib_log_thread_reason(error, why));
        errno = error;
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

void trib_reactor_ev_stop(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    if (self->attached) {
        return; /* breaking the caller's loop is the caller's business */
    }
    atomic_store(&self->stopping, true);
    (void)sem_post(&self->leave);
    trib_reactor_wake(reactor);
}

void trib_reactor_ev_join(trib_reactor *reactor)
{
    reactor_ev *self = reactor_of(reactor);
    if (self->started) {
        pthread_join(self->thread, NULL);
        self->started = false;
        /* The joining thread tears down: it counts as the reactor's thread from here on. */
        atomic_store(&self->runner, pthread_self());
    }
}
