/*
 * auto.h - the transport that chooses: shared memory to processes of this machine that can be reached so, RDMA to those
 * that offer it where this machine has it too, TCP to all others and wherever RDMA does not come to a connection.
 *
 * It listens on a TCP address and, under the same address, for shared memory and RDMA. A connection's own `transport`
 * says what carries it. Who listens for one of them only is reached by that.
 */
#ifndef TRIB_TRANSPORTS_AUTO_AUTO_H
#define TRIB_TRANSPORTS_AUTO_AUTO_H

#include "transports/transport.h"

extern const trib_transport_ops trib_auto_ops;

void trib_auto_stats_add(const trib_transport *one, trib_transport_stats *stats_io);

#endif
