/*
 * auto.h - the transport that picks another one for each peer.
 *
 * It uses shared memory to processes of this machine where that works, RDMA to peers that offer it if this machine has
 * a device, too, and TCP to all others and where RDMA fails to connect. It listens on a TCP address and, under the same
 * address, for shared memory and RDMA. The `transport` of a connection names the transport that carries it. A peer that
 * listens for one transport only is reached by that one.
 */
#ifndef TRIB_TRANSPORTS_AUTO_AUTO_H
#define TRIB_TRANSPORTS_AUTO_AUTO_H

#include "transports/transport.h"

extern const trib_transport_ops trib_auto_ops;

void trib_auto_stats_add(const trib_transport *one, trib_transport_stats *stats_io);

#endif
