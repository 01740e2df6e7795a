/*
 * link_handshake.c - HELLO, CHALLENGE, PROOF, WELCOME; auth.h explains what they prove.
 *
 * During the handshake only the frame type that the state expects is accepted, with its exact payload size, into a
 * fixed buffer.
 */
#include "engine/link/link_handshake.h"

#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_reconnect.h"
#include "engine/base/half_open.h"

/* The frame that each state waits for. */
static const struct {
    trib_frame_type expected;
    uint32_t payload_size;
} states[TRIB_LINK_READY] = {
    [TRIB_LINK_CONNECTING] = {TRIB_FRAME_NONE, 0},
    [TRIB_LINK_AWAIT_CHALLENGE] = {TRIB_FRAME_CHALLENGE, TRIB_NONCE_SIZE},
    [TRIB_LINK_AWAIT_WELCOME] = {TRIB_FRAME_WELCOME, TRIB_WELCOME_SIZE},
    [TRIB_LINK_AWAIT_HELLO] = {TRIB_FRAME_HELLO, TRIB_HELLO_SIZE},
    [TRIB_LINK_AWAIT_PROOF] = {TRIB_FRAME_PROOF, TRIB_PROOF_SIZE},
};

/* A process that was suspended finds the peer's answer unread when it goes on. So the limit is counted in parts, and
 * one late part does not count. A second one in a row does: a loop that is always late must not wait for ever. */
#define PARTS 8

static void arm_part(trib_link *link)
{
    trib_timer_arm(link->host->reactor, &link->deadline, trib_now(link->host->reactor) + link->part_ns);
}

static void part_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_link *link = timer->user;
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, link->part_ns / 2);
    link->parts_passed += !stalled_locally || link->stalled_locally;
    link->stalled_locally = stalled_locally;
    if (link->parts_passed < PARTS) {
        arm_part(link);
    } else {
        link->overdue(link);
    }
}

void trib_link_limit(trib_link *link, int64_t limit_ns, void (*overdue)(trib_link *link))
{
    link->part_ns = limit_ns / PARTS;
    link->parts_passed = 0;
    link->stalled_locally = false;
    link->overdue = overdue;
    link->deadline.fired = part_passed;
    link->deadline.user = link;
    arm_part(link);
}

void trib_link_handshake_limit(trib_link *link, void (*overdue)(trib_link *link))
{
    trib_link_limit(link, TRIB_HANDSHAKE_TIMEOUT_NS, overdue);
}

static void handshake_is_overdue(trib_link *link)
{
    trib_link_close(link, false, TRIB_TIMEOUT,
                    link->state == TRIB_LINK_CONNECTING ? "no connection within 10 s" : "no handshake within 10 s");
}

void trib_link_handshake_arm(trib_link *link)
{
    trib_link_handshake_limit(link, handshake_is_overdue);
}

static void send_handshake(trib_link *link, trib_frame_type type, const void *payload, size_t size)
{
    trib_link_send_copy(link, (trib_frame){.type = type}, payload, size);
}

void trib_link_handshake_begin(trib_link *link)
{
    trib_handshake *handshake = &link->handshake;
    trib_link_host *host = link->host;
    host->reactor->ops->random(host->reactor, handshake->connector_nonce, TRIB_NONCE_SIZE);
    handshake->purpose = link->purpose;
    handshake->member = host->engine->member_id;
    handshake->reactor = host->reactor->index;
    handshake->attempt = trib_redial_attempt(link);
    handshake->session = link->session.id;
    handshake->received = link->session.received;
    unsigned char hello[TRIB_HELLO_SIZE];
    trib_auth_put_hello(handshake, hello);
    trib_link_set_state(link, TRIB_LINK_AWAIT_CHALLENGE);
    send_handshake(link, TRIB_FRAME_HELLO, hello, sizeof hello);
}

/* True for the answer to a wrong proof. */
static bool is_rejection(const trib_frame *frame)
{
    return frame->type == TRIB_FRAME_BYE && frame->payload_size == 0 && frame->aux == (uint32_t)TRIB_UNAUTHORIZED;
}

trib_status trib_link_handshake_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                       trib_error *error)
{
    trib_assert(link->state < TRIB_LINK_READY);
    if (link->state == TRIB_LINK_AWAIT_WELCOME && is_rejection(frame)) {
        return trib_error_set(
            error, TRIB_UNAUTHORIZED,
            "%s has another token or job name: give every member the same TRIB_TOKEN (or TRIB_TOKEN_FILE) "
            "and TRIB_JOB",
            link->conn->remote.text);
    }
    if (frame->type != states[link->state].expected || frame->payload_size != states[link->state].payload_size) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame during the handshake",
                              trib_frame_name(frame->type));
    }
    trib_assert(frame->payload_size <= sizeof link->scratch);
    target->buffer = link->scratch;
    return TRIB_OK;
}

trib_status trib_link_handshake_check_epoch(trib_link *link, const trib_frame *frame, trib_error *error)
{
    if (link->state != TRIB_LINK_AWAIT_PROOF) {
        return TRIB_OK;
    }
    link->peer_epoch = frame->epoch;
    const bool is_control = link->handshake.purpose == TRIB_PURPOSE_CONTROL;
    const bool has_roster = trib_epoch_number(frame->epoch) != 0 && trib_epoch_incarnation(frame->epoch) != 0;
    return is_control || has_roster
               ? TRIB_OK
               : trib_error_set(error, TRIB_PROTOCOL, "a process without the roster of this job claims to be member %u",
                                link->handshake.member);
}

static void note_conn_proved(trib_link *link)
{
    link->conn->proved = true;
    link->conn->patient = link->purpose == TRIB_PURPOSE_CONTROL; /* nobody else tells that its peer lives */
}

static void note_proved(trib_link *link)
{
    trib_link_handshake_note_proved(link);
    note_conn_proved(link);
}

static void become_ready(trib_link *link)
{
    if (link->state == TRIB_LINK_CLOSING) {
        return; /* the last message found no memory */
    }
    trib_assert(!link->session.is_established && link->conn != NULL);
    trib_timer_stop(link->host->reactor, &link->deadline);
    trib_timer_stop(link->host->reactor, &link->redial.timer);
    trib_link_set_state(link, TRIB_LINK_READY);
    note_proved(link);
    trib_session_establish(link);
    link->upcalls->ready(link);
}

static void send_welcome(trib_link *link, uint64_t received)
{
    unsigned char welcome[TRIB_WELCOME_SIZE];
    trib_assert(!link->outgoing && link->conn != NULL);
    trib_auth_prove(link->host->engine->key, &link->handshake, false, welcome);
    trib_writer writer = {.data = welcome + TRIB_PROOF_SIZE, .capacity = sizeof welcome - TRIB_PROOF_SIZE};
    trib_put_u64(&writer, received);
    send_handshake(link, TRIB_FRAME_WELCOME, welcome, sizeof welcome);
}

void trib_link_handshake_welcome(trib_link *link)
{
    send_welcome(link, link->session.received);
}

/* The process at the address is not the one that the link was made to, or has ended the link. */
static trib_status take_gone(trib_link *link)
{
    link->has_farewell = link->purpose == TRIB_PURPOSE_CALL;
    trib_link_close(link, false, TRIB_PEER_LOST, "another process answers at its address, or it has ended the link");
    return TRIB_OK;
}

static trib_status take_welcome(trib_link *link, const unsigned char *payload, trib_error *error)
{
    trib_reader reader = {.data = payload + TRIB_PROOF_SIZE, .left = TRIB_WELCOME_SIZE - TRIB_PROOF_SIZE};
    const uint64_t received = trib_get_u64(&reader);
    if (!trib_auth_verify(link->host->engine->key, &link->handshake, false, payload)) {
        return trib_error_set(error, TRIB_UNAUTHORIZED,
                              "%s let this process in without a proof of the token: it is no member of the job",
                              link->conn->remote.text);
    }
    note_conn_proved(link);
    if (received == TRIB_NO_SESSION) {
        return take_gone(link);
    }
    if (link->session.is_established) {
        return trib_redial_succeeded(link, received, error);
    }
    if (received != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "the peer counts frames of a session that only begins");
    }
    become_ready(link);
    return TRIB_OK;
}

static trib_status send_gone(trib_link *link)
{
    note_proved(link);
    send_welcome(link, TRIB_NO_SESSION);
    trib_link_close(link, true, TRIB_PEER_LOST, "there is no such session");
    return TRIB_OK;
}

/* Answers a connector that has proved the token. */
static trib_status welcome_new(trib_link *link, trib_error *error)
{
    const bool is_second = link->purpose == TRIB_PURPOSE_PRIORITY || link->purpose == TRIB_PURPOSE_SUBFLOW;
    if (link->host->is_closed || (is_second && trib_link_find_main(link) == NULL)) {
        /* rejected, but not logged as half-open: the main link may have just ended */
        note_proved(link);
        return trib_error_set(error, TRIB_PROTOCOL, "a second connection of a link that is not there, or a third");
    }
    trib_link_handshake_welcome(link);
    become_ready(link);
    return TRIB_OK;
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
void trib_link_handshake_reject(trib_link *link, trib_status status, const char *reason)
{
    trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_BYE, .aux = (uint32_t)status}, NULL, 0);
    trib_link_close(link, true, status, reason);
}

static trib_status take_hello(trib_link *link, const unsigned char *payload)
{
    trib_handshake *handshake = &link->handshake;
    trib_auth_get_hello(payload, handshake);
    link->host->reactor->ops->random(link->host->reactor, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    trib_link_set_state(link, TRIB_LINK_AWAIT_PROOF);
    send_handshake(link, TRIB_FRAME_CHALLENGE, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    return TRIB_OK;
}

static trib_status take_challenge(trib_link *link, const unsigned char *payload)
{
    trib_handshake *handshake = &link->handshake;
    trib_assert(link->outgoing && link->state == TRIB_LINK_AWAIT_CHALLENGE);
    memcpy(handshake->acceptor_nonce, payload, TRIB_NONCE_SIZE);
    unsigned char proof[TRIB_PROOF_SIZE];
    trib_auth_prove(link->host->engine->key, handshake, true, proof);
    trib_link_set_state(link, TRIB_LINK_AWAIT_WELCOME);
    send_handshake(link, TRIB_FRAME_PROOF, proof, sizeof proof);
    return TRIB_OK;
}

static trib_status take_proof(trib_link *link, const unsigned char *payload, trib_error *error)
{
    trib_handshake *handshake = &link->handshake;
    trib_assert(!link->outgoing && link->state == TRIB_LINK_AWAIT_PROOF);
    if (!trib_auth_verify(link->host->engine->key, handshake, true, payload)) {
        trib_error_set(error, TRIB_UNAUTHORIZED, "the peer could not prove the token of job \"%s\"",
                       link->host->engine->job);
        trib_link_handshake_reject(link, TRIB_UNAUTHORIZED, error->text);
        return TRIB_OK;
    }
    if (handshake->purpose < TRIB_PURPOSE_CONTROL || handshake->purpose > TRIB_PURPOSE_CALL) {
        return trib_error_set(error, TRIB_PROTOCOL, "unknown purpose %u", handshake->purpose);
    }
    link->purpose = (trib_purpose)handshake->purpose;
    link->peer = handshake->member;
    link->peer_reactor = handshake->reactor;
    switch (trib_redial_take(link)) {
    case TRIB_RESUME_NEW:
    case TRIB_RESUME_CALLED:
        return welcome_new(link, error);
    case TRIB_RESUME_TAKEN:
        note_conn_proved(link);
        return TRIB_OK; /* WELCOME follows when the link has taken the connection over */
    case TRIB_RESUME_GONE:
        return send_gone(link);
    case TRIB_RESUME_STALE:
        note_proved(link);
        return trib_error_set(error, TRIB_PROTOCOL, "an outdated attempt to connect again");
    }
    trib_unreachable();
}

trib_status trib_link_handshake_received(trib_link *link, const trib_frame *frame, const void *payload,
                                         trib_error *error)
{
    switch (frame->type) {
    case TRIB_FRAME_HELLO:
        return take_hello(link, payload);
    case TRIB_FRAME_CHALLENGE:
        return take_challenge(link, payload);
    case TRIB_FRAME_PROOF:
        return take_proof(link, payload, error);
    case TRIB_FRAME_WELCOME:
        return take_welcome(link, payload, error);
    default:
        trib_unreachable();
    }
}

bool trib_link_handshake_may_send(const trib_link *link)
{
    return link->state == TRIB_LINK_READY || (link->session.is_kept && trib_link_is_up(link)) ||
           (link->state == TRIB_LINK_AWAIT_WELCOME && link->purpose == TRIB_PURPOSE_DATA);
}

uint32_t trib_link_handshake_at_once(const struct trib_engine *engine)
{
    const uint32_t members = (uint32_t)(atomic_load(&engine->worker_count) + atomic_load(&engine->server_count));
    uint32_t networks = 1;
    for (const char *at = engine->listen_host; at != NULL && (at = strchr(at, ',')) != NULL; at++) {
        networks += networks <= TRIB_SUBFLOWS_MAX;
    }
    return (networks > 1 ? networks : 2) * members * engine->core_count;
}

/* Returns the number of half-open links that this reactor keeps: its part of what the process can spare, plus room for
 * all members at once. */
static uint32_t most_unproved(const trib_link_host *host)
{
    const struct trib_engine *engine = host->engine;
    return trib_half_open_most(engine->env.half_open_max) / engine->core_count + trib_link_handshake_at_once(engine);
}

void trib_link_handshake_note_half_open(trib_link *link)
{
    trib_assert(link->conn != NULL && !link->outgoing && !link->proved && !link->is_half_open);
    DL_PREPEND2(link->host->half_open, link, previous_half_open, next_half_open);
    link->is_half_open = true;
    link->host->half_open_count++;
}

void trib_link_handshake_forget_half_open(trib_link *link)
{
    if (link->is_half_open) {
        trib_assert(link->host->half_open_count > 0);
        DL_DELETE2(link->host->half_open, link, previous_half_open, next_half_open);
        link->is_half_open = false;
        link->host->half_open_count--;
    }
}

void trib_link_handshake_note_proved(trib_link *link)
{
    trib_link_handshake_forget_half_open(link);
    link->proved = true;
}

/* A link that flushes holds its descriptor until the peer has read, so it stays half-open. One that is dropped ends
 * within the turn. */
void trib_link_handshake_make_room(trib_link_host *host)
{
    if (host->half_open_count >= most_unproved(host)) {
        trib_assert(host->half_open != NULL); /* a reactor keeps room for all members */
        trib_link_close(host->half_open->previous_half_open, false, TRIB_TIMEOUT,
                        "too many others have come and not proved the token");
    }
}

bool trib_link_handshake_send_away(trib_link_host *host)
{
    const bool some = host->half_open != NULL;
    while (host->half_open != NULL) {
        trib_link_close(host->half_open, false, TRIB_TIMEOUT,
                        "nobody else can be let in, and it has not proved the token");
    }
    return some;
}

void trib_link_handshake_stop(trib_link_host *host)
{
    trib_assert(host->is_closed);
    for (trib_link *link = host->links, *next; link != NULL; link = next) {
        next = link->next;
        if (link->state == TRIB_LINK_AWAIT_HELLO || link->state == TRIB_LINK_AWAIT_PROOF) {
            trib_link_handshake_note_proved(link); /* no line about a stranger */
            trib_link_close(link, false, TRIB_CLOSED, "this member's job is over");
        }
    }
}

/* A load balancer asks every few seconds whether the port answers: it connects and closes, or sends an HTTP request.
 * Its first visit is worth a line at a level that is rarely on. */
static void note_probe(trib_link_host *host, const trib_conn *conn)
{
    if (!host->is_probed) {
        host->is_probed = true;
        trib_log(host->reactor->logger, TRIB_LOG_INFO,
                 "%s probes this port: it sent no frame, or an HTTP request; further probes are counted only",
                 conn->remote.text);
    }
}

void trib_link_handshake_refused(trib_link *link, trib_conn *conn)
{
    trib_counter_add(&link->host->stats->peers_refused, 1);
    if (link->state == TRIB_LINK_AWAIT_HELLO && (link->is_http || link->end.status == TRIB_PEER_LOST)) {
        note_probe(link->host, conn);
        return;
    }
    if (link->state == TRIB_LINK_AWAIT_PROOF && link->end.status == TRIB_PEER_LOST) {
        char reason[TRIB_REASON_MAX];
        snprintf(reason, sizeof reason, "%.120s; it said that it is member %u, for purpose %u", link->end.detail,
                 link->handshake.member, link->handshake.purpose);
        trib_link_note_refused(link->host, TRIB_REFUSAL_GONE, conn->remote.text, reason);
        return;
    }
    const bool is_token = link->end.status == TRIB_UNAUTHORIZED;
    trib_link_note_refused(link->host, is_token ? TRIB_REFUSAL_TOKEN : TRIB_REFUSAL_STRANGER, conn->remote.text,
                           link->end.detail);
}
