/*
 * link_self.c - see link_self.h.
 *
 * Invariants
 *
 * - A lease is in the list of its chunk's task until it ends.
 * - A chunk's lease ends before the chunk's sum is complete, because the sum is made from it. So only a task that fails
 *   has leases to recall.
 */
#include "engine/link/link_self.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_host.h"

/* ---- Frames ---- */

_Static_assert(sizeof(trib_frame) <= TRIB_HEADER_SIZE, "a frame to this process itself travels in place of its header");

/* A lone chunk is copied while its partner is on its way. The reactor would be idle otherwise, and the copy is in its
 * cache. */
static bool may_stay(const trib_link_host *host, const trib_send_record *next)
{
    return next != NULL || host->leases.count > 0;
}

/* The upper layer has no place for the frame yet: trib_link_resume delivers it again, and those behind it. */
static void keep_for_later(trib_link *link, trib_send_record *first)
{
    trib_send_record *last = first;
    while (last->next != NULL) {
        last = last->next;
    }
    last->next = link->self_head;
    link->self_tail = link->self_head == NULL ? last : link->self_tail;
    link->self_head = first;
}

static void deliver_self(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_link *link = trib_container_of(post, trib_link, self_post);
    /* The loop handles only the frames that were there at the beginning; answers go out in a later turn. */
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
            if (status == TRIB_AGAIN) {
                keep_for_later(link, out);
                return;
            }
            if (status != TRIB_OK) {
                /* The link ends as a link to any other peer does, because somebody would wait for a frame that was not
                 * taken. */
                trib_link_close(link, false, status, error.text);
            }
        }
        trib_link_take_back(link, out);
        trib_link_send_finish(out, link->state == TRIB_LINK_READY ? TRIB_OK : link->end.status);
        out = next;
    }
    if (link->state != TRIB_LINK_CLOSING) {
        trib_scheduler_credit_returned(link, 0);
    } else if (!link->self_post.queued) {
        /* A link that was closed by a frame that it delivered is called here again, and ends then. */
        trib_scheduler_drop_requests(link);
        link->upcalls->closed(link, link->end.status, link->end.detail);
        trib_link_free(link);
    }
}

trib_status trib_link_self(trib_link_host *host, uint32_t member, const trib_link_upcalls *upcalls,
                           trib_link **link_out)
{
    trib_link *link = trib_link_create(host, upcalls, TRIB_LINK_READY);
    if (link == NULL) {
        return TRIB_NO_MEMORY;
    }
    link->is_self = true;
    link->purpose = TRIB_PURPOSE_DATA;
    link->peer = member;
    link->peer_reactor = host->reactor->index;
    /* The credit bounds what one turn hands over, so that the loop soon looks at its other events. */
    link->credit = host->push_credit;
    link->self_post.run = deliver_self;
    *link_out = link;
    return TRIB_OK;
}

void trib_link_self_hand_over(trib_link *link, trib_send_record *out)
{
    trib_assert(link->is_self && out->next == NULL && (link->self_head == NULL) == (link->self_tail == NULL));
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
    trib_lease base; /* first member */
    trib_self_leases *leases;
    trib_self_lease **list; /* head of the task's list, which holds the lease (utlist.h) */
    trib_self_lease *next, *previous;
};

static bool lease_end(trib_lease *base)
{
    trib_self_lease *lease = trib_container_of(base, trib_self_lease, base);
    trib_self_leases *leases = lease->leases;
    trib_assert(leases->count > 0);
    leases->count--;
    DL_DELETE2(*lease->list, lease, previous, next);
    LL_PREPEND(leases->unused, lease);
    return true; /* the lease was never invalid: the caller must not change its buffer until the operation is over */
}

static trib_lease *lease_begin(trib_conn *conn, bool keeps)
{
    trib_self_leases *leases = trib_container_of(conn, trib_self_leases, conn);
    trib_self_lease *lease = leases->unused;
    if (!keeps || leases->held == NULL) {
        return NULL;
    }
    if (lease != NULL) {
        LL_DELETE(leases->unused, lease);
    } else {
        lease = trib_link_zalloc(leases->host, sizeof *lease);
        if (lease == NULL) {
            return NULL;
        }
    }
    *lease = (trib_self_lease){.base = {.end = lease_end}, .leases = leases, .list = leases->held};
    DL_PREPEND2(*lease->list, lease, previous, next);
    leases->count++;
    trib_assert(leases->count > 0);
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
