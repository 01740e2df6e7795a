/*
 * rdma.h - the transport over RDMA verbs: InfiniBand, RoCE, iWARP. librdmacm makes the connections (docs/rdma.md).
 *
 * A small message is sent into a buffer that the receiver has posted. A larger payload is announced; the receiver
 * grants a place for it, and the sender's device writes it there, without a processor on either side. Both ends of
 * such a write must be memory that the device knows: the engine's arena is registered; a payload elsewhere is copied
 * through memory of the transport.
 *
 * It is built if libibverbs and librdmacm are found (TRIB_HAVE_RDMA). Otherwise the name "rdma" is unknown.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_H
#define TRIB_TRANSPORTS_RDMA_RDMA_H

#include <stdio.h>

#include "build_config.h"
#include "transports/transport.h"

#define TRIB_HAVE_RDMA (TRIB_HAVE_IBVERBS && TRIB_HAVE_RDMACM)

extern const trib_transport_ops trib_rdma_ops;

/* Writes this machine's devices, their ports and addresses, as a JSON array. */
void trib_rdma_describe(FILE *out);

#endif
