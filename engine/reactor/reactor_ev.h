/*
 * reactor_ev.h - the reactor of production: libev, the monotonic clock, libsodium's random bytes.
 *
 * It either owns its loop and the thread that runs it (start, stop, join), or is attached to the caller's loop, which
 * the caller runs. Its watchers keep an attached loop's ev_run from returning for as long as the reactor exists, as
 * any watcher does; trib_reactor_ev_destroy removes them.
 */
#ifndef TRIB_ENGINE_REACTOR_REACTOR_EV_H
#define TRIB_ENGINE_REACTOR_REACTOR_EV_H

#include "engine/reactor/reactor.h"

struct ev_loop;

/* host_loop NULL: a loop of its own. The calling thread counts as the reactor's until another thread runs the loop.
 * TRIB_NO_MEMORY, TRIB_SYSTEM (no loop could be made, libsodium has no randomness). */
TRIB_CHECKED trib_status trib_reactor_ev_create(uint32_t index, trib_logger *logger, struct ev_loop *host_loop,
                                                trib_reactor **reactor_out);

/* Not while its thread runs. Timers and descriptors of others must not be armed or watched any more; posts that have
 * not run are forgotten. NULL is fine. On an attached loop: from the thread that runs it. */
void trib_reactor_ev_destroy(trib_reactor *reactor);

/* Makes a thread of its own for the loop, named "trib-<index>", with the signals of the host blocked
 * (thread_signals.h), pinned to core unless that is -1 (if pinning fails it is logged and the thread runs anywhere). It
 * runs the loop once it is released; stopped before that, it runs nothing. busy_poll: it never sleeps. TRIB_STATE on an
 * attached loop or when it has been started, TRIB_SYSTEM if no thread could be made: errno says why. */
TRIB_CHECKED trib_status trib_reactor_ev_start_held(trib_reactor *reactor, int core, bool busy_poll);
void trib_reactor_ev_release(trib_reactor *reactor);

TRIB_CHECKED static inline trib_status trib_reactor_ev_start(trib_reactor *reactor, int core, bool busy_poll)
{
    trib_status status = trib_reactor_ev_start_held(reactor, core, busy_poll);
    if (status == TRIB_OK) {
        trib_reactor_ev_release(reactor);
    }
    return status;
}

/* On its thread: pins it to another core, -1 to none, which is as it was started. */
void trib_reactor_ev_pin(trib_reactor *reactor, int core);

/* On its thread: ends spinning (busy_poll). From now on the thread sleeps when there is nothing to do. */
void trib_reactor_ev_stop_spinning(trib_reactor *reactor);

/* Before it starts, or on its thread: sets how long the thread polls for more work before it sleeps (poll_window.h).
 * Other threads of its core run in between; crowded: after each poll, because it may wait for one of them. Posts and
 * payload (trib_reactor.got_payload) adapt the window; where most_ns is below 1 ms all work does. Both 0: it sleeps at
 * once. */
void trib_reactor_ev_set_poll_window(trib_reactor *reactor, int64_t least_ns, int64_t most_ns, bool crowded);

/* On its thread, not from a callback: does the work of a turn of the loop, without timers and descriptors. True: there
 * was work. */
bool trib_reactor_ev_poll(trib_reactor *reactor);

/* Any thread, the reactor's own too: the loop ends soon, for good. No-op on an attached loop. */
void trib_reactor_ev_stop(trib_reactor *reactor);

/* Waits until the thread is gone; no-op if there is none. Must not be called on the thread itself. */
void trib_reactor_ev_join(trib_reactor *reactor);

struct ev_loop *trib_reactor_ev_loop(trib_reactor *reactor);

/* Any thread: true if the caller is on the thread that runs the loop. */
bool trib_reactor_ev_on_thread(const trib_reactor *reactor);

#endif
