/*
 * rails_session.c - the life of a session: the first path, the loss of one, the next, the end.
 *
 * Invariants
 * - The connecting side looks for ways, the accepting side waits. Each try is bounded by a timer, and so is the waiting.
 * - A session ends once: trib_rails_session_end says how, and its post tells the caller when the last path is closed.
 * - A path takes over in two steps: it is ready (connected, or greeted by the peer), and the one before it is closed.
 */
#include "transports/rails_internal.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assert.h"
#include "engine/log.h"

#define ATTEMPT_MIN_NS (500 * INT64_C(1000000))
#define ATTEMPT_MAX_NS (4 * INT64_C(1000000000))
#define RETURN_NS (2 * INT64_C(1000000000))

static trib_reactor *reactor_of(const rails_session *session)
{
    return session->transport->base.reactor;
}

static void arm(rails_session *session, trib_timer *timer, int64_t in_ns)
{
    trib_timer_arm(reactor_of(session), timer, trib_now(reactor_of(session)) + in_ns);
}

/* ---- The end ---- */

void trib_rails_session_end(rails_session *session, trib_status status, const char *reason)
{
    if (session->over) {
        return;
    }
    session->over = true;
    session->end_status = status;
    snprintf(session->reason, sizeof session->reason, "%s", reason);
    trib_timer_stop(reactor_of(session), &session->timer);
    trib_timer_stop(reactor_of(session), &session->beat);
    if (session->successor != NULL) {
        trib_rails_path_close(session->successor, false, "given up");
    }
    if (session->path != NULL && !session->bye_sent) {
        session->bye_sent = true;
        trib_rails_path_bye(session->path);
    }
    trib_reactor_defer(reactor_of(session), &session->post);
}

static void forget(rails_session *session)
{
    *session->at = session->next;
    if (session->next != NULL) {
        session->next->at = session->at;
    }
    free(session);
}

static void finish(rails_session *session)
{
    const trib_transport_upcalls *upcalls = session->base.transport->upcalls;
    trib_rails_flow_return(session);
    if (!session->established && !session->closing) {
        upcalls->connected(&session->base, session->end_status);
    }
    upcalls->closed(&session->base, session->closing ? TRIB_OK : session->end_status, session->reason);
    forget(session);
}

/* Everything that is due in a turn. It may make upcalls, and these may do anything. */
static void run_post(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    rails_session *session = (rails_session *)((char *)post - offsetof(rails_session, post));
    trib_rails_flow_report(session);
    if (session->over) {
        if (session->paths == 0 && !post->queued) {
            finish(session);
        }
        return;
    }
    trib_rails_flow_give(session);
    rails_path *path = session->path;
    if (path == NULL || path->retired) {
        return;
    }
    if (session->ack_due && !path->ack_busy) {
        session->ack_due = !trib_rails_say(path, RAILS_ACK, session->received);
    }
    if (session->flushing && session->head == NULL && !session->bye_sent) {
        session->bye_sent = true;
        if (trib_rails_say(path, RAILS_BYE, session->received)) {
            trib_rails_path_close(path, true, "closed by this side");
        }
    }
}

void trib_rails_conn_close(trib_conn *base, bool flush)
{
    rails_session *session = (rails_session *)base;
    if (base->transport->ops->conn_close != trib_rails_conn_close) {
        base->transport->ops->conn_close(base, flush);
        return;
    }
    const bool was_closing = session->closing;
    session->closing = true;
    if (session->over) {
        return;
    }
    if (!flush || !session->established) {
        rails_path *path = session->path;
        if (session->bye_sent && path != NULL) { /* the flush takes too long */
            trib_rails_path_close(path, false, "closed by this side");
        }
        trib_rails_session_end(session, TRIB_OK, "closed by this side");
    } else if (!was_closing) {
        session->flushing = true;
        trib_rails_recv_resume(base);
        trib_reactor_defer(reactor_of(session), &session->post);
    }
}

/* ---- Looking for a way ---- */

static int64_t attempt_ns(const rails_session *session)
{
    const int64_t wanted = session->transport->silence_ns / 8;
    return wanted < ATTEMPT_MIN_NS ? ATTEMPT_MIN_NS : wanted > ATTEMPT_MAX_NS ? ATTEMPT_MAX_NS : wanted;
}

static void give_up(rails_session *session, const char *last)
{
    char reason[TRIB_RAILS_REASON_MAX];
    if (session->loss[0] == '\0') {
        snprintf(reason, sizeof reason, "%s", last);
    } else {
        snprintf(reason, sizeof reason, "%.120s, and no other rail leads there: %.90s", session->loss, last);
    }
    trib_rails_session_end(session, TRIB_PEER_LOST, reason);
}

static trib_status try_rail(rails_session *session, uint32_t rail, bool is_makeshift)
{
    trib_status status = TRIB_OK;
    session->successor = trib_rails_path_connect(session, rail, is_makeshift, &status);
    if (session->successor != NULL) {
        arm(session, &session->timer, attempt_ns(session));
    }
    return status;
}

/* Which rail a try of this round takes. First comes what is offered, then what goes without; and before a rail that has
 * just failed all others, either way. */
static uint32_t choose(const rails_session *session, uint32_t try, bool *is_makeshift_out)
{
    const uint32_t others = session->rail_count - (session->established ? 1 : 0);
    const uint32_t ways = session->has_offers ? 2 : 1;
    *is_makeshift_out = try < others * ways ? try >= others : try > others * ways;
    return (session->first_try + (try < others * ways ? try % others : others)) % session->rail_count;
}

/* The next try of this round. Last: why the one before did not do. */
static trib_status dial(rails_session *session, const char *last)
{
    const uint32_t tries = session->rail_count * (session->has_offers ? 2 : 1);
    trib_status status = TRIB_PEER_LOST;
    while (session->try_next < tries && session->successor == NULL) {
        bool is_makeshift = false;
        const uint32_t rail = choose(session, session->try_next++, &is_makeshift);
        status = try_rail(session, rail, is_makeshift);
    }
    if (session->successor == NULL) {
        give_up(session, last);
    }
    return status;
}

static void attempt_failed(rails_session *session, const rails_path *path, const char *reason)
{
    const char *address = session->rails[path->rail].text;
    if (session->established || (session->has_offers && !path->is_makeshift)) {
        trib_log(reactor_of(session)->logger, TRIB_LOG_WARN, "the rail to %s is of no use: %s", address, reason);
    }
    (void)dial(session, reason);
}

static void attempt_over(rails_session *session)
{
    if (session->successor != NULL) {
        trib_rails_path_close(session->successor, false, "there was no answer in time");
    }
}

static void timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    rails_session *session = timer->user;
    if (session->outgoing) {
        attempt_over(session);
    } else if (trib_timer_overslept(reactor, timer, session->transport->silence_ns / 8)) {
        arm(session, timer, session->transport->silence_ns / 8); /* who has come may be unread */
    } else if (session->successor == NULL) {
        give_up(session, "nobody came by another");
    }
}

/* Shows that the way leads there, and tries the first rail again where it goes by another. */
static void beat_fired(trib_reactor *reactor, trib_timer *timer)
{
    rails_session *session = timer->user;
    session->ack_due = true;
    trib_reactor_defer(reactor, &session->post);
    const rails_path *path = session->path;
    const bool could_be_better = path != NULL && (path->rail != 0 || path->is_makeshift);
    if (session->outgoing && could_be_better && session->successor == NULL && !session->bye_sent &&
        trib_now(reactor) >= session->return_at_ns) {
        session->return_at_ns = trib_now(reactor) + RETURN_NS;
        session->return_next = path->is_makeshift ? (session->return_next + 1) % session->rail_count : 0;
        (void)try_rail(session, session->return_next, false); /* if not now, then the next time */
    }
    arm(session, timer, session->transport->silence_ns / 16);
}

/* ---- Paths ---- */

/* The path that carried it is gone, and none has come to replace it. */
static void lost(rails_session *session, const char *reason, uint32_t rail)
{
    trib_logger *logger = reactor_of(session)->logger;
    snprintf(session->loss, sizeof session->loss, "%s", reason);
    if (session->outgoing) {
        session->try_next = 0;
        session->first_try = (rail + 1) % session->rail_count;
        if (session->successor == NULL) {
            (void)dial(session, reason);
        }
    } else if (session->successor == NULL) {
        trib_log(logger, TRIB_LOG_INFO, "the rail from %s failed (%s): its work waits for the peer to come by another",
                 session->came_by.text, reason);
        arm(session, &session->timer, session->transport->silence_ns / 4 * 3);
    }
}

static void say_where(const rails_session *session, const rails_path *path)
{
    trib_logger *logger = reactor_of(session)->logger;
    const char *from = session->came_by.text, *to = path->inner->remote.text;
    const char *way = session->outgoing ? "to" : "from";
    if (!session->established) {
        return;
    }
    if (session->loss[0] != '\0') {
        trib_log(logger, TRIB_LOG_WARN, "the rail %s %s failed (%s): its work goes on by the one %s %s", way, from,
                 session->loss, way, to);
    } else if (session->outgoing) {
        trib_log(logger, TRIB_LOG_INFO, "the rail to %s is back: it takes over from the one to %s", to, from);
    } else {
        trib_log(logger, TRIB_LOG_INFO, "the rail from %s takes over from the one from %s: the peer wants it so", to,
                 from);
    }
}

/* It carries the session from here on; the peer has received so many. */
static bool adopt(rails_session *session, rails_path *path, uint64_t count)
{
    if (!trib_rails_flow_begin(session, count)) {
        trib_rails_session_end(session, TRIB_PROTOCOL, "the peer counts messages that were not sent");
        return false;
    }
    say_where(session, path);
    session->path = path;
    session->successor = NULL;
    session->loss[0] = '\0';
    session->came_by = path->inner->remote;
    session->return_at_ns = trib_now(reactor_of(session)) + RETURN_NS;
    trib_timer_stop(reactor_of(session), &session->timer);
    arm(session, &session->beat, session->transport->silence_ns / 16);
    trib_reactor_defer(reactor_of(session), &session->post);
    return true;
}

/* Goes on with the path that shall take over, if it may. */
static void succeed(rails_session *session)
{
    rails_path *path = session->successor;
    if (path == NULL || !path->ready || session->over || session->bye_sent) {
        return;
    }
    if (session->path != NULL) {
        if (!session->path->retired) {
            session->path->retired = true;
            trib_rails_path_close(session->path, false, "another rail takes over");
        }
    } else if (!session->outgoing) {
        if (adopt(session, path, path->count)) {
            trib_rails_say(path, RAILS_WELCOME, session->received);
        }
    } else if (!path->greeted) {
        path->greeted = trib_rails_say(path, session->established ? RAILS_RESUME : RAILS_HELLO, session->received);
    }
}

void trib_rails_session_connected(rails_path *path)
{
    path->ready = true;
    if (path == path->session->successor) {
        succeed(path->session);
    }
}

void trib_rails_session_welcome(rails_path *path, uint64_t count)
{
    rails_session *session = path->session;
    const bool first = !session->established;
    if (!adopt(session, path, count) || !first) {
        return;
    }
    session->established = true;
    session->base.remote = path->inner->remote;
    session->base.transport->upcalls->connected(&session->base, TRIB_OK);
}

/* In time that does not depend on what is guessed right. */
static bool is_same(const unsigned char *one, const unsigned char *other)
{
    unsigned char difference = 0;
    for (size_t i = 0; i < TRIB_RAILS_ID; i++) {
        difference |= one[i] ^ other[i];
    }
    return difference == 0;
}

static rails_session *session_of(rails_transport *self, const unsigned char *id)
{
    for (rails_session *session = self->sessions; session != NULL; session = session->next) {
        if (!session->outgoing && is_same(session->id, id)) {
            return session;
        }
    }
    return NULL;
}

static void begin_session(rails_path *path, const rails_frame *hello)
{
    const bool may = hello->kind == RAILS_HELLO && path->listener != NULL && path->count == 0;
    rails_session *session = may ? trib_rails_session_create(path->transport, false) : NULL;
    if (session == NULL) {
        trib_rails_path_close(path, false, "no such session");
        return;
    }
    memcpy(session->id, hello->id, sizeof session->id);
    session->base.remote = path->inner->remote;
    path->session = session;
    session->paths = 1;
    session->successor = path;
    succeed(session);
    session->established = true;
    path->transport->base.upcalls->accepted(&path->listener->base, &session->base);
}

void trib_rails_session_greet(rails_path *path, const rails_frame *hello)
{
    rails_session *session = session_of(path->transport, hello->id);
    trib_timer_stop(path->transport->base.reactor, &path->timer);
    path->ready = true;
    path->count = le64toh(hello->count);
    if (session == NULL) {
        begin_session(path, hello);
        return;
    }
    if (session->over || session->bye_sent) {
        trib_rails_path_close(path, false, "the session is over");
        return;
    }
    path->session = session;
    session->paths++;
    if (session->successor != NULL) {
        trib_rails_path_close(session->successor, false, "the peer came again");
    }
    session->successor = path;
    succeed(session);
}

static bool is_loss(trib_status status)
{
    return status == TRIB_OK || status == TRIB_PEER_LOST || status == TRIB_SYSTEM || status == TRIB_CLOSED;
}

static void carrier_closed(rails_session *session, const rails_path *path, trib_status status, const char *reason)
{
    session->path = NULL;
    trib_rails_flow_path_lost(session);
    if (session->over) {
        return;
    }
    if (session->bye_sent) {
        trib_rails_session_end(session, TRIB_OK, "closed by this side");
    } else if (path->refusal != TRIB_OK || !is_loss(status)) {
        trib_rails_session_end(session, path->refusal != TRIB_OK ? path->refusal : status, reason);
    } else if (path->retired && session->successor != NULL) {
        succeed(session);
    } else {
        lost(session, reason, path->rail);
        succeed(session);
    }
}

void trib_rails_session_path_closed(rails_path *path, trib_status status, const char *reason)
{
    rails_session *session = path->session;
    trib_assert(session->paths > 0);
    session->paths--;
    if (path == session->path) {
        carrier_closed(session, path, status, reason);
    } else if (path == session->successor) {
        session->successor = NULL;
        if (!session->over && session->path == NULL) {
            if (session->outgoing) {
                attempt_failed(session, path, reason);
            } else {
                arm(session, &session->timer, session->transport->silence_ns / 4 * 3);
            }
        }
    }
    trib_reactor_defer(reactor_of(session), &session->post);
}

/* ---- Making ---- */

rails_session *trib_rails_session_create(rails_transport *transport, bool outgoing)
{
    rails_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        return NULL;
    }
    session->base.transport = &transport->base;
    session->transport = transport;
    session->outgoing = outgoing;
    session->post.run = run_post;
    session->timer.fired = timer_fired;
    session->timer.user = session;
    session->beat.fired = beat_fired;
    session->beat.user = session;
    session->next = transport->sessions;
    session->at = &transport->sessions;
    if (session->next != NULL) {
        session->next->at = &session->next;
    }
    transport->sessions = session;
    return session;
}

static trib_status read_rails(rails_session *session, const char *text)
{
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (session->rail_count == TRIB_RAILS_MAX || length == 0) {
            return TRIB_INVALID;
        }
        session->has_offers = session->has_offers || memchr(at, '+', length) != NULL;
        snprintf(session->rails[session->rail_count++].text, TRIB_ADDRESS_MAX, "%.*s", (int)length, at);
        at += length + (at[length] == ',');
    }
    return session->rail_count > 0 ? TRIB_OK : TRIB_INVALID;
}

trib_status trib_rails_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    rails_transport *self = (rails_transport *)transport;
    if (memchr(to->text, '\0', sizeof to->text) == NULL || strchr(to->text, ',') == NULL) {
        return self->ops->connect(self->plain, to, user, conn_out);
    }
    rails_session *session = trib_rails_session_create(self, true);
    if (session == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_status status = read_rails(session, to->text);
    if (status == TRIB_OK) {
        transport->reactor->ops->random(transport->reactor, session->id, sizeof session->id);
        session->base.user = user;
        session->base.remote = session->rails[0];
        session->try_next = 1;
        status = try_rail(session, 0, false);
    }
    if (status == TRIB_INVALID || status == TRIB_NO_MEMORY) {
        forget(session);
        return status;
    }
    *conn_out = &session->base;
    if (session->successor == NULL) {
        (void)dial(session, trib_status_text(status));
    }
    return TRIB_OK;
}
