/*
 * link_self.h - the link of a worker to the server of its own process, on the same reactor. Frames are handed over on
 * the next turn, and payloads stay where they are.
 *
 * A sum needs two operands. The worker's own chunk is usually the first one, and lies in the caller's buffer, which
 * nobody changes until the operation is over. So the server may lease the chunk instead of copying it while the second
 * operand is on its way. It does so only if there is more to do than this chunk.
 *
 * A task that fails recalls its leased chunks before it settles. The server then copies them, because they still count.
 *
 * Everything here belongs to the reactor's thread.
 */
#ifndef TRIB_ENGINE_LINK_LINK_SELF_H
#define TRIB_ENGINE_LINK_LINK_SELF_H

#include "engine/link/link.h"

typedef struct trib_self_lease trib_self_lease;

/* Lends the chunks of one core's tasks to that core's server. The server asks for a lease as it asks any connection. */
typedef struct trib_self_leases {
    trib_link_host *host;
    trib_conn conn; /* serves trib_conn_lease only */
    /* lease list of the task whose frame is being received; NULL: the payload may not be leased */
    trib_self_lease **held;
    trib_self_lease *unused; /* leases that have ended, for reuse (utlist.h) */
    uint32_t count;          /* number of leases that have not ended */
} trib_self_leases;

void trib_self_leases_open(trib_self_leases *leases, trib_link_host *host);
/* Ends all leases in the list. The server has copied each chunk when this returns. */
void trib_self_leases_recall(trib_self_lease **held);
/* All leases must have ended. */
void trib_self_leases_close(trib_self_leases *leases);

/* Defined in link.c, for link_self.c. `state` is the first state of the link. NULL: out of memory. */
TRIB_CHECKED trib_link *trib_link_create(trib_link_host *host, const trib_link_upcalls *upcalls, trib_link_state state);
void trib_link_free(trib_link *link);
/* Gives a frame to the link's connection, or takes it back; with the credit that it needs. */
void trib_link_hand_over(trib_link *link, trib_send_record *out);
void trib_link_take_back(trib_link *link, trib_send_record *out);
/* Calls `done`, and keeps the record for reuse. */
void trib_link_send_finish(trib_send_record *out, trib_status status);
/* The peer has all frames of a link that is LEAVING. */
void trib_link_left(trib_link *link);
/* Defined in link_self.c, for link.c. */
void trib_link_self_hand_over(trib_link *link, trib_send_record *out);

#endif
