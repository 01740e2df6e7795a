/*
 * callback.h - calls of the host's functions: where they begin and end, and which one takes too long.
 *
 * Invariants
 * - A callback runs in the floating-point environment of the host's thread; on a thread of the library it finds the
 *   default one, and what it changes there is undone (engine/base/float_env.h).
 * - What follows a callback follows in any case: it is the scope's end, which an exception passes through. A longjmp
 *   does not. So on the host's thread the posts whose callbacks run are kept in a list, with what is left to do, and
 *   the next call that finds the stack unwound does it.
 * - Each core has one place that says what runs there since when. Another thread looks at it (api/callback_watch.h).
 */
#ifndef TRIB_ENGINE_JOB_CALLBACK_H
#define TRIB_ENGINE_JOB_CALLBACK_H

#include "engine/job/job.h"

typedef struct trib_callback {
    trib_engine *engine;
    trib_reactor *reactor; /* that the callback was posted to */
    trib_post *post;
    void (*after)(trib_reactor *reactor, trib_post *post); /* what is left to do when it has returned */
    trib_callback_kind kind;
    uint32_t tag; /* of an operation's tensor */
    int64_t since_ns, outer_ns;
    uint64_t outer_what;
} trib_callback;

/* Just before the host's function, in the scope that makes the call. */
void trib_callback_begin(trib_callback *self);
/* At the end of that scope. */
void trib_callback_end(const trib_callback *self);
#define TRIB_CALLBACK_SCOPE __attribute__((cleanup(trib_callback_end)))

/* True if this call comes from inside a callback. TRIB_MODE_QUEUE and TRIB_MODE_ATTACHED, on the thread that runs
 * callbacks. */
bool trib_callbacks_run_here(const trib_engine *engine);
/* On that thread: does what is left to do after callbacks that were left by a longjmp. */
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
