/*
 * rdma_release.h - gives ids and channels of the connection manager back to the kernel, on a thread of its own.
 *
 * To destroy an id may take as long as the kernel likes: some wait for a word of the network's that never comes. So no
 * reactor does it. The thread is made when there is something to release for the first time. Whoever closes waits for
 * it, but not for ever: what is stuck then stays until the process ends.
 *
 * Any thread may call; not after trib_rdma_releaser_close.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_RELEASE_H
#define TRIB_TRANSPORTS_RDMA_RDMA_RELEASE_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct verbs_releaser verbs_releaser;

/* What will be released, some time: one of the two. Made along with it, so that releasing allocates nothing. */
typedef struct verbs_remains {
    struct verbs_remains *next;
    struct rdma_cm_id *id;
    struct rdma_event_channel *channel; /* its ids must have been handed over before */
} verbs_remains;

verbs_releaser *trib_rdma_releaser_create(void); /* NULL: no memory */
/* Waits as trib_rdma_releaser_drain does. */
void trib_rdma_releaser_close(verbs_releaser *self); /* NULL is fine */

/* Destroys it some time later, in order, and frees the remains. Nothing else may use it from here on; an id's queue pair
 * must be gone, and events that still come for it find no context. */
void trib_rdma_release(verbs_releaser *self, verbs_remains *remains);

/* Waits until everything has been released, a bounded time altogether. Answers how much has not. */
uint32_t trib_rdma_releaser_drain(verbs_releaser *self);

#endif
