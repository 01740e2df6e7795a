/*
 * failover_session.c - the life of a session: its paths, how one takes over from another, the end.
 *
 * Invariants
 * - A session ends once: trib_failover_session_end decides how, and its post reports it when the last path is closed.
 * - A path takes over in steps: it is ready (connected, or greeted by the peer); if the earlier path works, the peer
 *   has answered on the new one; the earlier path is closed. On the accepting side the newest attempt takes over, and
 *   no outdated one.
 * - On the accepting side a session without survives_path_loss ends with its path: its peer is not authenticated yet.
 */
#include "transports/failover/failover_internal.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/log.h"

static trib_reactor *reactor_of(const failover_session *session)
{
    return session->transport->base.reactor;
}

/* ---- The end ---- */

void trib_failover_session_end(failover_session *session, trib_status status, const char *reason)
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
        trib_failover_path_close(session->successor, false, "given up");
    }
    if (session->path != NULL && !session->bye_sent) {
        session->bye_sent = true;
        trib_failover_path_finish(session->path);
    }
    trib_reactor_defer(reactor_of(session), &session->post);
}

static void forget_session(failover_session *session)
{
    DL_DELETE(session->transport->sessions, session);
    if (session->hh.tbl != NULL) {
        HASH_DEL(session->transport->accepted, session);
    }
    free(session);
}

static void finish_session(failover_session *session)
{
    const trib_transport_upcalls *upcalls = session->base.transport->upcalls;
    trib_failover_flow_return_sends(session);
    if (!session->established && !session->closing) {
        upcalls->connected(&session->base, session->end_status);
    }
    upcalls->closed(&session->base, session->closing ? TRIB_OK : session->end_status, session->reason);
    forget_session(session);
}

static void send_bye(failover_session *session, failover_path *path)
{
    session->bye_sent = true;
    if (trib_failover_send_frame(path, FAILOVER_BYE, session->received)) {
        trib_failover_path_close(path, true, "closed by this side");
    }
}

void trib_failover_session_note_dropping(failover_session *session)
{
    if (session->flushing && !session->over && !session->bye_sent) {
        send_bye(session, session->path);
    }
}

/* Does everything that is due in a turn. Its upcalls may do anything. */
static void run_post(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    failover_session *session = trib_container_of(post, failover_session, post);
    trib_failover_flow_report_sent(session);
    if (session->over) {
        if (session->paths == 0 && !post->queued) {
            finish_session(session);
        }
        return;
    }
    trib_failover_flow_send_more(session);
    failover_path *path = session->path;
    if (path == NULL || path->retired) {
        return;
    }
    if (session->ack_due && !path->ack_busy) {
        session->ack_due = !trib_failover_send_frame(path, FAILOVER_ACK, session->received);
    }
    if (session->flushing && session->head == NULL && !session->bye_sent) {
        send_bye(session, path);
    }
}

void trib_failover_conn_close(trib_conn *base, bool flush)
{
    failover_session *session = (failover_session *)base;
    if (base->transport->ops->conn_close != trib_failover_conn_close) {
        base->transport->ops->conn_close(base, flush);
        return;
    }
    const bool was_closing = session->closing;
    session->closing = true;
    if (session->over) {
        return;
    }
    if (!flush || !session->established) {
        failover_path *path = session->path;
        if (session->bye_sent && path != NULL) { /* the flush takes too long */
            trib_failover_path_close(path, false, "closed by this side");
        }
        trib_failover_session_end(session, TRIB_OK, "closed by this side");
    } else if (!was_closing) {
        session->flushing = true;
        trib_failover_recv_resume(base);
        trib_reactor_defer(reactor_of(session), &session->post);
    }
}

/* ---- Paths ---- */

static void log_path(const failover_session *session, const failover_path *path)
{
    trib_logger *logger = reactor_of(session)->logger;
    const char *from = session->came_by.text, *to = path->inner->remote.text;
    if (!session->established || strcmp(from, to) == 0) { /* a return to a better rail failed */
        return;
    }
    if (session->loss[0] != '\0') {
        trib_log(logger, TRIB_LOG_WARN, "failed over from rail %s to rail %s: %s", from, to, session->loss);
    } else if (session->outgoing) {
        trib_log(logger, TRIB_LOG_INFO, "rail %s is back: the connection returned to it from rail %s", to, from);
    } else {
        trib_log(logger, TRIB_LOG_INFO, "failed over from rail %s to rail %s at the peer's request", from, to);
    }
}

/* The path carries the session from here on; the peer has received `count` messages. */
static bool adopt_path(failover_session *session, failover_path *path, uint64_t count)
{
    if (!trib_failover_flow_begin(session, count)) {
        trib_failover_path_close(path, false, "the peer counts messages that were not sent");
        return false;
    }
    log_path(session, path);
    session->path = path;
    session->successor = NULL;
    session->loss[0] = '\0';
    session->came_by = path->inner->remote;
    trib_failover_dial_note_success(session);
    trib_reactor_defer(reactor_of(session), &session->post);
    return true;
}

static void send_greeting(failover_session *session, failover_path *path)
{
    if (!path->greeted) {
        session->attempt++;
        path->greeted =
            trib_failover_send_frame(path, session->established ? FAILOVER_RESUME : FAILOVER_HELLO, session->received);
    }
}

/* Goes on with the successor, if it is ready. */
static void switch_to_successor(failover_session *session)
{
    failover_path *path = session->successor;
    if (path == NULL || !path->ready || session->over || session->bye_sent) {
        return;
    }
    failover_path *carrier = session->path;
    session->base.path = path->inner->path;
    if (carrier != NULL && carrier->retired) {
        return; /* it is closing; its `closed` calls again */
    }
    if (session->outgoing && session->established &&
        !path->answered) { /* the working path is kept until the new one answers */
        path->probed = path->probed || trib_failover_send_frame(path, FAILOVER_PROBE, 0);
    } else if (carrier != NULL) {
        carrier->retired = true;
        trib_failover_path_close(carrier, false, "failed over to another rail");
    } else if (session->outgoing) {
        send_greeting(session, path);
    } else if (adopt_path(session, path, path->count)) {
        trib_failover_send_frame(path, FAILOVER_WELCOME, session->received);
    }
}

void trib_failover_session_connected(failover_path *path)
{
    path->ready = true;
    if (path == path->session->successor) {
        switch_to_successor(path->session);
    }
}

void trib_failover_session_take_ready(failover_path *path, const failover_frame *ready)
{
    path->answered = true;
    memcpy(path->nonce, ready->id, sizeof path->nonce);
    if (path == path->session->successor) {
        switch_to_successor(path->session);
    }
}

void trib_failover_session_take_welcome(failover_path *path, const failover_frame *welcome)
{
    failover_session *session = path->session;
    const bool first = !session->established;
    const bool is_ours =
        le64toh(welcome->attempt) == session->attempt && memcmp(welcome->id, session->id, sizeof session->id) == 0;
    if (!first && (!is_ours || !trib_failover_proof_is_valid(path, welcome))) {
        trib_failover_path_close(path, false, "the process at this address did not prove the job's token");
        return;
    }
    if (!adopt_path(session, path, le64toh(welcome->count)) || !first) {
        return;
    }
    session->established = true;
    session->base.remote = path->inner->remote;
    session->base.transport->upcalls->connected(&session->base, TRIB_OK);
}

static failover_session *session_of(failover_transport *self, const unsigned char *id)
{
    failover_session *session = NULL;
    HASH_FIND(hh, self->accepted, id, TRIB_FAILOVER_ID, session);
    return session;
}

/* Makes the session of a new peer; NULL if it is not allowed, or there is no memory. */
static failover_session *session_begin(failover_path *path, const failover_frame *hello)
{
    failover_transport *self = path->transport;
    if (hello->kind != FAILOVER_HELLO || path->listener == NULL || path->count != 0) {
        return NULL;
    }
    failover_session *session = trib_failover_session_create(self, false);
    if (session == NULL) {
        return NULL;
    }
    memcpy(session->id, hello->id, sizeof session->id);
    HASH_ADD(hh, self->accepted, id, TRIB_FAILOVER_ID, session);
    if (session->hh.tbl == NULL) {
        forget_session(session);
        return NULL;
    }
    return session;
}

static void take_first_hello(failover_path *path, const failover_frame *hello)
{
    failover_session *session = session_begin(path, hello);
    if (session == NULL) {
        trib_failover_path_reject(path, "no such session");
        return;
    }
    session->attempt = le64toh(hello->attempt);
    session->base.remote = path->inner->remote;
    path->session = session;
    session->paths = 1;
    session->successor = path;
    switch_to_successor(session);
    session->established = true;
    path->transport->base.upcalls->accepted(&path->listener->base, &session->base);
}

/* A HELLO may repeat the first one if the peer got no WELCOME and sent nothing. Anything else has to prove that it
 * is of this job. */
static bool may_take_over(const failover_session *session, const failover_path *path, const failover_frame *hello)
{
    if (hello->kind == FAILOVER_HELLO) {
        return session->received == 0 && session->acked == 0;
    }
    return path->probed && trib_failover_proof_is_valid(path, hello);
}

void trib_failover_session_take_hello(failover_path *path, const failover_frame *hello)
{
    failover_session *session = session_of(path->transport, hello->id);
    const uint64_t attempt = le64toh(hello->attempt);
    trib_timer_stop(path->transport->base.reactor, &path->timer);
    if (path->ready || (path->probed && hello->kind == FAILOVER_HELLO)) {
        trib_failover_path_close(path, false, "a second greeting");
        return;
    }
    path->ready = true;
    path->count = le64toh(hello->count);
    if (session == NULL) {
        take_first_hello(path, hello);
        return;
    }
    if (session->over || session->bye_sent) {
        trib_failover_path_reject(path, "the session is over");
        return;
    }
    if (attempt <= session->attempt || !trib_failover_flow_accepts_count(session, path->count) ||
        !may_take_over(session, path, hello)) {
        trib_failover_path_close(path, false, "a greeting that is outdated, or does not prove the job's token");
        return;
    }
    session->attempt = attempt;
    path->session = session;
    session->paths++;
    if (session->successor != NULL) {
        trib_failover_path_close(session->successor, false, "the peer made a newer attempt");
    }
    session->successor = path;
    switch_to_successor(session);
}

void trib_failover_session_take_probe(failover_path *path, const failover_frame *probe)
{
    const failover_session *session = session_of(path->transport, probe->id);
    if (path->ready || path->probed) {
        trib_failover_path_close(path, false, "a second greeting");
    } else if (session == NULL || session->over || session->bye_sent) {
        path->ready = true; /* it gets its answer */
        trib_failover_path_reject(path, "no such session");
    } else {
        trib_reactor *reactor = path->transport->base.reactor;
        reactor->ops->random(reactor, path->nonce, sizeof path->nonce);
        path->probed = trib_failover_send_frame(path, FAILOVER_READY, 0);
    }
}

static bool is_loss(trib_status status)
{
    return status == TRIB_OK || status == TRIB_PEER_LOST || status == TRIB_SYSTEM || status == TRIB_CLOSED;
}

static void carrier_closed(failover_session *session, const failover_path *path, trib_status status, const char *reason)
{
    session->path = NULL;
    trib_failover_flow_path_lost(session);
    if (session->over) {
        return;
    }
    if (session->bye_sent) {
        trib_failover_session_end(session, TRIB_OK, "closed by this side");
    } else if (path->refusal != TRIB_OK || !is_loss(status)) {
        trib_failover_session_end(session, path->refusal != TRIB_OK ? path->refusal : status, reason);
    } else {
        if (!path->retired || session->successor == NULL) {
            trib_failover_dial_note_loss(session, path, reason);
        } else if (session->outgoing) {
            trib_failover_dial_begin(session, path->rail);
            trib_failover_dial_set_bound(session);
        }
        switch_to_successor(session);
    }
}

void trib_failover_session_path_closed(failover_path *path, trib_status status, const char *reason)
{
    failover_session *session = path->session;
    trib_assert(session->paths > 0);
    session->paths--;
    if (path == session->path) {
        carrier_closed(session, path, status, reason);
    } else if (path == session->successor) {
        session->successor = NULL;
        if (!session->over) {
            trib_failover_dial_note_failure(session, path, reason);
        }
    }
    trib_reactor_defer(reactor_of(session), &session->post);
}

/* ---- Making ---- */

failover_session *trib_failover_session_create(failover_transport *transport, bool outgoing)
{
    failover_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        return NULL;
    }
    session->base.transport = &transport->base;
    session->transport = transport;
    session->outgoing = outgoing;
    session->post.run = run_post;
    trib_failover_dial_init(session);
    DL_PREPEND(transport->sessions, session);
    return session;
}

static trib_status parse_rail_list(failover_session *session, const char *text)
{
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (session->rail_count == TRIB_FAILOVER_MAX || length == 0) {
            return TRIB_INVALID;
        }
        session->has_offers = session->has_offers || memchr(at, '+', length) != NULL;
        snprintf(session->rails[session->rail_count++].text, TRIB_ADDRESS_MAX, "%.*s", (int)length, at);
        at += length + (at[length] == ',');
    }
    return session->rail_count > 0 ? TRIB_OK : TRIB_INVALID;
}

trib_status trib_failover_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    failover_transport *self = (failover_transport *)transport;
    if (memchr(to->text, '\0', sizeof to->text) == NULL || strchr(to->text, ',') == NULL) {
        return self->ops->connect(self->plain, to, user, conn_out);
    }
    failover_session *session = trib_failover_session_create(self, true);
    if (session == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_status status = parse_rail_list(session, to->text);
    if (status == TRIB_OK) {
        transport->reactor->ops->random(transport->reactor, session->id, sizeof session->id);
        session->base.user = user;
        session->base.remote = session->rails[0];
        trib_failover_dial_begin(session, 0);
        session->try_next = 1;
        status = trib_failover_dial_try(session, 0, false);
    }
    if (status == TRIB_INVALID || status == TRIB_NO_MEMORY) {
        forget_session(session);
        return status;
    }
    *conn_out = &session->base;
    if (session->successor == NULL) {
        trib_failover_dial_start(session, trib_status_text(status));
    }
    return TRIB_OK;
}
