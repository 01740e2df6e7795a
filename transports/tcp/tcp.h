/* tcp.h - the transport that works between any two machines: messages over TCP sockets. */
#ifndef TRIB_TRANSPORTS_TCP_H
#define TRIB_TRANSPORTS_TCP_H

#include "transports/transport.h"

/* Addresses are "127.0.0.1:4242" or "[::1]:4242". */
extern const trib_transport_ops trib_tcp_ops;

#endif
