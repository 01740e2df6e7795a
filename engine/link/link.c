/* link.c - frames over a connection, the states of a link, and its end. The scheduler (scheduler.c) decides what is
 * sent next. The handshake is in link_handshake.c, and the link to this process's own server in link_self.c. */
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
#include "engine/link/link_priority.h"
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
    DL_PREPEND2(host->links, link, previous, next);
    return link;
}

void trib_link_free(trib_link *link)
{
    trib_assert(!trib_link_has_others(link));
    trib_timer_stop(link->host->reactor, &link->deadline);
    trib_scheduler_forget(link);
    DL_DELETE2(link->host->links, link, previous, next);
    free(link);
}

/* The states that may precede each state. Bit s stands for state s. */
#define AFTER(state) (1u << TRIB_LINK_##state)
static const uint32_t may_follow[TRIB_LINK_CLOSING + 1] = {
    [TRIB_LINK_CONNECTING] = 0,
    [TRIB_LINK_AWAIT_CHALLENGE] = AFTER(CONNECTING),
    [TRIB_LINK_AWAIT_WELCOME] = AFTER(AWAIT_CHALLENGE),
    [TRIB_LINK_AWAIT_HELLO] = 0,
    [TRIB_LINK_AWAIT_PROOF] = AFTER(AWAIT_HELLO),
    [TRIB_LINK_READY] = AFTER(AWAIT_WELCOME) | AFTER(AWAIT_PROOF),
    [TRIB_LINK_CLOSING] = AFTER(CONNECTING) | AFTER(AWAIT_CHALLENGE) | AFTER(AWAIT_WELCOME) | AFTER(AWAIT_HELLO) |
                          AFTER(AWAIT_PROOF) | AFTER(READY),
};

void trib_link_set_state(trib_link *link, trib_link_state state)
{
    trib_assert((may_follow[state] & (1u << link->state)) != 0);
    link->state = state;
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
    status = host->transport->ops->connect(host->transport, to, link, &link->conn);
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
    uint32_t weight = TRIB_HEADER_SIZE + out->send.payload_size;
    trib_link_stats_returned(link, weight);
    trib_scheduler_return_credit(link, weight);
    if (out->done != NULL) {
        out->done(out, status);
    }
    out->next = host->free_outs;
    host->free_outs = out;
}

trib_status trib_link_send_held(trib_link *link, const trib_frame *frame, const void *payload,
                                void (*done)(trib_send_record *, trib_status), void *context, trib_self_lease **held)
{
    trib_link_host *host = link->host;
    if (link->state == TRIB_LINK_CLOSING) {
        return TRIB_CLOSED;
    }
    trib_send_record *out = host->free_outs;
    if (out != NULL) {
        host->free_outs = out->next;
    } else {
        out = trib_link_zalloc(host, sizeof *out);
        if (out == NULL) {
            return TRIB_NO_MEMORY;
        }
    }
    out->send.next = NULL;
    out->link = link;
    out->done = done;
    out->context = context;
    out->held = held;
    out->next = NULL;
    trib_frame stamped = *frame;
    stamped.sender = host->engine->member_id;
    stamped.epoch = host->epoch;
    if (link->conn != NULL) {
        stamped.crc = trib_link_checksum_of(link, payload, frame->payload_size);
        trib_frame_encode(&stamped, out->send.header);
    } else {
        /* the frame is not encoded, because only this process reads it */
        memcpy(out->send.header, &stamped, sizeof stamped);
    }
    out->send.payload = payload;
    out->send.payload_size = frame->payload_size;
    out->send.user = link;
    trib_link_stats_handed(link);
    trib_scheduler_take_credit(link, TRIB_HEADER_SIZE + frame->payload_size);
    trib_counter_add(&host->stats->messages_sent, 1);
    if (link->conn != NULL) {
        link->conn->transport->ops->send(link->conn, &out->send);
        return TRIB_OK;
    }
    trib_link_self_hand_over(link, out);
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
    if (link->state == TRIB_LINK_CLOSING) {
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

/* No-op if the link is closing already: sending BYE may have ended it for lack of memory. */
static void begin_closing(trib_link *link)
{
    if (link->state != TRIB_LINK_CLOSING) {
        trib_link_set_state(link, TRIB_LINK_CLOSING);
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
static void close_one(trib_link *link, bool flush, const trib_cause *cause)
{
    if (link->state == TRIB_LINK_CLOSING) {
        if (!flush && link->conn != NULL) {
            link->is_dropped = true;
            link->conn->transport->ops->conn_close(link->conn, false);
        }
        return;
    }
    if (flush && trib_link_handshake_lets_speak(link) && link->conn != NULL) {
        const trib_frame bye = {.type = TRIB_FRAME_BYE};
        if (trib_status_is_orderly(cause->status)) {
            trib_link_send_copy(link, bye, NULL, 0);
        } else {
            trib_link_send_cause(link, bye, cause);
        }
    }
    begin_closing(link);
    trib_egress_rest(link);
    link->end = *cause;
    link->is_ended = true;
    link->end_from_peer = false;
    if (link->conn != NULL) {
        link->is_dropped = !flush;
        link->conn->transport->ops->conn_close(link->conn, flush);
    } else {
        trib_reactor_defer(link->host->reactor, &link->self_post);
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
void trib_link_close_for(trib_link *link, bool flush, const trib_cause *cause)
{
    const trib_cause copy = *cause; /* the argument may be the `end` of a link that is closed here */
    /* A second connection that never became ready ends without its main link. */
    if (link->main != NULL && link->state == TRIB_LINK_READY && link->main->state != TRIB_LINK_CLOSING) {
        link = link->main;
    }
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        if (trib_link_connection(link, i) != NULL) {
            close_one(trib_link_connection(link, i), flush, &copy);
        }
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
void trib_link_close(trib_link *link, bool flush, trib_status status, const char *reason)
{
    const trib_cause cause = trib_cause_note(status, link->host->engine->member_id, reason);
    trib_link_close_for(link, flush, &cause);
}

/* ---- Upcalls from the transport ---- */

static void transport_accepted(trib_listener *listener, trib_conn *conn)
{
    trib_link_host *host = listener->user;
    trib_link_handshake_make_room(host);
    trib_link *link = trib_link_create(host, host->incoming, TRIB_LINK_AWAIT_HELLO);
    conn->user = link;
    if (link == NULL || host->is_closed) {
        conn->user = NULL;
        if (link != NULL) {
            trib_link_free(link);
        }
        conn->transport->ops->conn_close(conn, false);
        return;
    }
    link->conn = conn;
    link->credit = host->pull_credit;
    trib_link_handshake_arm(link);
}

static void transport_connected(trib_conn *conn, trib_status status)
{
    trib_link *link = conn->user;
    if (link != NULL && status == TRIB_OK && link->state == TRIB_LINK_CONNECTING) {
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
    if (link == NULL || link->state == TRIB_LINK_CLOSING) {
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
    if (status == TRIB_OK) {
        status = trib_link_arrival_begin(link, &frame, target, &error);
    }
    if (status != TRIB_OK && link->arrival_count > 0) {
        link->asks_again = true;
        return TRIB_AGAIN;
    }
    return status == TRIB_OK || status == TRIB_AGAIN ? status : refuse_frame(link, status, &error);
}

static void transport_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                               uint32_t payload_size)
{
    (void)header;
    trib_link *link = conn->user;
    if (link == NULL || link->state == TRIB_LINK_CLOSING) {
        return;
    }
    const trib_arrival *arrival = trib_link_arrival_take(link);
    trib_assert(payload_size == arrival->frame.payload_size);
    link->last_received_ns = trib_now_fast(link->host->reactor);
    trib_counter_add(&link->host->stats->messages_received, 1);
    trib_error error;
    trib_error_clear(&error);
    trib_status status = trib_link_checksum_compare(link, &arrival->frame, payload, &error);
    if (status == TRIB_OK) {
        status = trib_link_arrival_give(link, arrival, payload, &error);
    } else {
        trib_link_arrival_abandon(link, arrival);
    }
    free(arrival->memory);
    if (status != TRIB_OK) {
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
    trib_link_send_finish(out, status);
    if (status == TRIB_OK) {
        /* After a failure `closed` follows soon, and another send would only fail, too. */
        trib_scheduler_credit_returned(link, send->payload_size);
    }
}

static void finish_closed(trib_link *link)
{
    link->upcalls->closed(link, link->end.status, link->end.detail);
    trib_link_free(link);
}

/* The main connection of the link has gone, while others remain. */
static void main_closed(trib_link *link)
{
    link->conn = NULL;
    for (uint32_t i = 1; i < trib_link_connections(link); i++) {
        trib_link *other = trib_link_connection(link, i);
        if (other == NULL) {
            continue;
        }
        /* An orderly peer ends the other connection by itself, after frames that are still to come. */
        if (other->state != TRIB_LINK_CLOSING && (!link->bye || other->state != TRIB_LINK_READY)) {
            close_one(other, false, &link->end);
        } else if (other->state == TRIB_LINK_READY) {
            trib_link_handshake_arm(other); /* bounds the wait for the peer's end */
        }
    }
}

static void second_closed(trib_link *link, bool was_handshake)
{
    trib_link *main = link->main;
    main->priority_failed = main->priority_failed || (was_handshake && link == main->priority_link);
    const bool over = trib_link_detach_from_main(link);
    if (over) {
        finish_closed(main);
    } else if (main->state != TRIB_LINK_CLOSING && !was_handshake && !link->bye &&
               (link->outgoing || link->has_received)) {
        /* A second connection that ended before the peer knew it to be ready was never used, so the main link lives on.
         * A main link that is closing still has its own last frames to write. */
        trib_link_close_for(main, false, &link->end);
        main->end_from_peer = link->end_from_peer;
    }
    trib_link_free(link);
}

/* Returns the status with which a link ends. A peer may end because the coordinator has left, or because workers
 * disagree. Its BYE may arrive before the coordinator's end does, and the job must end with the same status everywhere.
 * A peer that ends for any other reason counts as lost. */
static trib_status status_of_end(const trib_link *link, trib_status status)
{
    if (link->bye) {
        return TRIB_PEER_LEFT;
    }
    if (link->has_farewell && (link->end.status == TRIB_PEER_LEFT || link->end.status == TRIB_MISMATCH)) {
        return link->end.status;
    }
    return status == TRIB_OK ? TRIB_PEER_LOST : status;
}

static void transport_closed(trib_conn *conn, trib_status status, const char *reason)
{
    trib_link *link = conn->user;
    if (link == NULL) {
        return;
    }
    conn->user = NULL;
    if (!link->is_ended) {
        const trib_status end_status = status_of_end(link, status);
        link->end_from_peer = link->has_farewell;
        if (link->end_from_peer) {
            link->end.status = end_status;
        } else {
            link->end = trib_cause_note(end_status, link->host->engine->member_id, link->bye ? "left" : reason);
        }
        link->is_ended = true;
    }
    trib_link_name_breaker(link, conn);
    trib_trace_link(link->host, TRIB_TRACE_LINK_CLOSED, link, (uint32_t)link->end.status);
    if (!link->proved && !link->outgoing && !link->host->is_closed) {
        trib_link_handshake_refused(link, conn);
    }
    trib_link_host *host = link->host;
    const bool was_handshake = !link->proved, pushed = link->flow.egress != NULL;
    begin_closing(link);
    trib_scheduler_drop_requests(link);
    trib_link_arrivals_abandon(link);
    if (link->main != NULL) {
        second_closed(link, was_handshake);
    } else if (trib_link_has_others(link)) {
        main_closed(link);
    } else {
        finish_closed(link);
    }
    if (pushed) {
        trib_scheduler_link_gone(host);
    }
}

const trib_transport_upcalls trib_link_transport_upcalls = {
    .accepted = transport_accepted,
    .connected = transport_connected,
    .header = transport_header,
    .received = transport_received,
    .sent = transport_sent,
    .closed = transport_closed,
};
