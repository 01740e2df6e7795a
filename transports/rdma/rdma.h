/*
 * rdma.h - the transport over RDMA verbs: InfiniBand, RoCE, iWARP, with connections made by librdmacm (docs/rdma.md).
 *
 * Small messages are sent into buffers that the receiver has posted. A larger payload is announced; the receiver grants
 * the place where it shall land, and the sender's device writes it there, which no processor has to do with on either
 * side. Both ends of such a write must be memory that is registered with the device: the engine's arena is; what is not
 * is copied through memory of the transport's own.
 *
 * Built where libibverbs and librdmacm are found (TRIB_HAVE_RDMA); otherwise its name is unknown.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_H
#define TRIB_TRANSPORTS_RDMA_RDMA_H

#include <stdio.h>

#include "build_config.h"
#include "transports/transport.h"

#define TRIB_HAVE_RDMA (TRIB_HAVE_IBVERBS && TRIB_HAVE_RDMACM)

extern const trib_transport_ops trib_rdma_ops;

/* This machine's devices, their ports and addresses, as a JSON array. */
void trib_rdma_describe(FILE *out);

#endif
