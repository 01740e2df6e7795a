/* link_reconnect.c - see link_reconnect.h. */
#include "engine/link/link_reconnect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_call.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_handshake.h"
#include "engine/link/link_host.h"
#include "engine/wire/address_list.h"

#define WAIT_FIRST_NS (5 * INT64_C(1000000)) /* pause before the second attempt; it doubles with each attempt */
#define WAIT_SHARE 64                        /* a wait is at most this part of the peer timeout */
/* The limits of attempts in turn, each a number of these parts of the peer timeout, until the peer's machine answers;
 * then the handshake has more time. After a network cut of 0.8 of the timeout another attempt begins in time. The long
 * attempt is for answers that wait in a full queue, which would come too late for a short one. */
#define ATTEMPT_SHARE 32
static const unsigned char attempt_shares[] = {2, 3, 6};
#define PATIENT_SHARE 2 /* the part that an attempt takes once the timeout has passed, and the peer lives */
#define HANDSHAKE_SHARE 2
#define EXTENSIONS 8 /* quarters of the peer timeout that a link may take longer because its peer lives */
#define CALL_NS (20 * INT64_C(1000000)) /* pause before a call, because the connector mostly comes first */

static void adopt(trib_link *link);

uint32_t trib_redial_addresses(const trib_link *link)
{
    return (uint32_t)trib_address_list_count(link->redial.to.text);
}

void trib_redial_arm(trib_link *link, int64_t after_ns)
{
    trib_timer_arm(link->host->reactor, &link->redial.timer, trib_now(link->host->reactor) + after_ns);
}

static int64_t attempt_ns(const trib_link *link)
{
    const trib_link_redial *redial = &link->redial;
    const int64_t timeout_ns = trib_session_peer_timeout(link->host);
    if (redial->extensions > 0) {
        return timeout_ns / PATIENT_SHARE;
    }
    const uint32_t kinds = sizeof attempt_shares, addresses = trib_redial_addresses(link);
    const uint32_t turn = redial->tries + (addresses % kinds == 0 ? redial->tries / addresses : 0);
    return timeout_ns / ATTEMPT_SHARE * attempt_shares[turn % kinds];
}

int64_t trib_redial_wait(const trib_link *link)
{
    const int64_t most_ns = trib_session_peer_timeout(link->host) / WAIT_SHARE;
    const uint32_t rounds = link->redial.tries / (link->outgoing ? trib_redial_addresses(link) : 1);
    const int64_t wait_ns = WAIT_FIRST_NS << (rounds < 10 ? rounds : 10);
    return wait_ns < most_ns ? wait_ns : most_ns;
}

static bool is_loss(trib_status status)
{
    return status == TRIB_OK || status == TRIB_PEER_LOST || status == TRIB_SYSTEM || status == TRIB_CLOSED ||
           status == TRIB_TIMEOUT;
}

/* ---- The connector ---- */

/* True if another attempt follows when this one fails. */
static bool is_repeated(const trib_link *link)
{
    if (link->session.is_established) {
        return link->redial.survives;
    }
    if (!link->outgoing || link->purpose == TRIB_PURPOSE_CALL || link->purpose == TRIB_PURPOSE_PRIORITY) {
        return false;
    }
    return link->purpose != TRIB_PURPOSE_CONTROL || link->redial.tries < trib_redial_addresses(link);
}

static trib_status try_address(trib_link *link)
{
    trib_link_redial *redial = &link->redial;
    trib_transport *transport = link->host->transport;
    trib_address to;
    trib_address_list_copy(redial->to.text, redial->address, to.text, sizeof to.text);
    /* A service that an address offers may not answer in time. Each second round does without it. */
    if (redial->tries / trib_redial_addresses(link) % 2 == 1 && !redial->needs_offer) {
        to.text[strcspn(to.text, "+")] = '\0';
    }
    redial->tries++;
    redial->is_late = false;
    const trib_status status = transport->ops->connect(transport, &to, link, &link->conn);
    if (status == TRIB_OK) {
        link->conn->urgent = link->purpose == TRIB_PURPOSE_PRIORITY;
        link->busy_seen_ns = 0;
        if (is_repeated(link)) {
            trib_redial_arm(link, attempt_ns(link));
        }
    }
    return status;
}

void trib_redial_set_addresses(trib_link *link, const trib_address *to)
{
    if (strcmp(link->redial.to.text, to->text) != 0) {
        link->redial.to = *to;
        link->redial.address = link->redial.refused = 0;
    }
}

uint32_t trib_redial_attempt(trib_link *link)
{
    if (link->purpose == TRIB_PURPOSE_CALL) {
        return link->redial.caller != NULL ? link->redial.caller->handshake.attempt : 0;
    }
    return link->redial.attempts++ << 1 | link->session.is_established;
}

void trib_redial_connected(trib_link *link)
{
    if (is_repeated(link)) {
        trib_redial_arm(link, trib_session_peer_timeout(link->host) / HANDSHAKE_SHARE);
    }
}

trib_status trib_redial_begin(trib_link *link, const trib_address *to)
{
    link->redial.to = *to;
    trib_link_host *host = link->host;
    host->reactor->ops->random(host->reactor, (unsigned char *)&link->session.id, sizeof link->session.id);
    link->session.id |= 1; /* 0 stands for no session */
    return trib_redial_note_session(link) ? try_address(link) : TRIB_NO_MEMORY;
}

/* The next attempt is due, or this one takes too long. */
static void connect_next(trib_link *link)
{
    if (link->conn != NULL) {
        link->redial.is_late = true;
        link->conn->transport->ops->conn_close(link->conn, false);
        return;
    }
    const trib_status status = try_address(link);
    if (status != TRIB_OK) {
        char why[TRIB_REASON_MAX];
        snprintf(link->redial.reason, sizeof link->redial.reason, "%s", trib_log_status_reason(status, errno, why));
        trib_redial_arm(link, trib_redial_wait(link));
    }
}

static void timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_link *link = timer->user;
    if (link->state == TRIB_LINK_CLOSING) {
        return;
    }
    const trib_link *successor = link->conn == NULL ? link->redial.successor : NULL;
    if (successor != NULL && successor->in_flight > 0) {
        return; /* the transport still has frames of its handshake: trib_redial_sent goes on */
    }
    if (successor != NULL) {
        adopt(link);
    } else if (link->outgoing) {
        connect_next(link);
    } else {
        trib_call_connector(link);
    }
}

/* ---- The deadline ---- */

/* The coordinator watches all members, so while this process hears it the peer is there or its loss will be told. The
 * way to the peer may have become narrow, so that a handshake takes long. A control link has nobody else to ask. */
static bool peer_lives(const trib_link *link, int64_t now_ns)
{
    const int64_t heard_ns = atomic_load(&link->host->engine->coordinator_heard_ns);
    return link->purpose != TRIB_PURPOSE_CONTROL && link->session.is_established && heard_ns > 0 &&
           now_ns - heard_ns < trib_session_peer_timeout(link->host);
}

static void deadline_passed(trib_link *link)
{
    const int64_t timeout_ns = trib_session_peer_timeout(link->host);
    if (link->redial.extensions < EXTENSIONS && peer_lives(link, trib_now(link->host->reactor))) {
        link->redial.extensions++;
        link->host->engine->hooks->member_doubted(link->host->engine, link->peer);
        trib_link_limit(link, timeout_ns / 4, deadline_passed);
        return;
    }
    char text[TRIB_REASON_MAX];
    snprintf(text, sizeof text, "the connection broke and was not made again in time: %s", link->redial.reason);
    trib_link_close(link, false, TRIB_PEER_LOST, text);
}

/* The peer timeout begins with the break. If nothing told of the break, it was noticed some time later. While this
 * process stands still it tries nothing, so that this time does not count. */
static void arm_deadline(trib_link *link)
{
    const int64_t now_ns = trib_now(link->host->reactor), timeout_ns = trib_session_peer_timeout(link->host);
    const int64_t silent_ns = now_ns - link->last_received_ns;
    const int64_t passed_ns = silent_ns < 0 ? 0 : silent_ns < timeout_ns / 8 ? silent_ns : timeout_ns / 8;
    link->redial.extensions = 0;
    trib_link_limit(link, timeout_ns - passed_ns, deadline_passed);
}

/* ---- A connection has ended ---- */

bool trib_redial_may_go_on(const trib_link *link, trib_status status)
{
    const bool is_over =
        (link->host->is_closed && !link->leaving) || link->bye || link->has_farewell || !is_loss(status);
    return !is_over && is_repeated(link);
}

static void note_reason(trib_link *link, const char *reason)
{
    trib_link_redial *redial = &link->redial;
    snprintf(redial->reason, sizeof redial->reason, "%s", redial->is_damaged ? "a message was damaged" : reason);
    redial->is_damaged = false;
}

/* Notes the end of an attempt. Returns false if nobody can be there any more. */
static bool note_attempt(trib_link *link, bool refused, const char *reason)
{
    trib_link_redial *redial = &link->redial;
    redial->refused = refused ? redial->refused + 1 : 0;
    redial->address = (redial->address + 1) % trib_redial_addresses(link);
    note_reason(link, redial->is_late ? "no answer" : reason);
    return redial->refused < trib_redial_addresses(link);
}

static void note_break(trib_link *link, const trib_conn *conn, const char *reason)
{
    trib_link_redial *redial = &link->redial;
    redial->tries = redial->refused = 0;
    note_reason(link, reason);
    /* Workers end what they have to a server that is about to go. */
    const bool is_expected = atomic_load(&link->host->engine->losses.drains);
    trib_log(link->host->reactor->logger, is_expected ? TRIB_LOG_INFO : TRIB_LOG_WARN,
             "the connection %s %s broke (%s): it is made again", link->outgoing ? "to" : "from", conn->remote.text,
             redial->reason);
    trib_egress_stop_waiting(link);
    arm_deadline(link);
}

bool trib_redial_connection_lost(trib_link *link, const trib_conn *conn, trib_status status, const char *reason)
{
    const bool was_ready = link->state == TRIB_LINK_READY || link->state == TRIB_LINK_LEAVING;
    if (!trib_redial_may_go_on(link, status)) {
        return false;
    }
    if (!was_ready && !note_attempt(link, conn->refused, reason)) {
        return false;
    }
    link->conn = NULL;
    link->asks_again = false;
    if (link->state != TRIB_LINK_RECONNECTING) {
        trib_link_set_state(link, TRIB_LINK_RECONNECTING);
    }
    if (was_ready) {
        note_break(link, conn, reason);
    }
    if (link->redial.successor != NULL) {
        trib_redial_arm(link, 0);
    } else if (!link->outgoing) {
        trib_redial_arm(link, CALL_NS);
    } else {
        trib_redial_arm(link, was_ready ? 0 : trib_redial_wait(link));
    }
    return true;
}

/* ---- Another connection is there ---- */

/* The link carries frames over its new connection. A call that is still on its way would break that one. */
static void go_on(trib_link *link, uint64_t received)
{
    trib_assert(link->conn != NULL && link->session.is_established);
    trib_link_host *host = link->host;
    trib_timer_stop(host->reactor, &link->deadline);
    trib_timer_stop(host->reactor, &link->redial.timer);
    trib_call_stop(link);
    trib_log(host->reactor->logger, TRIB_LOG_INFO, "the connection %s %s is made again", link->outgoing ? "to" : "from",
             link->conn->remote.text);
    trib_counter_add(&host->stats->reconnections, 1);
    trib_link_set_state(link, link->leaving ? TRIB_LINK_LEAVING : TRIB_LINK_READY);
    trib_session_resend(link, received);
    if (link->state == TRIB_LINK_READY) {
        trib_scheduler_resumed(link);
    }
}

trib_status trib_redial_succeeded(trib_link *link, uint64_t received, trib_error *error)
{
    if (!trib_session_may_resume(link, received)) {
        return trib_error_set(error, TRIB_PROTOCOL, "the peer counts frames that were not sent, or has forgotten some");
    }
    go_on(link, received);
    return TRIB_OK;
}

/* Takes a link and its successor apart, and returns the successor. */
static trib_link *take_successor(trib_link *link)
{
    trib_link *successor = link->redial.successor;
    trib_assert(successor != link && successor->redial.resumes == link);
    link->redial.successor = successor->redial.resumes = NULL;
    return successor;
}

/* Takes over the connection of the successor, which has proved the token. */
static void adopt(trib_link *link)
{
    trib_link *successor = take_successor(link);
    trib_assert(link->conn == NULL && link->state == TRIB_LINK_RECONNECTING);
    trib_assert(successor->proved && successor->session.id == link->session.id);
    const uint64_t received = successor->handshake.received;
    link->handshake = successor->handshake;
    link->conn = successor->conn;
    link->conn->user = link;
    link->conn->urgent = link->purpose == TRIB_PURPOSE_PRIORITY;
    link->busy_seen_ns = 0;
    successor->conn = NULL;
    trib_link_free(successor);
    link->last_received_ns = trib_now(link->host->reactor);
    trib_link_handshake_welcome(link);
    if (link->state != TRIB_LINK_CLOSING) { /* else memory has run out */
        go_on(link, received);
    }
}

/* The link of that session, which does not close. */
static trib_link *find_session(const trib_link *candidate, bool outgoing)
{
    trib_link *link = NULL;
    HASH_FIND(hh, candidate->host->sessions[outgoing], &candidate->session.id, sizeof candidate->session.id, link);
    trib_assert(link == NULL || (link != candidate && link->outgoing == outgoing && link->state != TRIB_LINK_CLOSING));
    return link;
}

/* The peer has lost the connection of a link that this side made. */
static trib_resume_answer take_call(const trib_link *candidate)
{
    trib_link *link = find_session(candidate, true);
    if (link == NULL || link->peer_reactor != candidate->handshake.reactor) {
        return TRIB_RESUME_GONE;
    }
    const bool is_broken = link->handshake.attempt == candidate->handshake.attempt &&
                           (link->state == TRIB_LINK_READY || link->state == TRIB_LINK_LEAVING);
    if (is_broken && link->conn != NULL) {
        link->conn->transport->ops->conn_close(link->conn, false);
    } else if (link->state == TRIB_LINK_RECONNECTING && link->conn == NULL) {
        trib_redial_arm(link, 0);
    }
    return TRIB_RESUME_CALLED;
}

trib_resume_answer trib_redial_take(trib_link *candidate)
{
    const trib_handshake *handshake = &candidate->handshake;
    candidate->session.id = handshake->session;
    if (handshake->purpose == TRIB_PURPOSE_CALL) {
        return take_call(candidate);
    }
    trib_link *link = find_session(candidate, false);
    if (link == NULL) {
        return (handshake->attempt & 1) != 0 ? TRIB_RESUME_GONE : TRIB_RESUME_NEW;
    }
    if (handshake->purpose != (uint32_t)link->purpose || handshake->reactor != link->peer_reactor ||
        handshake->attempt >> 1 <= link->handshake.attempt >> 1 ||
        !trib_session_may_resume(link, handshake->received) || !link->session.is_kept) {
        return TRIB_RESUME_STALE;
    }
    if (link->redial.successor != NULL) {
        trib_link_close(take_successor(link), false, TRIB_CLOSED, "the peer made a newer connection");
    }
    trib_assert(candidate->redial.resumes == NULL && candidate->redial.successor == NULL);
    link->redial.successor = candidate;
    candidate->redial.resumes = link;
    trib_link_handshake_note_proved(candidate);
    if (link->conn != NULL) {
        link->conn->transport->ops->conn_close(link->conn, false); /* its end comes, and then the successor's turn */
    } else {
        trib_redial_arm(link, 0);
    }
    return TRIB_RESUME_TAKEN;
}

void trib_redial_sent(const trib_link *candidate)
{
    trib_link *link = candidate->redial.resumes;
    if (link != NULL && link->conn == NULL && candidate->in_flight == 0) {
        trib_redial_arm(link, 0);
    }
}

/* ---- Life ---- */

void trib_redial_open(trib_link *link)
{
    link->redial.timer.fired = timer_fired;
    link->redial.timer.user = link;
}

bool trib_redial_note_session(trib_link *link)
{
    trib_link **head = &link->host->sessions[link->outgoing];
    if (link->session.id == 0 || link->purpose == TRIB_PURPOSE_CALL) {
        return true;
    }
    trib_assert(link->hh.tbl == NULL && link->state != TRIB_LINK_CLOSING);
    HASH_ADD(hh, *head, session.id, sizeof link->session.id, link);
    return link->hh.tbl != NULL;
}

void trib_redial_forget(trib_link *link)
{
    if (link->hh.tbl != NULL) {
        HASH_DEL(link->host->sessions[link->outgoing], link);
        link->hh.tbl = NULL;
    }
}

void trib_redial_close(trib_link *link)
{
    trib_link_redial *redial = &link->redial;
    trib_timer_stop(link->host->reactor, &redial->timer);
    trib_call_stop(link);
    if (redial->resumes != NULL) {
        (void)take_successor(redial->resumes);
    }
    if (redial->successor != NULL) {
        trib_link_close(take_successor(link), false, TRIB_CLOSED, "the link has ended");
    }
}
