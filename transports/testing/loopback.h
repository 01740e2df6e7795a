/*
 * loopback.h - messages between reactors of one process, on any threads, without copying payloads.
 *
 * Addresses are "loop:NAME"; "loop:" picks a name. Names live in a hub, which the user creates and gives to every
 * transport that shall reach the others. The contract's `open` has no hub to give, so these transports are opened with
 * trib_loopback_open. A connection closes only while the reactors of both its ends run.
 */
#ifndef TRIB_TRANSPORTS_TESTING_LOOPBACK_H
#define TRIB_TRANSPORTS_TESTING_LOOPBACK_H

#include "transports/transport.h"

typedef struct trib_loopback_hub trib_loopback_hub;

/* NULL if out of memory. */
trib_loopback_hub *trib_loopback_hub_create(void);
/* Called after the last transport on it has been closed. */
void trib_loopback_hub_destroy(trib_loopback_hub *hub);

TRIB_CHECKED trib_status trib_loopback_open(trib_loopback_hub *hub, trib_reactor *reactor,
                                            const trib_transport_upcalls *upcalls, trib_transport **transport_out);

extern const trib_transport_ops trib_loopback_ops;

#endif
