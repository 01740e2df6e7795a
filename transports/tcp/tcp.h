/* tcp.h - the transport over TCP sockets, which works between any two machines. */
#ifndef TRIB_TRANSPORTS_TCP_TCP_H
#define TRIB_TRANSPORTS_TCP_TCP_H

#include "transports/transport.h"

/* Addresses are "127.0.0.1:4242" or "[::1]:4242". */
extern const trib_transport_ops trib_tcp_ops;

#endif
