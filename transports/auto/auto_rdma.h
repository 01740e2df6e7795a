/*
 * auto_rdma.h - RDMA's part in the transport that chooses (auto.h).
 *
 * Who can be reached over RDMA says so in its address: "10.0.0.7:4242+rdma". Who has a device too tries that, and takes
 * TCP if it does not come to a connection. So a connection made here may change what carries it before it is
 * `connected`, and is an object of its own that stands in front of the one that does.
 *
 * A machine without an RDMA device has nothing of this: no instance, no thread, no library called.
 */
#ifndef TRIB_TRANSPORTS_AUTO_AUTO_RDMA_H
#define TRIB_TRANSPORTS_AUTO_AUTO_RDMA_H

#include "transports/transport.h"

#define TRIB_AUTO_OFFER "+rdma"

typedef struct auto_rdma auto_rdma;

/* See `context_open` of the contract. Never fails: *context_out is NULL where there is no device, and knows what is wrong where
 * there is one that cannot be used. */
void trib_auto_rdma_context_open(struct trib_arena *arena, void **context_out);
void trib_auto_rdma_context_close(void *context);

/* NULL: RDMA is not used, the log says why if it could be. */
auto_rdma *trib_auto_rdma_open(trib_reactor *reactor, const trib_transport_config *config,
                               const trib_transport_upcalls *upcalls);
/* The others: self may be NULL. */
void trib_auto_rdma_close(auto_rdma *self);
void trib_auto_rdma_stats(const auto_rdma *self, trib_transport_stats *stats_io); /* adds */

/* Listens under the address of TCP's listener, and adds the offer to it. NULL: it does not. */
trib_listener *trib_auto_rdma_listen(auto_rdma *self, trib_address *bound_io, void *user);
void trib_auto_rdma_listener_close(trib_listener *listener); /* NULL is fine */

/* to: without the offer. As `connect` of the contract. */
TRIB_CHECKED trib_status trib_auto_rdma_connect(auto_rdma *self, const trib_address *to, void *user,
                                                trib_conn **conn_out);

#endif
