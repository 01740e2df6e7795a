/* link.c - frames over a connection, and the states of a link. The scheduler (scheduler.c) decides what is sent next.
 * The handshake is in link_handshake.c, the end in link_end.c, and the link to this process's own server in
 * link_self.c. */
#include "engine/link/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_host.h"
#include "engine/link/link_arrival.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_checksum.h"
#include "engine/link/link_end.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_reconnect.h"
#include "engine/link/link_session_frame.h"
#include "engine/link/link_handshake.h"
#include "engine/link/link_self.h"
#include "engine/link/link_subflow.h"
#include "engine/link/link_trace.h"

trib_link *trib_link_create(trib_link_host *host, const trib_link_upcalls *upcalls, trib_link_state state)
{
    trib_link *link = trib_link_zalloc(host, sizeof *link);
    if (link == NULL) {
        return NULL;
    }
    link->host = host;
    link->core = host->core;
    link->upcalls = upcalls;
    link->peer = TRIB_NO_MEMBER;
    link->last_received_ns = trib_now(host->reactor);
    link->state = state;
    link->self_post.run = trib_link_end_without_connection;
    trib_session_open(link);
    trib_redial_open(link);
    DL_PREPEND2(host->links, link, previous, next);
    return link;
}

void trib_link_free(trib_link *link)
{
    trib_assert(!trib_link_has_others(link) && link->main == NULL);
    trib_assert(link->session.first == NULL && link->arrival_count == 0);
    trib_assert(link->self_head == NULL);
    trib_redial_close(link);
    trib_redial_forget(link);
    trib_link_handshake_forget_half_open(link);
    trib_timer_stop(link->host->reactor, &link->session.ack);
    trib_timer_stop(link->host->reactor, &link->deadline);
    trib_scheduler_forget(link);
    DL_DELETE2(link->host->links, link, previous, next);
    free(link);
}

/* The states that may precede each state. Bit s stands for state s. */
#define AFTER(state) (1u << TRIB_LINK_##state)
static const uint32_t may_follow[TRIB_LINK_CLOSING + 1] = {
    [TRIB_LINK_CONNECTING] = 0,
    [TRIB_LINK_AWAIT_CHALLENGE] = AFTER(CONNECTING) | AFTER(RECONNECTING),
    [TRIB_LINK_AWAIT_WELCOME] = AFTER(AWAIT_CHALLENGE),
    [TRIB_LINK_AWAIT_HELLO] = 0,
    [TRIB_LINK_AWAIT_PROOF] = AFTER(AWAIT_HELLO),
    [TRIB_LINK_READY] = AFTER(AWAIT_WELCOME) | AFTER(AWAIT_PROOF) | AFTER(RECONNECTING),
    [TRIB_LINK_RECONNECTING] =
        AFTER(CONNECTING) | AFTER(AWAIT_CHALLENGE) | AFTER(AWAIT_WELCOME) | AFTER(READY) | AFTER(LEAVING),
    [TRIB_LINK_LEAVING] = AFTER(READY) | AFTER(AWAIT_WELCOME) | AFTER(RECONNECTING),
    [TRIB_LINK_CLOSING] = AFTER(CONNECTING) | AFTER(AWAIT_CHALLENGE) | AFTER(AWAIT_WELCOME) | AFTER(AWAIT_HELLO) |
                          AFTER(AWAIT_PROOF) | AFTER(READY) | AFTER(RECONNECTING) | AFTER(LEAVING),
};

void trib_link_set_state(trib_link *link, trib_link_state state)
{
    trib_assert(state <= TRIB_LINK_CLOSING && link->state <= TRIB_LINK_CLOSING);
    trib_assert((may_follow[state] & (1u << link->state)) != 0);
    link->state = state;
    if (state == TRIB_LINK_CLOSING) {
        trib_redial_forget(link);
    }
    if (state == TRIB_LINK_READY) {
        trib_trace_link(link->host, TRIB_TRACE_LINK_READY, link, link->purpose);
    }
}

trib_status trib_link_connect(trib_link_host *host, const trib_address *to, trib_purpose purpose, uint32_t peer,
                              uint32_t peer_reactor, const trib_link_upcalls *upcalls, void *user, trib_link **link_out)
{
    trib_link *link = trib_link_create(host, upcalls, TRIB_LINK_CONNECTING);
    if (link == NULL) {
        return TRIB_NO_MEMORY;
    }
    link->outgoing = true;
    link->purpose = purpose;
    link->peer = peer;
    link->peer_reactor = peer_reactor;
    link->user = user;
    link->credit = host->push_credit;
    trib_link_subflow_choose_rail(link, to);
    trib_status status =
        trib_link_carries_data(link) ? trib_egress_join(&host->scheduler.networks[link->rail], link) : TRIB_OK;
    if (status != TRIB_OK) {
        trib_link_free(link);
        return status;
    }
    status = trib_redial_begin(link, to);
    if (status != TRIB_OK) {
        const int number = errno; /* errno gives the reason if the status is TRIB_SYSTEM */
        trib_link_free(link);
        errno = number;
        return status;
    }
    trib_link_handshake_arm(link);
    *link_out = link;
    return TRIB_OK;
}

void trib_link_send_finish(trib_send_record *out, trib_status status)
{
    trib_link *link = out->link;
    trib_link_host *host = link->host;
    trib_assert(!out->is_out);
    trib_assert(status != TRIB_PENDING && host->out_count > 0);
    if (out->done != NULL) {
        out->done(out, status);
    }
    out->next = host->free_outs;
    host->free_outs = out;
}

void trib_link_hand_over(trib_link *link, trib_send_record *out)
{
    trib_assert(!out->is_out && (link->is_self || link->conn != NULL));
    trib_assert(!out->is_counted || out->number < link->session.sent);
    out->is_out = true;
    if (out->takes_credit) {
        trib_link_stats_handed(link);
        trib_scheduler_take_credit(link, TRIB_HEADER_SIZE + out->send.payload_size);
    }
    if (link->is_self) {
        trib_link_self_hand_over(link, out);
    } else {
        link->session.last_sent_ns = trib_now_fast(link->host->reactor);
        link->conn->transport->ops->send(link->conn, &out->send);
    }
}

void trib_link_take_back(trib_link *link, trib_send_record *out)
{
    const uint32_t weight = TRIB_HEADER_SIZE + out->send.payload_size;
    trib_assert(out->is_out);
    out->is_out = false;
    if (out->takes_credit) {
        trib_link_stats_returned(link, weight);
        trib_scheduler_return_credit(link, weight);
    }
}

/* True if a frame of that type can go now. A counted one waits for the next connection otherwise. */
static bool may_send_now(const trib_link *link, const trib_send_record *out)
{
    return link->is_self || (link->conn != NULL && (!out->is_counted || link->state == TRIB_LINK_READY));
}

/* Adds several records to the empty pool. How many are in use depends on when acknowledgements come, so the next peak
 * is often a little higher; it shall not allocate in the middle of a job. Without memory there are fewer, or none. */
static void add_records(trib_link_host *host)
{
    for (uint32_t i = host->out_count / 8 + 4; i > 0; i--) {
        trib_send_record *out = trib_link_zalloc(host, sizeof *out);
        if (out == NULL) {
            return;
        }
        host->out_count++;
        out->next = host->free_outs;
        host->free_outs = out;
    }
}

/* Takes a record from the pool. NULL: out of memory. */
static trib_send_record *take_record(trib_link_host *host)
{
    if (host->free_outs == NULL) {
        add_records(host);
    }
    trib_send_record *out = host->free_outs;
    host->free_outs = out != NULL ? out->next : NULL;
    return out;
}

trib_status trib_link_send_held(trib_link *link, const trib_frame *frame, const void *payload,
                                void (*done)(trib_send_record *, trib_status), void *context, trib_self_lease **held)
{
    trib_link_host *host = link->host;
    const bool is_counted = trib_session_counts(link, frame->type);
    if (link->state == TRIB_LINK_CLOSING || (link->leaving && is_counted) ||
        (!is_counted && !link->is_self && link->conn == NULL)) {
        return TRIB_CLOSED;
    }
    if (is_counted && frame->type != TRIB_FRAME_BYE && trib_link_connections(trib_link_main(link)) > 1) {
        trib_session_acknowledge_others(link);
    }
    trib_send_record *out = take_record(host);
    if (out == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_assert(!out->is_out && frame->payload_size <= trib_frame_payload_max(frame->type));
    out->send.next = NULL;
    out->link = link;
    out->done = done;
    out->context = context;
    out->held = held;
    out->next = NULL;
    trib_frame stamped = *frame;
    stamped.sender = host->engine->member_id;
    stamped.epoch = host->epoch;
    out->is_counted = is_counted;
    out->takes_credit = frame->type != TRIB_FRAME_ACK;
    out->is_out = false;
    const bool goes_now = may_send_now(link, out);
    if (goes_now && link->session.is_kept && frame->type > TRIB_FRAME_WELCOME && frame->acknowledged == 0) {
        stamped.acknowledged = trib_session_put_count(link);
    }
    if (!link->is_self) {
        stamped.crc = trib_link_checksum_of(link, payload, frame->payload_size);
        trib_frame_encode(&stamped, out->send.header);
    } else {
        /* the frame is not encoded, because only this process reads it */
        memcpy(out->send.header, &stamped, sizeof stamped);
    }
    out->send.payload = payload;
    out->send.payload_size = frame->payload_size;
    out->send.user = link;
    trib_counter_add(&host->stats->messages_sent, 1);
    if (is_counted) {
        trib_session_keep(link, out);
    }
    if (goes_now) {
        trib_link_hand_over(link, out);
    }
    return TRIB_OK;
}

trib_status trib_link_send(trib_link *link, const trib_frame *frame, const void *payload,
                           void (*done)(trib_send_record *, trib_status), void *context)
{
    return trib_link_send_held(link, frame, payload, done, context, NULL);
}

static void copy_done(trib_send_record *out, trib_status status)
{
    (void)status;
    free(out->context);
}

/* NOLINTNEXTLINE(misc-no-recursion): it closes without a flush, and only a flush sends */
void trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size)
{
    /* A link that leaves has said BYE, behind which nothing comes, and stays until the peer has that. */
    if (link->state == TRIB_LINK_CLOSING || (link->leaving && trib_session_counts(link, frame.type))) {
        return;
    }
    trib_assert(size <= trib_frame_payload_max(frame.type));
    void *copy = NULL;
    if (size > 0) {
        copy = trib_link_zalloc(link->host, size);
        if (copy == NULL) {
            trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a control message");
            return;
        }
        memcpy(copy, payload, size);
    }
    frame.payload_size = (uint32_t)size;
    trib_status status = trib_link_send(link, &frame, copy, copy_done, copy);
    if (status != TRIB_OK) {
        free(copy);
        trib_link_close(link, false, status, "could not send a control message");
    }
}

/* ---- Upcalls from the transport ---- */

static void transport_accepted(trib_listener *listener, trib_conn *conn)
{
    trib_link_host *host = listener->user;
    trib_link_handshake_make_room(host);
    trib_link *link = trib_link_create(host, host->incoming, TRIB_LINK_AWAIT_HELLO);
    conn->user = link;
    if (link == NULL) {
        conn->transport->ops->conn_close(conn, false);
        return;
    }
    trib_assert(link->main == NULL && !link->outgoing);
    link->conn = conn;
    trib_link_handshake_note_half_open(link);
    link->credit = host->pull_credit;
    if (host->is_closed && !trib_link_host_is_leaving(host)) {
        /* the core closes, or opens again, when this link has gone, too */
        /* no line about a stranger; the transport goes on to bound such connections */
        trib_link_handshake_note_proved(link);
        trib_link_close(link, false, TRIB_CLOSED, "this member's job is over");
        return;
    }
    trib_link_handshake_arm(link);
}

static void transport_connected(trib_conn *conn, trib_status status)
{
    trib_link *link = conn->user;
    if (link != NULL && status == TRIB_OK &&
        (link->state == TRIB_LINK_CONNECTING || link->state == TRIB_LINK_RECONNECTING)) {
        trib_redial_connected(link);
        trib_link_handshake_begin(link);
    }
}

static trib_status refuse_frame(trib_link *link, trib_status status, const trib_error *error)
{
    if (link->state != TRIB_LINK_CLOSING) {
        link->end = trib_cause_note(status, link->host->engine->member_id, error->text);
        link->is_ended = true;
        link->end_from_peer = false;
    }
    return status;
}

static trib_status transport_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE],
                                    trib_recv_target *target)
{
    trib_link *link = conn->user;
    trib_error error;
    trib_error_clear(&error);
    target->buffer = NULL;
    target->payload_size = 0;
    if (link == NULL || link->state == TRIB_LINK_CLOSING || link->redial.is_damaged) {
        return TRIB_CLOSED;
    }
    trib_assert(link->arrival_count < TRIB_AHEAD_MAX);
    if (link->main != NULL && !link->has_received) {
        /* A frame of any type shows that the peer knows the connection to be ready, so requests may use it now. */
        link->has_received = true;
        trib_scheduler_wake(link->main);
    }
    trib_frame frame;
    trib_status status = trib_frame_decode(header, &frame, &error);
    link->is_http = status != TRIB_OK && trib_frame_is_http(header);
    if (status != TRIB_OK && link->state == TRIB_LINK_AWAIT_HELLO && trib_frame_is_foreign(header)) {
        trib_link_handshake_reject(link, TRIB_PROTOCOL, error.text);
        return TRIB_CLOSED;
    }
    if (status == TRIB_OK) {
        target->payload_size = frame.payload_size;
        status = trib_frame_check_epoch(&frame, link->host->epoch, &error);
        if (status != TRIB_OK && link->state == TRIB_LINK_AWAIT_HELLO) {
            /* the BYE's epoch tells a process of an earlier attempt what it is */
            trib_link_handshake_reject(link, TRIB_PROTOCOL, error.text);
            return TRIB_CLOSED;
        }
        status = status == TRIB_OK ? trib_link_handshake_check_epoch(link, &frame, &error) : status;
    }
    if (status == TRIB_OK && frame.acknowledged > 0) {
        status = trib_session_take_count(link, &frame, &error);
        if (link->state == TRIB_LINK_CLOSING) {
            return TRIB_CLOSED; /* the peer has the last frame that the link waited for, or a callback closed it */
        }
    }
    if (status == TRIB_OK) {
        status = trib_link_arrival_begin(link, &frame, target, &error);
    }
    if (status != TRIB_OK && link->arrival_count > 0) {
        link->asks_again = true;
        return TRIB_AGAIN;
    }
    if (status != TRIB_OK && trib_frame_is_damaged(header, link->session.is_established)) {
        status = trib_link_checksum_header(link, &error);
        if (trib_link_damaged(link)) {
            return status; /* the transport ends the connection */
        }
    }
    return status == TRIB_OK || status == TRIB_AGAIN ? status : refuse_frame(link, status, &error);
}

static void transport_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                               uint32_t payload_size)
{
    (void)header;
    trib_link *link = conn->user;
    if (link == NULL || link->state == TRIB_LINK_CLOSING || link->redial.is_damaged) {
        return;
    }
    const trib_arrival *arrival = trib_link_arrival_take(link);
    trib_assert(payload_size == arrival->frame.payload_size);
    trib_assert(link->conn == conn);
    link->last_received_ns = trib_now_fast(link->host->reactor);
    link->last_frame_ns = arrival->frame.type != TRIB_FRAME_ACK ? link->last_received_ns : link->last_frame_ns;
    trib_counter_add(&link->host->stats->messages_received, 1);
    trib_error error;
    trib_error_clear(&error);
    trib_status status = trib_link_checksum_compare(link, &arrival->frame, payload, &error);
    const bool is_sound = status == TRIB_OK;
    if (is_sound) {
        trib_session_received(link, &arrival->frame);
        status = trib_link_arrival_give(link, arrival, payload, &error);
    } else {
        trib_link_arrival_abandon(link, arrival);
    }
    free(arrival->memory);
    if (!is_sound && trib_link_damaged(link)) {
        conn->transport->ops->conn_close(conn, false);
    } else if (status != TRIB_OK) {
        trib_link_close(link, false, status, error.text);
    } else if (link->asks_again && link->state != TRIB_LINK_CLOSING) {
        link->asks_again = false;
        conn->transport->ops->recv_resume(conn);
    }
}

static void transport_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)conn;
    trib_send_record *out = trib_container_of(send, trib_send_record, send);
    trib_link *link = out->link;
    const uint32_t payload_size = send->payload_size;
    out->sent_ns = trib_now_fast(link->host->reactor);
    trib_link_take_back(link, out);
    if (!out->is_counted) {
        trib_link_send_finish(out, status);
    } else if (out->number < link->session.acknowledged) {
        trib_session_release(link);
    }
    trib_redial_sent(link);
    if (status == TRIB_OK) {
        /* After a failure `closed` follows soon, and another send would only fail, too. */
        trib_scheduler_credit_returned(link, payload_size);
    }
}

const trib_transport_upcalls trib_link_transport_upcalls = {
    .accepted = transport_accepted,
    .connected = transport_connected,
    .header = transport_header,
    .received = transport_received,
    .sent = transport_sent,
    .closed = trib_link_transport_closed,
};
