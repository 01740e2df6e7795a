/*
 * link_cause.c - see link_cause.h.
 *
 * A member that ends because it lost another one says so in its BYE. The BYE may arrive before this process sees the
 * end of the lost member. So this process passes the cause on unchanged: the lost member is its subject, and the peer
 * is its origin, not lost itself.
 */
#include "engine/link/link_cause.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"

/* NOLINTNEXTLINE(misc-no-recursion): see trib_link_send_copy */
void trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause)
{
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    frame.aux = (uint32_t)cause->status;
    trib_link_send_copy(link, frame, payload, trib_cause_encode(cause, payload));
}

/* The peer counts as lost, unless it announced the end of the whole job, or this process ran out of memory. */
static trib_status status_for_job(const trib_link *link)
{
    const trib_status status = link->end.status;
    const bool is_everyones =
        status == TRIB_PEER_LEFT || status == TRIB_MISMATCH || (status == TRIB_NO_MEMORY && !link->end_from_peer);
    return is_everyones ? status : TRIB_PEER_LOST;
}

/* A connection that was never made was not lost: its address may be wrong. */
static void set_not_connected(const trib_link *link, trib_cause *cause)
{
    const trib_roster *roster = link->host->engine->roster;
    trib_assert(link->outgoing && link->peer_reactor < TRIB_REACTORS_MAX);
    const bool has_address = roster != NULL && link->peer < roster->member_count;
    const char *at = has_address ? roster->members[link->peer].addresses[link->peer_reactor].text : "?";
    cause->kind = TRIB_CAUSE_NOT_CONNECTED;
    snprintf(cause->detail, sizeof cause->detail, "%.*s: %s", (int)strcspn(at, "+,"), at, link->end.detail);
}

void trib_link_end_cause(const trib_link *link, trib_cause *cause_out)
{
    const uint32_t self = link->host->engine->member_id;
    trib_assert(link->is_ended);
    *cause_out = link->end;
    cause_out->status = status_for_job(link);
    if (link->end_from_peer) {
        return;
    }
    cause_out->origin = self;
    cause_out->subject_kind = TRIB_SUBJECT_MEMBER;
    cause_out->subject = link->peer;
    if (link->end.status == TRIB_NO_MEMORY) { /* no member was lost */
        cause_out->kind = TRIB_CAUSE_TROUBLE;
        cause_out->subject = self;
    } else if (!link->proved && link->outgoing) {
        set_not_connected(link, cause_out);
    } else {
        cause_out->kind = TRIB_CAUSE_CONNECTION_LOST;
    }
}

void trib_link_control_cause(const trib_link *link, trib_cause_subject subject_kind, uint32_t subject,
                             trib_cause *cause_out)
{
    trib_assert(link->is_ended);
    if (link->end_from_peer) {
        trib_link_end_cause(link, cause_out);
        return;
    }
    *cause_out = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_MEMBER_LOST, subject_kind, subject, TRIB_NO_MEMBER,
                                  link->end.detail);
    const int64_t silence_ns = trib_now(link->host->reactor) - link->last_received_ns;
    /* negative if the fast clock, which noted the arrival, was ahead of this one */
    cause_out->silence_ns = silence_ns > 0 ? silence_ns : 0;
}

void trib_link_name_breaker(trib_link *link, const trib_conn *conn)
{
    if (link->end.status == TRIB_PROTOCOL && link->proved && !link->end_from_peer) {
        char detail[TRIB_ERROR_TEXT_SIZE];
        snprintf(detail, sizeof detail, "%.280s (%s %.80s)", link->end.detail,
                 link->outgoing ? "on the connection to" : "on a connection from", conn->remote.text);
        memcpy(link->end.detail, detail, sizeof detail);
    }
}
