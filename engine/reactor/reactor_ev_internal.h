/* reactor_ev_internal.h - the state that reactor_ev.c (the loop), reactor_ev_timer.c (its timers) and
 * reactor_ev_thread.c (the thread that runs it) share. */
#ifndef TRIB_ENGINE_REACTOR_REACTOR_EV_INTERNAL_H
#define TRIB_ENGINE_REACTOR_REACTOR_EV_INTERNAL_H

#include <ev.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine/base/container_of.h"
#include "engine/base/fork.h"
#include "engine/reactor/poll_window.h"
#include "engine/reactor/reactor_ev.h"
#include "engine/reactor/tsc_clock.h"

typedef struct reactor_ev {
    trib_reactor base; /* first */
    struct ev_loop *loop;
    bool attached;      /* to the caller's loop */
    bool started;       /* has a thread to join */
    bool busy_poll;     /* it spins, and never sleeps */
    int first_core;     /* core to which the thread is pinned when it starts */
    int core;           /* the core that the thread is pinned to; -1: none */
    cpu_set_t anywhere; /* cores on which the thread might run when it began */
    pthread_t thread;
    _Atomic pthread_t runner; /* thread that ran the loop last */
    atomic_bool stopping, released;
    sem_t leave;       /* the thread waits for this before it runs the loop: it was released, or stopped */
    uint32_t process;  /* trib_fork_process of the process that made it */
    int wake_fd;       /* an eventfd */
    atomic_bool dozes; /* the loop may be about to block: wake_fd would wake it */
    ev_io wake;
    ev_prepare prepare;
    ev_check check;
    ev_idle idle;
    ev_cleanup cleanup;          /* on an attached loop */
    ev_timer horizon;            /* timer of the loop for the far timers */
    int64_t horizon_ns;          /* the time for which `horizon` is armed */
    struct timer_ev *far_timers; /* by time, soonest first (utlist.h) */
    trib_poll_window poll_window;
    int64_t turn_ns; /* when the loop last stopped waiting */
    trib_tsc_clock tsc_clock;
    bool worked;             /* there was work in this turn */
    bool posted;             /* some of it came by post */
    bool polls_more, asleep; /* has a core to poll on; has asked pollers to wake the loop */
} reactor_ev;

static inline reactor_ev *reactor_of(trib_reactor *reactor)
{
    return trib_container_of(reactor, reactor_ev, base);
}

/* True in a child of a fork, which has the loop's memory, but none of its descriptors. */
static inline bool trib_reactor_ev_is_foreign(const reactor_ev *self)
{
    return self->process != trib_fork_process();
}

/* Work on a loop of the caller's: from entering until the end of the scope, an exception of a callback's included, the
 * floating-point environment is the default one (engine/base/float_env.h). Scopes nest where a callback runs the loop.
 */
typedef struct trib_reactor_ev_scope {
    reactor_ev *self; /* NULL: the scope is on a thread of the library */
    trib_float_env outer;
} trib_reactor_ev_scope;

static inline trib_reactor_ev_scope trib_reactor_ev_enter(reactor_ev *self)
{
    if (!self->attached) {
        return (trib_reactor_ev_scope){.self = NULL};
    }
    const trib_reactor_ev_scope scope = {.self = self, .outer = self->base.host_env};
    self->base.host_env = trib_float_env_enter();
    return scope;
}

static inline void trib_reactor_ev_leave(const trib_reactor_ev_scope *scope)
{
    if (scope->self != NULL) {
        trib_float_env_leave(scope->self->base.host_env);
        scope->self->base.host_env = scope->outer;
    }
}

#define TRIB_REACTOR_EV_SCOPE(self)                                                                                    \
    const trib_reactor_ev_scope scope __attribute__((cleanup(trib_reactor_ev_leave), unused)) =                        \
        trib_reactor_ev_enter(self)

/* ---- reactor_ev_timer.c ---- */

void trib_reactor_ev_timers_open(reactor_ev *self);
void trib_reactor_ev_timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns);
void trib_reactor_ev_timer_stop(trib_reactor *reactor, trib_timer *timer);

#endif
