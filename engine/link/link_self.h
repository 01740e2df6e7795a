/*
 * link_self.h - the link of a worker to the server of its own process, on the same reactor: frames go over on the next
 * turn, and payloads stay where they are.
 *
 * A sum needs two operands. The worker's own chunk is mostly the first one, and need not be copied while the second is
 * on its way: it lies in the caller's buffer, which nobody changes until the operation is over. So the server may lease
 * it, if there is more to do than this one chunk. A task that fails recalls its leased chunks before it settles; the
 * server then copies them, as they count.
 *
 * The reactor's thread only.
 */
#ifndef TRIB_ENGINE_LINK_LINK_SELF_H
#define TRIB_ENGINE_LINK_LINK_SELF_H

#include "engine/link/link.h"

typedef struct trib_self_lease trib_self_lease;

/* Lends the chunks of one core's tasks to that core's server, which asks for leases as it asks connections. */
typedef struct trib_self_leases {
    trib_link_host *host;
    trib_conn conn;          /* for trib_conn_lease, and nothing else */
    trib_self_lease **held;  /* list of the task whose frame is received; NULL: its payload may not stay */
    trib_self_lease *unused; /* leases that have ended and are used again (utlist.h) */
    uint32_t count;          /* of leases that have not ended */
} trib_self_leases;

void trib_self_leases_open(trib_self_leases *leases, trib_link_host *host);
/* Ends all leases in the list: the server has copied each chunk when this returns. */
void trib_self_leases_recall(trib_self_lease **held);
/* All leases have ended. */
void trib_self_leases_close(trib_self_leases *leases);

/* link.c, for link_self.c. state: the first one. NULL: no memory. */
TRIB_CHECKED trib_link *trib_link_create(trib_link_host *host, const trib_link_upcalls *upcalls, trib_link_state state);
void trib_link_free(trib_link *link);
void trib_link_send_finish(trib_send_record *out, trib_status status);
/* link_self.c, for link.c */
void trib_link_self_hand_over(trib_link *link, trib_send_record *out);

#endif
