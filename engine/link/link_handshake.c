/*
 * link_handshake.c - HELLO, CHALLENGE, PROOF, WELCOME; auth.h explains what they prove.
 *
 * During the handshake only the frame type that the state expects is accepted, with its exact payload size, into a
 * fixed buffer.
 */
#include "engine/link/link_handshake.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_priority.h"
#include "engine/base/half_open.h"

#define REFUSED_LINES_MAX 20u /* of each reactor in REFUSED_LINES_NS, so that a port scan cannot fill a disk */
#define REFUSED_LINES_NS (60 * INT64_C(1000000000))
#define HELLO_SIZE (TRIB_NONCE_SIZE + 12u)

/* The frame that each state waits for. */
static const struct {
    trib_frame_type expected;
    uint32_t payload_size;
} states[TRIB_LINK_READY] = {
    [TRIB_LINK_CONNECTING] = {TRIB_FRAME_NONE, 0},
    [TRIB_LINK_AWAIT_CHALLENGE] = {TRIB_FRAME_CHALLENGE, TRIB_NONCE_SIZE + TRIB_PROOF_SIZE},
    [TRIB_LINK_AWAIT_WELCOME] = {TRIB_FRAME_WELCOME, 0},
    [TRIB_LINK_AWAIT_HELLO] = {TRIB_FRAME_HELLO, HELLO_SIZE},
    [TRIB_LINK_AWAIT_PROOF] = {TRIB_FRAME_PROOF, TRIB_PROOF_SIZE},
};

static void deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_link *link = timer->user;
    trib_link_close(link, false, TRIB_TIMEOUT,
                    link->state == TRIB_LINK_CONNECTING ? "no connection within 10 s" : "no handshake within 10 s");
}

void trib_link_handshake_arm(trib_link *link)
{
    link->deadline.fired = deadline_passed;
    link->deadline.user = link;
    trib_timer_arm(link->host->reactor, &link->deadline, trib_now(link->host->reactor) + TRIB_HANDSHAKE_TIMEOUT_NS);
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
    unsigned char hello[HELLO_SIZE];
    trib_writer writer = {.data = hello, .capacity = sizeof hello};
    trib_put_u32(&writer, handshake->purpose);
    trib_put_u32(&writer, handshake->member);
    trib_put_u32(&writer, handshake->reactor);
    memcpy(hello + writer.size, handshake->connector_nonce, TRIB_NONCE_SIZE);
    trib_link_set_state(link, TRIB_LINK_AWAIT_CHALLENGE);
    send_handshake(link, TRIB_FRAME_HELLO, hello, sizeof hello);
}

trib_status trib_link_handshake_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                       trib_error *error)
{
    trib_assert(link->state < TRIB_LINK_READY);
    if (frame->type != states[link->state].expected || frame->payload_size != states[link->state].payload_size) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame during the handshake",
                              trib_frame_name(frame->type));
    }
    trib_assert(frame->payload_size <= sizeof link->scratch);
    target->buffer = link->scratch;
    return TRIB_OK;
}

static void become_ready(trib_link *link)
{
    if (link->state == TRIB_LINK_CLOSING) {
        return; /* the last message found no memory */
    }
    trib_timer_stop(link->host->reactor, &link->deadline);
    trib_link_set_state(link, TRIB_LINK_READY);
    link->proved = true;
    /* A control link does not survive the loss of its path. Until the job runs, a rank becomes free as soon as its link
     * has gone. */
    link->conn->survives_path_loss = link->purpose != TRIB_PURPOSE_CONTROL;
    link->upcalls->ready(link);
}

static trib_status take_hello(trib_link *link, const unsigned char *payload)
{
    trib_handshake *handshake = &link->handshake;
    trib_reader reader = {.data = payload, .left = HELLO_SIZE};
    handshake->purpose = trib_get_u32(&reader);
    handshake->member = trib_get_u32(&reader);
    handshake->reactor = trib_get_u32(&reader);
    memcpy(handshake->connector_nonce, reader.data, TRIB_NONCE_SIZE);
    link->host->reactor->ops->random(link->host->reactor, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    unsigned char challenge[TRIB_NONCE_SIZE + TRIB_PROOF_SIZE];
    memcpy(challenge, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    trib_auth_prove(link->host->engine->key, handshake, false, challenge + TRIB_NONCE_SIZE);
    trib_link_set_state(link, TRIB_LINK_AWAIT_PROOF);
    send_handshake(link, TRIB_FRAME_CHALLENGE, challenge, sizeof challenge);
    return TRIB_OK;
}

static trib_status take_challenge(trib_link *link, const unsigned char *payload, trib_error *error)
{
    trib_handshake *handshake = &link->handshake;
    memcpy(handshake->acceptor_nonce, payload, TRIB_NONCE_SIZE);
    if (!trib_auth_verify(link->host->engine->key, handshake, false, payload + TRIB_NONCE_SIZE)) {
        return trib_error_set(
            error, TRIB_UNAUTHORIZED,
            "%s has another token or job name: give every member the same TRIB_TOKEN (or TRIB_TOKEN_FILE) "
            "and TRIB_JOB",
            link->conn->remote.text);
    }
    unsigned char proof[TRIB_PROOF_SIZE];
    trib_auth_prove(link->host->engine->key, handshake, true, proof);
    trib_link_set_state(link, TRIB_LINK_AWAIT_WELCOME);
    send_handshake(link, TRIB_FRAME_PROOF, proof, sizeof proof);
    return TRIB_OK;
}

static trib_status take_proof(trib_link *link, const unsigned char *payload, trib_error *error)
{
    trib_handshake *handshake = &link->handshake;
    if (!trib_auth_verify(link->host->engine->key, handshake, true, payload)) {
        return trib_error_set(error, TRIB_UNAUTHORIZED, "the peer could not prove the token of job \"%s\"",
                              link->host->engine->job);
    }
    if (handshake->purpose < TRIB_PURPOSE_CONTROL || handshake->purpose > TRIB_PURPOSE_SUBFLOW) {
        return trib_error_set(error, TRIB_PROTOCOL, "unknown purpose %u", handshake->purpose);
    }
    link->purpose = (trib_purpose)handshake->purpose;
    link->peer = handshake->member;
    link->peer_reactor = handshake->reactor;
    const bool is_second = link->purpose == TRIB_PURPOSE_PRIORITY || link->purpose == TRIB_PURPOSE_SUBFLOW;
    if (is_second && trib_link_find_main(link) == NULL) {
        link->proved = true; /* rejected, but not logged as half-open: the main link may have just ended */
        return trib_error_set(error, TRIB_PROTOCOL, "a second connection of a link that is not there, or a third");
    }
    send_handshake(link, TRIB_FRAME_WELCOME, NULL, 0);
    become_ready(link);
    return TRIB_OK;
}

trib_status trib_link_handshake_received(trib_link *link, const trib_frame *frame, const void *payload,
                                         trib_error *error)
{
    switch (frame->type) {
    case TRIB_FRAME_HELLO:
        return take_hello(link, payload);
    case TRIB_FRAME_CHALLENGE:
        return take_challenge(link, payload, error);
    case TRIB_FRAME_PROOF:
        return take_proof(link, payload, error);
    case TRIB_FRAME_WELCOME:
        become_ready(link);
        return TRIB_OK;
    default:
        trib_unreachable();
    }
}

bool trib_link_handshake_lets_speak(const trib_link *link)
{
    return link->state == TRIB_LINK_READY ||
           (link->state == TRIB_LINK_AWAIT_WELCOME && link->purpose == TRIB_PURPOSE_DATA);
}

uint32_t trib_link_handshake_at_once(const struct trib_engine *engine)
{
    const uint32_t members = (uint32_t)(engine->config.worker_count + engine->config.server_count);
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
    return trib_half_open_max() / host->engine->core_count + trib_link_handshake_at_once(host->engine);
}

static bool is_unproved(const trib_link *link)
{
    return !link->outgoing && (link->state == TRIB_LINK_AWAIT_HELLO || link->state == TRIB_LINK_AWAIT_PROOF);
}

void trib_link_handshake_make_room(trib_link_host *host)
{
    trib_link *oldest = NULL;
    uint32_t count = 0;
    for (trib_link *link = host->links; link != NULL; link = link->next) { /* newest first */
        if (is_unproved(link)) {
            oldest = link;
            count++;
        }
    }
    if (count >= most_unproved(host)) {
        trib_link_close(oldest, false, TRIB_TIMEOUT, "too many others have come and not proved the token");
    }
}

bool trib_link_handshake_send_away(trib_link_host *host)
{
    bool some = false;
    trib_link *next;
    for (trib_link *link = host->links; link != NULL; link = next) {
        next = link->next;
        if (is_unproved(link)) {
            trib_link_close(link, false, TRIB_TIMEOUT, "nobody else can be let in, and it has not proved the token");
            some = true;
        }
    }
    return some;
}

/* A load balancer asks every few seconds whether the port answers: it connects and closes, or sends an HTTP request. Its
 * first visit is worth a line at a level that is rarely on. */
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
    /* A peer that rejects this side's proof closes the connection without a message. */
    const bool went = link->state == TRIB_LINK_AWAIT_PROOF && link->end.status == TRIB_PEER_LOST;
    char text[TRIB_REASON_MAX];
    snprintf(text, sizeof text, "%s: %s%s", conn->remote.text, link->end.detail,
             went ? ", without proving the token (another TRIB_TOKEN or TRIB_JOB?)" : "");
    trib_link_note_refused(link->host, "turned away", text);
}

void trib_link_report_refused(trib_link_host *host, bool now)
{
    if (host->refused_unlogged > 0 && (now || trib_now(host->reactor) - host->refused_since_ns >= REFUSED_LINES_NS)) {
        trib_log(host->reactor->logger, TRIB_LOG_WARN, "turned away %u more, the last one: %s", host->refused_unlogged,
                 host->refused_last);
        host->refused_unlogged = 0;
    }
}

void trib_link_note_refused(trib_link_host *host, const char *what, const char *text)
{
    const int64_t now_ns = trib_now(host->reactor);
    if (host->refused_since_ns == 0 || now_ns - host->refused_since_ns >= REFUSED_LINES_NS) {
        trib_link_report_refused(host, true);
        host->refused_since_ns = now_ns;
        host->refused_logged = 0;
    }
    snprintf(host->refused_last, sizeof host->refused_last, "%s", text);
    if (host->refused_logged < REFUSED_LINES_MAX) {
        host->refused_logged++;
        trib_log(host->reactor->logger, TRIB_LOG_WARN, "%s %s", what, text);
    } else {
        host->refused_unlogged++;
    }
}
