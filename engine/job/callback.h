/*
 * callback.h - calls of the host's functions: where they begin and end, and which one takes too long.
 *
 * Invariants
 * - A callback runs in the floating-point environment of the host's thread; on a thread of the library it finds the
 *   default one, and what it changes there is undone (engine/base/float_env.h).
 * - The work after a callback is always done: it hangs on the end of the scope, which runs when an exception passes. A
 *   longjmp skips it. So on the host's thread the running posts are kept in a list, with the work that is left, and the
 *   next call that finds the stack unwound does that work.
 * - Each core records which callback runs there, and since when. Another thread looks at it (api/callback_watch.h).
 */
#ifndef TRIB_ENGINE_JOB_CALLBACK_H
#define TRIB_ENGINE_JOB_CALLBACK_H

#include "engine/job/job.h"

typedef struct trib_callback {
    trib_engine *engine;
    trib_reactor *reactor; /* the reactor to which the callback was posted */
    trib_post *post;
    void (*after)(trib_reactor *reactor, trib_post *post); /* the work that is left when the callback has returned */
    trib_callback_kind kind;
    uint32_t tag; /* tag of the operation's tensor */
    int64_t since_ns, outer_ns;
    uint64_t outer_what;
} trib_callback;

/* Call this just before the host's function, in the scope that makes the call. */
void trib_callback_begin(trib_callback *self);
/* At the end of that scope. */
void trib_callback_end(const trib_callback *self);
#define TRIB_CALLBACK_SCOPE __attribute__((cleanup(trib_callback_end)))

/* True if this call comes from inside a callback. TRIB_MODE_QUEUE and TRIB_MODE_ATTACHED, on the thread that runs
 * callbacks. */
bool trib_callbacks_run_here(const trib_engine *engine);
/* On that thread: does the work that is left of callbacks which a longjmp has ended. */
void trib_callbacks_recover(trib_engine *engine);

/* Any thread, again and again: warns once of each callback that holds up a reactor for too long. TRIB_MODE_THREADS.
 * Returns how long is too long (ns). */
int64_t trib_callbacks_watch(trib_engine *engine);

#define TRIB_CALLBACK_TEXT_SIZE 160
/* Names the callback that has run longest, and for how long; false: none runs. The caller holds the mutex. */
bool trib_callbacks_describe_locked(trib_engine *engine, char text[TRIB_CALLBACK_TEXT_SIZE]);

/* Names a callback that has held a core up for half the peer timeout or more, and runs still or has returned within the
 * last peer timeout: others may have taken this process for lost. false: none. The caller holds the mutex. */
bool trib_callbacks_blame_locked(const trib_engine *engine, char text[TRIB_CALLBACK_TEXT_SIZE]);

#endif
