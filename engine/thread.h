/*
 * thread.h - how a thread of the library's begins: no signal that is meant for the host lands on it.
 *
 * Header-only, because modules that are loaded at run time start threads, too.
 */
#ifndef TRIB_ENGINE_THREAD_H
#define TRIB_ENGINE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* As pthread_create. The thread, and those that it starts, block all signals but what a fault of their own raises: where that
 * is blocked the kernel ends the process without a word, and the host's or a sanitizer's handler of crashes never runs. */
static inline int trib_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                    void *argument)
{
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&blocked, faults[i]);
    }
    /* It inherits the mask, so there is no moment at which a signal could land on it. */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(thread, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
