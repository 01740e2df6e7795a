/*
 * thread_signals.h - starts threads of the library so that no signal that is meant for the host lands on them.
 *
 * Header-only, because modules that are loaded at run time start threads, too.
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

/* As pthread_create. The thread, and those that it starts, block all signals but what a fault of their own raises:
 * where that is blocked the kernel ends the process without a word, and the host's or a sanitizer's handler of crashes
 * never runs. */
static inline int trib_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                    void *argument)
{
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&blocked, faults[i]);
    }
    /* The thread inherits the mask, so there is no moment at which a signal could land on it. */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(thread, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* struct sched_attr of the kernel's, in its first version: not all C libraries have it. */
typedef struct trib_sched_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* runtime: with the usual policy, a slice; 0: the system's */
} trib_sched_attr;

#define TRIB_SLICE_NS UINT64_C(100000) /* the shortest slice that the kernel takes */

/* The calling thread has little to do at a time, and others wait for it: it would rather run soon than for long. Linux
 * 6.12 and newer then let it run as soon as it wakes up, as far as it has had no more than its part, although another
 * thread has the core; without that the other thread may keep the core for a slice of some milliseconds. It gets no
 * more of the processor, and needs no privilege. On older kernels, and under another policy, nothing changes. Threads
 * that it starts inherit it. `prompt` false: the system's slice. */
static inline void trib_thread_be_prompt(bool prompt)
{
    trib_sched_attr attributes = {.size = 0};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 && attributes.policy == 0) {
        attributes.runtime =
            prompt ? TRIB_SLICE_NS : 0; /* policy 0 is SCHED_OTHER: a host that chose another knows why */
        (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
    }
}

#endif
