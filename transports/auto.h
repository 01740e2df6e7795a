/*
 * auto.h - the transport that chooses: shared memory to processes of this machine that can be reached so, TCP to all
 * others.
 *
 * It listens on a TCP address and, under the same address, for shared memory. A connection is one of TCP or of shared
 * memory from its beginning; its own `transport` says which. Who listens for one of them only is reached by that.
 */
#ifndef TRIB_TRANSPORTS_AUTO_H
#define TRIB_TRANSPORTS_AUTO_H

#include "transports/transport.h"

extern const trib_transport_ops trib_auto_ops;

#endif
