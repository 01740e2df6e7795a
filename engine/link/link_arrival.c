/* link_arrival.c - see link_arrival.h. */
#include "engine/link/link_arrival.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_handshake.h"

/* True if the peer's BYE has come, or is on its way: nothing may follow it, and the link has room for one. */
static bool has_said_bye(const trib_link *link)
{
    bool has = link->bye || link->has_farewell;
    for (uint32_t i = 0; i < link->arrival_count; i++) {
        has = has || trib_link_arrival(link, i)->frame.type == TRIB_FRAME_BYE;
    }
    return has;
}

/* The answer is final if the frame's turn has come; link->recv_claim is filled in if the answer is TRIB_OK. */
static trib_status ask_upper(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    if (link->state < TRIB_LINK_READY) {
        return trib_link_handshake_header(link, frame, target, error);
    }
    if (frame->type <= TRIB_FRAME_WELCOME) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s frame after the handshake", trib_frame_name(frame->type));
    }
    if (frame->type == TRIB_FRAME_ACK) {
        return frame->payload_size == 0 ? TRIB_OK : trib_error_set(error, TRIB_PROTOCOL, "ACK with a payload");
    }
    if (link->state == TRIB_LINK_LEAVING && frame->type != TRIB_FRAME_BYE) {
        return TRIB_OK; /* it is dropped; the link's own memory receives it */
    }
    if (frame->type == TRIB_FRAME_BYE) {
        if (frame->payload_size > sizeof link->farewell || has_said_bye(link)) {
            return trib_error_set(error, TRIB_PROTOCOL, "BYE with %u bytes, or a second BYE", frame->payload_size);
        }
        target->buffer = link->farewell;
        return TRIB_OK;
    }
    return link->upcalls->header(link, frame, target, error);
}

trib_status trib_link_arrival_begin(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                    trib_error *error)
{
    trib_assert(link->arrival_count < TRIB_AHEAD_MAX);
    trib_assert(frame->payload_size <= TRIB_PAYLOAD_MAX); /* trib_frame_decode has checked it */
    trib_arrival *arrival = &link->arrivals[(link->arrival_first + link->arrival_count) % TRIB_AHEAD_MAX];
    link->recv_claim = (trib_recv_claim){.what = NULL};
    target->buffer = NULL;
    target->in_place = false;
    trib_status status = ask_upper(link, frame, target, error);
    arrival->frame = *frame;
    arrival->recv_claim = link->recv_claim;
    arrival->memory = NULL;
    link->recv_claim = (trib_recv_claim){.what = NULL};
    if (status == TRIB_OK && frame->payload_size > 0 && target->buffer == NULL) {
        trib_assert(arrival->recv_claim.what == NULL);
        arrival->memory = target->buffer = trib_link_zalloc(link->host, frame->payload_size);
        if (target->buffer == NULL) {
            status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a message");
        }
    }
    link->arrival_count += status == TRIB_OK;
    return status;
}

bool trib_link_is_receiving(const trib_link *link, const void *what, uint32_t chunk)
{
    for (uint32_t i = 0; i < link->arrival_count; i++) {
        const trib_arrival *arrival = trib_link_arrival(link, i);
        if (arrival->recv_claim.what == what && arrival->frame.chunk == chunk) {
            return true;
        }
    }
    return false;
}

const trib_arrival *trib_link_arrival_take(trib_link *link)
{
    trib_assert(link->arrival_count > 0);
    const trib_arrival *oldest = &link->arrivals[link->arrival_first];
    link->arrival_first = (link->arrival_first + 1) % TRIB_AHEAD_MAX;
    link->arrival_count--;
    return oldest;
}

trib_status trib_link_copy(trib_link *link, trib_copy *copy, void *to, const void *payload, uint32_t size,
                           trib_error *error)
{
    trib_lease *lease = trib_conn_lease(link->conn, false);
    copy(to, payload, size);
    trib_charge(link->host->reactor, TRIB_COST_COPY, size);
    return lease == NULL || lease->end(lease)
               ? TRIB_OK
               : trib_error_set(error, TRIB_PEER_LOST, "the connection ended while its payload was read");
}

void trib_link_arrival_abandon(trib_link *link, const trib_arrival *arrival)
{
    if (arrival->recv_claim.what != NULL) {
        trib_assert(arrival->recv_claim.abandon != NULL && arrival->memory == NULL);
        arrival->recv_claim.abandon(link, &arrival->recv_claim);
    }
}

void trib_link_arrivals_abandon(trib_link *link)
{
    while (link->arrival_count > 0) {
        const trib_arrival *arrival = trib_link_arrival_take(link);
        trib_link_arrival_abandon(link, arrival);
        free(arrival->memory);
    }
}

/* A peer that speaks another version says BYE without a payload. A cause that names no origin originates from the peer
 * itself. */
static trib_status take_farewell(trib_link *link, const trib_frame *frame, const void *payload, trib_error *error)
{
    link->bye = frame->aux == 0;
    if (link->bye || link->is_ended) {
        return TRIB_OK;
    }
    if (frame->payload_size == 0) {
        link->end = trib_cause_note(TRIB_OK, link->peer, "");
        const trib_status status = trib_frame_take_error(frame, &link->end.status, error);
        if (status != TRIB_OK) {
            return status;
        }
        snprintf(link->end.detail, sizeof link->end.detail, "%s", trib_status_text(link->end.status));
    } else {
        const trib_status status = trib_cause_decode(frame, payload, &link->end, error);
        if (status != TRIB_OK) {
            return status;
        }
        trib_cause_set_sender(&link->end, link->peer);
    }
    link->has_farewell = true;
    return TRIB_OK;
}

trib_status trib_link_arrival_give(trib_link *link, const trib_arrival *arrival, const void *payload, trib_error *error)
{
    const trib_frame *frame = &arrival->frame;
    if (link->state < TRIB_LINK_READY) {
        return trib_link_handshake_received(link, frame, payload, error);
    }
    if (frame->type == TRIB_FRAME_ACK) {
        return TRIB_OK;
    }
    if (frame->type == TRIB_FRAME_BYE) {
        return take_farewell(link, frame, payload, error);
    }
    link->recv_claim = arrival->recv_claim;
    if (link->state == TRIB_LINK_LEAVING) {
        if (link->recv_claim.what != NULL) {
            link->recv_claim.abandon(link, &link->recv_claim);
        }
        return TRIB_OK;
    }
    trib_status status = link->upcalls->received(link, frame, payload, false, error);
    link->recv_claim = (trib_recv_claim){.what = NULL};
    return status;
}

static void resume_one(trib_link *link)
{
    if (link->conn != NULL && link->state == TRIB_LINK_READY) {
        link->conn->transport->ops->recv_resume(link->conn);
    }
}

void trib_link_resume(trib_link *link)
{
    if (link->is_self && link->self_head != NULL) {
        trib_reactor_defer(link->host->reactor, &link->self_post);
    }
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        if (trib_link_connection(link, i) != NULL) {
            resume_one(trib_link_connection(link, i));
        }
    }
}
