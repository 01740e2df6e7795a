/*
 * link_self.c - see link_self.h.
 *
 * Invariants
 * - A lease is in the list of the task whose chunk it is of until it ends.
 * - A chunk's lease ends before its sum is complete, as the sum is made of it. So only a task that fails has any to be recalled.
 */
#include "engine/link/link_self.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"

/* ---- Frames ---- */

_Static_assert(sizeof(trib_frame) <= TRIB_HEADER_SIZE, "a frame to this process itself travels in place of its header");

/* A chunk that nothing else is there beside is copied while its partner is on its way: this core would wait, and has it at hand then. */
static bool may_stay(const trib_link_host *host, const trib_send_record *next)
{
    return next != NULL || host->leases.count > 0;
}

static void deliver_self(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_link *link = (trib_link *)((char *)post - offsetof(trib_link, self_post));
    /* Only what was there at the beginning: answers go out in a later turn. */
    trib_send_record *out = link->self_head;
    link->self_head = link->self_tail = NULL;
    while (out != NULL) {
        trib_send_record *next = out->next;
        trib_frame frame;
        trib_error error;
        trib_error_clear(&error);
        memcpy(&frame, out->send.header, sizeof frame);
        if (link->state == TRIB_LINK_READY) {
            link->host->leases.held = may_stay(link->host, next) ? out->held : NULL;
            trib_status status = link->upcalls->received(link, &frame, out->send.payload, true, &error);
            link->host->leases.held = NULL;
            if (status != TRIB_OK) {
                /* As from anybody else: what was not taken would be waited for. */
                trib_link_close(link, false, status, error.text);
            }
        }
        trib_link_send_finish(out, link->state == TRIB_LINK_READY ? TRIB_OK : link->end.status);
        out = next;
    }
    if (link->state != TRIB_LINK_CLOSING) {
        trib_link_pump(link);
    } else if (!link->self_post.queued) { /* one that was closed by what it delivered comes here again */
        trib_link_drop_requests(link);
        link->upcalls->closed(link, link->end.status, link->end.detail);
        trib_link_free(link);
    }
}

trib_status trib_link_self(trib_link_host *host, uint32_t member, const trib_link_upcalls *upcalls,
                           trib_link **link_out)
{
    trib_link *link = trib_link_create(host, upcalls);
    if (link == NULL) {
        return TRIB_NO_MEMORY;
    }
    link->purpose = TRIB_PURPOSE_DATA;
    link->peer = member;
    link->peer_reactor = host->reactor->index;
    link->credit = host->push_credit; /* what one turn hands over, so that the loop soon looks at its other business */
    link->state = TRIB_LINK_READY;
    link->self_post.run = deliver_self;
    *link_out = link;
    return TRIB_OK;
}

void trib_link_self_hand_over(trib_link *link, trib_send_record *out)
{
    if (link->self_tail != NULL) {
        link->self_tail->next = out;
    } else {
        link->self_head = out;
    }
    link->self_tail = out;
    trib_reactor_defer(link->host->reactor, &link->self_post);
}

/* ---- Leases ---- */

struct trib_self_lease {
    trib_lease base; /* first */
    trib_self_leases *leases;
    trib_self_lease *next, **at; /* the task's list */
};

static bool lease_end(trib_lease *base)
{
    trib_self_lease *lease = (trib_self_lease *)base;
    trib_self_leases *leases = lease->leases;
    trib_assert(leases->count > 0);
    leases->count--;
    *lease->at = lease->next;
    if (lease->next != NULL) {
        lease->next->at = lease->at;
    }
    lease->next = leases->unused;
    leases->unused = lease;
    return true; /* the caller leaves its buffer alone until the operation is over */
}

static trib_lease *lease_begin(trib_conn *conn, bool keeps)
{
    trib_self_leases *leases = (trib_self_leases *)((char *)conn - offsetof(trib_self_leases, conn));
    trib_self_lease *lease = leases->unused;
    if (!keeps || leases->held == NULL) {
        return NULL;
    }
    if (lease != NULL) {
        leases->unused = lease->next;
    } else {
        lease = trib_link_zalloc(leases->host, sizeof *lease);
        if (lease == NULL) {
            return NULL;
        }
    }
    *lease = (trib_self_lease){.base = {.end = lease_end}, .leases = leases, .next = *leases->held, .at = leases->held};
    if (lease->next != NULL) {
        lease->next->at = &lease->next;
    }
    *leases->held = lease;
    leases->count++;
    return &lease->base;
}

void trib_self_leases_open(trib_self_leases *leases, trib_link_host *host)
{
    static const trib_transport_ops ops = {.name = "self", .lease = lease_begin};
    static trib_transport transport = {.ops = &ops};
    leases->host = host;
    leases->conn.transport = &transport;
}

void trib_self_leases_recall(trib_self_lease **held)
{
    while (*held != NULL) {
        trib_self_lease *lease = *held;
        lease->base.recalled(&lease->base);
        trib_assert(*held != lease);
    }
}

void trib_self_leases_close(trib_self_leases *leases)
{
    trib_assert(leases->count == 0);
    while (leases->unused != NULL) {
        trib_self_lease *lease = leases->unused;
        leases->unused = lease->next;
        free(lease);
    }
}
