/*
 * auto_rdma.h - RDMA's part in the transport that picks another one (auto.h).
 *
 * A process that can be reached over RDMA says so in its address: "10.0.0.7:4242+rdma". A peer with a device tries
 * RDMA, and uses TCP if that does not connect. So a connection made here may change its transport before it is
 * `connected`, and is an object of its own in front of the transport's connection.
 *
 * A machine without an RDMA device pays for nothing of this: no instance, no thread, no library call.
 */
#ifndef TRIB_TRANSPORTS_AUTO_AUTO_RDMA_H
#define TRIB_TRANSPORTS_AUTO_AUTO_RDMA_H

#include "transports/transport.h"

#define TRIB_AUTO_OFFER "+rdma"

typedef struct auto_rdma auto_rdma;

/* As `context_open` of the contract, but it never fails. *context_out is NULL without a device; with a device that
 * cannot be used it has the reason. */
void trib_auto_rdma_context_open(struct trib_arena *arena, void **context_out);
void trib_auto_rdma_context_close(void *context);

/* NULL: RDMA is not used. The log says why if there is a device. */
auto_rdma *trib_auto_rdma_open(trib_reactor *reactor, const trib_transport_config *config,
                               const trib_transport_upcalls *upcalls);
/* In the functions below self may be NULL. */
void trib_auto_rdma_close(auto_rdma *self);
void trib_auto_rdma_stats(const auto_rdma *self, trib_transport_stats *stats_io); /* adds to *stats_io */

/* Listens under the address of TCP's listener, and appends the offer to it. NULL: it does not listen. */
trib_listener *trib_auto_rdma_listen(auto_rdma *self, trib_address *bound_io, void *user);
void trib_auto_rdma_listener_close(trib_listener *listener); /* NULL is fine */

/* As `connect` of the contract. to: the address without the offer. */
TRIB_CHECKED trib_status trib_auto_rdma_connect(auto_rdma *self, const trib_address *to, void *user,
                                                trib_conn **conn_out);

#endif
