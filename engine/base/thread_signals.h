/*
 * thread_signals.h - starts threads of the library that take no signal meant for the host, and compute as if it had
 * changed nothing (float_env.h).
 *
 * It is header-only, because modules that are loaded at run time start threads, too.
 */
#ifndef TRIB_ENGINE_BASE_THREAD_SIGNALS_H
#define TRIB_ENGINE_BASE_THREAD_SIGNALS_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/float_env.h"

/* Starts a thread as pthread_create does. The thread, and threads that it starts, block all signals except those that a
 * fault of their own raises. If such a signal were blocked, the kernel would end the process silently. A crash handler
 * of the host or of a sanitizer would not run. */
static inline int trib_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                    void *argument)
{
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&blocked, faults[i]);
    }
    /* The thread inherits the mask, so no signal can reach it before the mask is set. It inherits the floating-point
     * environment in the same way. */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const trib_float_env callers = trib_float_env_enter();
    const uint16_t callers_x87 = trib_float_env_get_x87();
    trib_float_env_set_x87(TRIB_FLOAT_ENV_X87_DEFAULT);
    const int error = pthread_create(thread, attributes, run, argument);
    trib_float_env_set_x87(callers_x87);
    trib_float_env_leave(callers);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* The kernel's struct sched_attr in its first version, which some C libraries lack. */
typedef struct trib_sched_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* runtime: the slice under the usual policy, 0 for the system's */
} trib_sched_attr;

#define TRIB_SLICE_NS UINT64_C(100000) /* the shortest slice that the kernel accepts */

/* Asks the kernel to run the calling thread soon rather than for long, because it has little work at a time for which
 * others wait. Linux 6.12 and newer then run the thread as soon as it wakes up, if it has had no more than its share.
 * Otherwise another thread may keep the core for a slice of some milliseconds. The thread gets no larger share of the
 * processor, and needs no privilege. Older kernels and other policies ignore the request. Threads that it starts
 * inherit it. `prompt` false: the system's slice. */
static inline void trib_thread_set_timer_slack(bool prompt)
{
    trib_sched_attr attributes = {.size = 0};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 && attributes.policy == 0) {
        /* policy 0 is SCHED_OTHER; another policy was the host's choice and stays */
        attributes.runtime = prompt ? TRIB_SLICE_NS : 0;
        (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
    }
}

#endif
