/*
 * failover.h - connections that survive the failure of their path: a layer over a transport whose peers have several
 * addresses.
 *
 * An address with commas, "10.0.0.7:4242+rdma,10.1.0.7:4242+rdma", is a list of rails (networks) that lead to one
 * reactor. A listener for such a list listens on each. A connection to it is a session: it uses the first rail that
 * works. When its connection of the inner transport ends because of the network, it goes on over another rail.
 *
 * - Nothing is lost or doubled. Both sides count messages, a sender gets its buffers back when the peer has
 *   acknowledged them, and messages that were not acknowledged are sent again.
 * - What an address offers ("+rdma") is tried on every rail before a rail is used without it. A session on another
 *   rail than its first, or without what is offered, tries those from time to time and returns when the peer answers
 *   there.
 * - A session ends with TRIB_PEER_LOST when no rail worked for three quarters of the silence timeout, or when each
 *   rail says that nobody listens. The accepting side ends it when the peer did not come for as long; and at once if
 *   the caller has not set survives_path_loss (trib_conn).
 * - A connection to an address without a comma is the inner transport's own.
 * - awaits_sent and urgent are not passed on. A path must report `sent` in time, whatever the caller awaits, because a
 *   message is acknowledged or repeated only when the inner transport has given it back. The caller's credit bounds
 *   what a kernel may hold: it comes back with the peer's acknowledgement, not when the kernel has accepted the
 *   message.
 *
 * The cost is an acknowledgement of one header for each turn in which messages came, and a later `sent`. When a
 * receiver answers TRIB_AGAIN, what follows is dropped and sent again: acknowledgements use the same path and must not
 * wait for room.
 */
#ifndef TRIB_TRANSPORTS_FAILOVER_FAILOVER_H
#define TRIB_TRANSPORTS_FAILOVER_FAILOVER_H

#include "transports/transport.h"

#define TRIB_FAILOVER_MAX 4u

/* ops: the table of the new instance; only its name, flags and open are its own. */
TRIB_CHECKED trib_status trib_failover_open(const trib_transport_ops *ops, const trib_transport_ops *inner,
                                            trib_reactor *reactor, const trib_transport_config *config,
                                            const trib_transport_upcalls *upcalls, trib_transport **transport_out);

/* The layer over the transport of that name. */
extern const trib_transport_ops trib_failover_auto_ops;
extern const trib_transport_ops trib_failover_tcp_ops;
extern const trib_transport_ops trib_failover_rdma_ops; /* if RDMA is built in */

/* The part of a table that does not depend on the inner transport. */
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
