/*
 * failover_dial.c - how a session finds a path: attempts, rounds of attempts, and returns to a better rail.
 *
 * Invariants
 * - The connecting side dials, the accepting side waits; both for three quarters of the silence timeout after the
 *   loss. A round has one attempt for each way to connect. Rounds repeat until the deadline; the search ends earlier
 *   only if in one round every rail said that nobody listens.
 * - Each attempt is bounded by a timer, and by its part of the time that is left until the deadline.
 * - A return is tried beside the path that works. One that fails changes nothing, and the next waits longer.
 */
#include "transports/failover/failover_internal.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"

#define ATTEMPT_MAX_NS (4 * INT64_C(1000000000))
#define PAUSE_NS (200 * INT64_C(1000000)) /* between rounds */
#define RETURN_NS (2 * INT64_C(1000000000))
#define RETURN_MAX_NS (8 * INT64_C(1000000000))

static trib_reactor *reactor_of(const failover_session *session)
{
    return session->transport->base.reactor;
}

static void arm_timer(failover_session *session, trib_timer *timer, int64_t in_ns)
{
    trib_timer_arm(reactor_of(session), timer, trib_now(reactor_of(session)) + in_ns);
    session->grace_extended = session->grace_extended && timer != &session->timer;
}

/* The number of attempts in a round. */
static uint32_t tries_of(const failover_session *session)
{
    return session->rail_count * (session->has_offers ? 2 : 1);
}

static void give_up_session(failover_session *session, const char *last)
{
    char reason[TRIB_FAILOVER_REASON_MAX];
    if (session->loss[0] == '\0') {
        snprintf(reason, sizeof reason, "%s", last);
    } else {
        snprintf(reason, sizeof reason, "%.120s, and no other rail works: %.90s", session->loss, last);
    }
    trib_failover_session_end(session, TRIB_PEER_LOST, reason);
}

/* ---- Rounds ---- */

void trib_failover_dial_begin(failover_session *session, uint32_t first)
{
    session->first_try = first;
    session->try_next = 0;
    session->absent = 0;
    session->again = false;
    session->deadline_ns = trib_now(reactor_of(session)) + session->transport->silence_ns / 4 * 3;
}

/* The time of an attempt, so that all that are left in this round have their turn before the deadline. */
static int64_t attempt_ns(const failover_session *session)
{
    const int64_t silence_ns = session->transport->silence_ns;
    const int64_t left_ns = session->deadline_ns - trib_now(reactor_of(session));
    const int64_t share_ns = left_ns / (1 + tries_of(session) - session->try_next);
    int64_t wanted_ns = silence_ns / 8 < ATTEMPT_MAX_NS ? silence_ns / 8 : ATTEMPT_MAX_NS;
    wanted_ns = share_ns < wanted_ns ? share_ns : wanted_ns;
    return wanted_ns > silence_ns / 64 ? wanted_ns : silence_ns / 64;
}

void trib_failover_dial_set_bound(failover_session *session)
{
    arm_timer(session, &session->timer, attempt_ns(session));
}

trib_status trib_failover_dial_try(failover_session *session, uint32_t rail, bool is_makeshift)
{
    trib_status status = TRIB_OK;
    session->successor = trib_failover_path_connect(session, rail, is_makeshift, &status);
    if (session->successor != NULL) {
        trib_failover_dial_set_bound(session);
    }
    return status;
}

/* The rail of an attempt of this round. Attempts with what the addresses offer come first, then those without; a
 * rail that has just failed comes last in both. */
static uint32_t choose_rail(const failover_session *session, uint32_t try, bool *is_makeshift_out)
{
    const uint32_t others = session->rail_count - (session->established ? 1 : 0);
    const uint32_t ways = session->has_offers ? 2 : 1;
    *is_makeshift_out = try < others * ways ? try >= others : try > others * ways;
    return (session->first_try + (try < others * ways ? try % others : others)) % session->rail_count;
}

static void end_round(failover_session *session)
{
    const bool nobody = session->absent == (1u << session->rail_count) - 1;
    if (nobody || trib_now(reactor_of(session)) + PAUSE_NS >= session->deadline_ns) {
        give_up_session(session, session->last);
        return;
    }
    session->try_next = 0;
    session->absent = 0;
    session->again = true;
    arm_timer(session, &session->timer, PAUSE_NS);
}

void trib_failover_dial_start(failover_session *session, const char *last)
{
    if (last != session->last) {
        snprintf(session->last, sizeof session->last, "%s", last);
    }
    while (session->try_next < tries_of(session) && session->successor == NULL) {
        bool is_makeshift = false;
        const uint32_t rail = choose_rail(session, session->try_next++, &is_makeshift);
        trib_status status = trib_failover_dial_try(session, rail, is_makeshift);
        if (status != TRIB_OK) {
            snprintf(session->last, sizeof session->last, "%s", trib_status_text(status));
        }
    }
    if (session->successor == NULL) {
        end_round(session);
    }
}

void trib_failover_dial_note_failure(failover_session *session, const failover_path *path, const char *reason)
{
    if (!session->outgoing) {
        if (session->path == NULL) {
            arm_timer(session, &session->timer, session->transport->silence_ns / 4 * 3);
        }
        return;
    }
    if (session->path != NULL) {
        session->return_at_ns = trib_now(reactor_of(session)) + session->return_wait_ns;
        session->return_wait_ns *= session->return_wait_ns < RETURN_MAX_NS ? 2 : 1;
        return;
    }
    const char *address = session->rails[path->rail].text;
    if (!session->again && (session->established || (session->has_offers && !path->is_makeshift))) {
        trib_log(reactor_of(session)->logger, TRIB_LOG_WARN, "rail %s does not work: %s", address, reason);
    }
    if (path->inner->refused || path->gone) {
        session->absent |= 1u << path->rail;
    }
    trib_failover_dial_start(session, reason);
}

void trib_failover_dial_note_loss(failover_session *session, const failover_path *path, const char *reason)
{
    snprintf(session->loss, sizeof session->loss, "%s", reason);
    if (session->outgoing) {
        trib_failover_dial_begin(session, path->retired ? path->rail : (path->rail + 1) % session->rail_count);
        if (session->successor == NULL) {
            trib_failover_dial_start(session, reason);
        }
    } else if (session->successor == NULL && !session->base.survives_path_loss) {
        trib_failover_session_end(session, TRIB_PEER_LOST, reason);
    } else if (session->successor == NULL) {
        trib_log(reactor_of(session)->logger, TRIB_LOG_INFO,
                 "the rail from %s failed (%s): waiting for the peer to connect by another rail", session->came_by.text,
                 reason);
        arm_timer(session, &session->timer, session->transport->silence_ns / 4 * 3);
    }
}

void trib_failover_dial_note_success(failover_session *session)
{
    session->return_wait_ns = RETURN_NS;
    session->return_at_ns = trib_now(reactor_of(session)) + RETURN_NS;
    trib_timer_stop(reactor_of(session), &session->timer);
    arm_timer(session, &session->beat, session->transport->silence_ns / 16);
}

/* ---- Timers ---- */

static void timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    failover_session *session = timer->user;
    const int64_t tolerance_ns = session->transport->silence_ns / 8;
    if (!session->grace_extended && trib_timer_stalled_locally(reactor, timer, tolerance_ns)) {
        /* The peer's message may have arrived and not been read yet. Extended once, because a loop may always be
         * late. */
        arm_timer(session, timer, tolerance_ns);
        session->grace_extended = true;
    } else if (!session->outgoing) {
        if (session->successor == NULL) {
            give_up_session(session, "the peer did not connect by another rail");
        }
    } else if (session->successor != NULL) {
        trib_failover_path_close(session->successor, false, "no answer in time");
    } else if (session->path == NULL) { /* the pause between rounds is over */
        trib_failover_dial_start(session, session->last);
    }
}

/* Sends an ACK as a sign of life, and tries the first rail again if the session uses another. */
static void beat_fired(trib_reactor *reactor, trib_timer *timer)
{
    failover_session *session = timer->user;
    session->ack_due = true;
    trib_reactor_defer(reactor, &session->post);
    const failover_path *path = session->path;
    const bool could_be_better = path != NULL && !path->retired && (path->rail != 0 || path->is_makeshift);
    if (session->outgoing && could_be_better && session->successor == NULL && !session->bye_sent &&
        trib_now(reactor) >= session->return_at_ns) {
        trib_failover_dial_begin(session, path->rail); /* bounds the attempt */
        session->return_at_ns = trib_now(reactor) + session->return_wait_ns;
        session->return_next = path->is_makeshift ? (session->return_next + 1) % session->rail_count : 0;
        (void)!trib_failover_dial_try(session, session->return_next,
                                      false); /* if it fails, the next beat tries again */
    }
    arm_timer(session, timer, session->transport->silence_ns / 16);
}

void trib_failover_dial_init(failover_session *session)
{
    session->timer.fired = timer_fired;
    session->timer.user = session;
    session->beat.fired = beat_fired;
    session->beat.user = session;
}
