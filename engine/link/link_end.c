/* link_end.c - see link_end.h. */
#include "engine/link/link_end.h"

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_arrival.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_handshake.h"
#include "engine/link/link_host.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_reconnect.h"
#include "engine/link/link_self.h"
#include "engine/link/link_trace.h"
#include "engine/wire/address_list.h"

/* ---- This side ends the link ---- */

/* No-op if the link is closing already: sending BYE may have ended it for lack of memory. */
static void begin_closing(trib_link *link)
{
    if (link->state != TRIB_LINK_CLOSING) {
        trib_link_set_state(link, TRIB_LINK_CLOSING);
    }
}

static void note_dropped(trib_link *link, bool is_dropped)
{
    link->is_dropped = is_dropped;
    if (is_dropped) {
        trib_link_handshake_forget_half_open(link);
    }
}

static void end_connection(trib_link *link, bool flush)
{
    begin_closing(link);
    if (link->conn != NULL) {
        note_dropped(link, !flush);
        link->conn->transport->ops->conn_close(link->conn, flush);
    } else {
        trib_reactor_defer(link->host->reactor, &link->self_post);
    }
}

/* True if the link waits until the peer has all its frames. A job that failed does not wait for peers that may be
 * gone. */
static bool must_wait(const trib_link *link, const trib_cause *cause)
{
    return link->session.is_established && link->session.first != NULL && link->state != TRIB_LINK_CLOSING &&
           link->redial.survives && trib_status_is_orderly(cause->status);
}

/* Ends one connection of a link, for that cause. */
/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
static void close_one(trib_link *link, bool flush, const trib_cause *cause)
{
    if (link->state == TRIB_LINK_CLOSING || link->leaving) {
        if (!flush && link->leaving) {
            /* The wait is over. What the kernel has may still arrive; another call ends that, too. */
            link->leaving = false;
            end_connection(link, link->state == TRIB_LINK_LEAVING);
        } else if (!flush && link->conn != NULL) {
            note_dropped(link, true);
            link->conn->transport->ops->conn_close(link->conn, false);
        }
        return;
    }
    if (flush && trib_link_handshake_may_send(link) && !link->is_self) {
        const trib_frame bye = {.type = TRIB_FRAME_BYE};
        if (trib_status_is_orderly(cause->status)) {
            trib_link_send_copy(link, bye, NULL, 0);
        } else {
            trib_link_send_cause(link, bye, cause);
        }
    }
    trib_egress_stop_waiting(link);
    link->end = *cause;
    link->is_ended = true;
    link->end_from_peer = false;
    if (!flush || !must_wait(link, cause)) {
        end_connection(link, flush);
        return;
    }
    link->leaving = true;
    if (link->state == TRIB_LINK_READY) {
        trib_link_set_state(link, TRIB_LINK_LEAVING);
    }
}

void trib_link_left(trib_link *link)
{
    trib_assert(link->state == TRIB_LINK_LEAVING && link->leaving && link->session.first == NULL);
    link->leaving = false;
    end_connection(link, true);
}

/* False for a second connection of which the peer may not know that it is ready: nothing was sent over it. */
static bool was_used(const trib_link *second)
{
    return second->outgoing || second->has_received;
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
void trib_link_close_for(trib_link *link, bool flush, const trib_cause *cause)
{
    const trib_cause copy = *cause; /* the argument may be the `end` of a link that is closed here */
    /* A second connection that the peer never knew to be ready ends without its main link. */
    if (link->main != NULL && trib_link_is_up(link) && was_used(link) && !trib_link_is_ending(link->main)) {
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

/* ---- A connection has ended ---- */

static void finish_closed(trib_link *link)
{
    trib_assert(link->is_ended && link->state == TRIB_LINK_CLOSING);
    link->upcalls->closed(link, link->end.status, link->end.detail);
    trib_link_free(link);
}

/* The main connection of the link has gone, while others remain. */
static void main_closed(trib_link *link)
{
    trib_assert(link->main == NULL && !link->main_gone);
    link->conn = NULL;
    link->main_gone = true;
    for (uint32_t i = 1; i < trib_link_connections(link); i++) {
        trib_link *other = trib_link_connection(link, i);
        if (other == NULL) {
            continue;
        }
        /* An orderly peer ends the other connection by itself, after frames that are still to come. */
        if (!trib_link_is_ending(other) && (!link->bye || !trib_link_is_up(other))) {
            close_one(other, false, &link->end);
        } else if (other->state == TRIB_LINK_READY) {
            trib_link_handshake_arm(other); /* bounds the wait for the peer's end */
        }
    }
}

static void second_closed(trib_link *link, bool was_handshake)
{
    trib_link *main = link->main;
    trib_assert(main->main == NULL && trib_link_connection_index(link) > 0);
    main->priority_failed = main->priority_failed || (was_handshake && link == main->priority_link);
    const bool over = trib_link_detach_from_main(link);
    if (over) {
        finish_closed(main);
    } else if (!trib_link_is_ending(main) && !was_handshake && !link->bye && was_used(link)) {
        /* A second connection that ended before the peer knew it to be ready was never used, so the main link lives on.
         * A main link that is closing still has its own last frames to write. */
        trib_link_close_for(main, false, &link->end);
        main->end_from_peer = link->end_from_peer;
    } else if (!trib_link_is_ending(main)) {
        trib_scheduler_resumed(main); /* each connection that is left has a larger part of the link's credit */
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

/* A connection that is lost while its peer leaves cannot be made again, because the process has ended. The
 * coordinator's word stands for the BYE that was lost with it. */
static void note_departure(trib_link *link)
{
    trib_engine *engine = link->host->engine;
    int64_t left_ns;
    if (link->proved && !link->bye && !link->end_from_peer && link->end.status == TRIB_PEER_LOST &&
        trib_departed_has(&engine->departed, link->peer, &left_ns)) {
        link->bye = true;
        link->end = trib_cause_note(TRIB_PEER_LEFT, engine->member_id, "left");
    }
}

/* Nothing of the link is with a transport any more. */
static void end_link(trib_link *link)
{
    trib_assert(link->is_ended);
    note_departure(link);
    trib_link_host *host = link->host;
    const bool was_handshake = !link->proved, pushed = link->flow.egress != NULL;
    trib_trace_link(host, TRIB_TRACE_LINK_CLOSED, link, (uint32_t)link->end.status);
    begin_closing(link);
    trib_scheduler_drop_requests(link);
    trib_link_arrivals_abandon(link);
    trib_session_close(link);
    trib_redial_close(link);
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

void trib_link_transport_closed(trib_conn *conn, trib_status status, const char *reason)
{
    trib_link *link = conn->user;
    if (link == NULL) {
        return;
    }
    conn->user = NULL;
    /* The attempts before have told of the other addresses. */
    link->redial.is_refused =
        conn->refused && link->redial.refused + 1 >= trib_address_list_count(link->redial.to.text);
    if (link->state != TRIB_LINK_CLOSING && (!link->is_ended || link->leaving) &&
        trib_redial_connection_lost(link, conn, status, reason)) {
        trib_link_arrivals_abandon(link);
        if (link->flow.egress != NULL) {
            trib_scheduler_link_gone(link->host); /* what the transport gave back is the credit of other links */
        } else {
            trib_scheduler_resumed(link); /* what it carried goes over the link's other connections */
        }
        return;
    }
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
    if (!link->proved && !link->outgoing && !link->host->is_closed) {
        trib_link_handshake_refused(link, conn);
    }
    end_link(link);
}

void trib_link_end_without_connection(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_link *link = trib_container_of(post, trib_link, self_post);
    trib_assert(link->state == TRIB_LINK_CLOSING && link->conn == NULL);
    end_link(link);
}
