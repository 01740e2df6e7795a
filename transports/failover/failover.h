/*
 * failover.h - connections that outlive the way they take: a layer over a transport whose peers have several addresses.
 *
 * An address with commas, "10.0.0.7:4242+rdma,10.1.0.7:4242+rdma", is a list of rails that lead to one reactor; a
 * listener for such a list listens on each. A connection to it is a session: it goes by one rail, the first in the list
 * that works, and when that fails (its connection of the inner transport ends, for whatever reason of the network's) by
 * the next. Nothing is lost or doubled: both sides count messages, a sender has its buffers back when the peer has
 * counted them, and what was not counted is sent again. What an address offers ("+rdma") is tried on every rail before
 * a rail is taken without. While a session goes by another rail than its first, or without what is offered, it tries
 * those from time to time and goes back, once the peer has answered there. It ends with TRIB_PEER_LOST when all rails
 * were tried in vain for three quarters of the silence timeout, or each says that nobody is there; on the accepting
 * side when nobody came for as long. There a session whose caller does not keep it (trib_conn) ends with the rail it
 * came by.
 *
 * An address without a comma is none of this layer's: its connections are the inner transport's own.
 *
 * What the caller says of its next sends (awaits_sent, urgent) stays here. A path has to hear of `sent` in time,
 * whatever the caller awaits: nothing is reported, or sent again, that the inner transport still has. And what may wait
 * in a kernel is bounded by the caller's credit, which comes back when the peer has counted a message, and not already
 * when the kernel has taken it.
 *
 * What it costs: an acknowledgement of a header for each turn in which messages came, and sends that are reported when
 * that has come back. A receiver that answers AGAIN has what follows thrown away and sent again: acknowledgements come
 * the same way and must not wait for room.
 */
#ifndef TRIB_TRANSPORTS_FAILOVER_H
#define TRIB_TRANSPORTS_FAILOVER_H

#include "transports/transport.h"

#define TRIB_FAILOVER_MAX TRIB_NETWORKS_MAX

/* The table of what is opened: name and flags are its own, the rest trib_rails_ops's. */
TRIB_CHECKED trib_status trib_failover_open(const trib_transport_ops *ops, const trib_transport_ops *inner,
                                            trib_reactor *reactor, const trib_transport_config *config,
                                            const trib_transport_upcalls *upcalls, trib_transport **transport_out);

/* Over the transports of that name. */
extern const trib_transport_ops trib_failover_auto_ops;
extern const trib_transport_ops trib_failover_tcp_ops;
extern const trib_transport_ops trib_failover_rdma_ops; /* where it is built */

/* The part of a table that does not depend on what is below. */
void trib_failover_close(trib_transport *transport);
TRIB_CHECKED trib_status trib_failover_listen(trib_transport *transport, const trib_address *at, void *user,
                                              trib_listener **listener_out, trib_address *bound_out, trib_error *error);
void trib_failover_listener_close(trib_listener *base);
TRIB_CHECKED trib_status trib_failover_connect(trib_transport *transport, const trib_address *to, void *user,
                                               trib_conn **conn_out);
void trib_failover_send(trib_conn *base, trib_send *send);
void trib_failover_recv_resume(trib_conn *base);
void trib_failover_conn_close(trib_conn *base, bool flush);
bool trib_failover_is_idle(const trib_transport *transport);
void trib_failover_stats(const trib_transport *transport, trib_transport_stats *stats_out);

#endif
