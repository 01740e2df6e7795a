/*
 * rdma_release.h - gives ids and channels of the connection manager back to the kernel, on a thread of its own.
 *
 * The kernel takes as long as it likes to destroy an id: it may wait for a message from the network that never comes.
 * So no reactor does it. The thread is started by the first release. A close waits for it for a bounded time; what is
 * stuck then stays until the process ends.
 *
 * Any thread may call these functions, but none after trib_rdma_releaser_close.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_RELEASE_H
#define TRIB_TRANSPORTS_RDMA_RDMA_RELEASE_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct verbs_releaser verbs_releaser;

/* An id or a channel that will be released; the other one is NULL. It is allocated along with its object, so that a
 * release allocates nothing. */
typedef struct verbs_remains {
    struct verbs_remains *next;
    struct rdma_cm_id *id;
    struct rdma_event_channel *channel; /* its ids must be released before */
} verbs_remains;

verbs_releaser *trib_rdma_releaser_create(void); /* NULL if out of memory */
/* Waits as trib_rdma_releaser_drain does. */
void trib_rdma_releaser_close(verbs_releaser *self); /* NULL is fine */

/* Destroys the id or channel later, in order, and frees the remains. Nothing may use it from here on. The id's queue
 * pair must be gone; its late events find no context. */
void trib_rdma_release(verbs_releaser *self, verbs_remains *remains);

/* Waits for a bounded time until everything is released; returns how many are not. */
uint32_t trib_rdma_releaser_drain(verbs_releaser *self);

#endif
