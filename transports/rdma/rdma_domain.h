/*
 * rdma_domain.h - the RDMA devices of this machine, and the memory that they know.
 *
 * A domain is shared by all instances of an engine. It is complete when it has been opened and does not change until it
 * is closed; the arena calls its registrars from any thread.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_DOMAIN_H
#define TRIB_TRANSPORTS_RDMA_RDMA_DOMAIN_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>

#include "numa/arena.h"
#include "transports/rdma/rdma_release.h"

#define TRIB_RDMA_DEVICES_MAX (TRIB_ARENA_REGISTRARS_MAX - 1) /* CUDA wants to know the arena's memory too */

typedef struct verbs_device {
    struct ibv_context *verbs;
    struct ibv_pd *pd;
    trib_arena *arena; /* NULL: none */
    uint32_t registrar;
    bool is_registrar;
    atomic_int failure; /* errno of the last extent that could not be registered, 0: none */
} verbs_device;

typedef struct verbs_domain {
    struct ibv_context **list; /* as librdmacm gave it */
    uint32_t device_count;
    int fork_failure; /* errno of ibv_fork_init */
    verbs_releaser *releaser;
    verbs_device devices[TRIB_RDMA_DEVICES_MAX];
} verbs_domain;

/* Memory that one device knows. */
typedef struct verbs_block {
    unsigned char *data;
    size_t size;
    uint32_t local_key, remote_key;
    struct ibv_mr *mr; /* NULL: it is the arena's */
} verbs_block;

/* arena may be NULL. TRIB_UNSUPPORTED where there is no device; TRIB_SYSTEM, with what to do, where memory cannot be
 * registered. */
TRIB_CHECKED trib_status trib_rdma_domain_open(trib_arena *arena, verbs_domain **domain_out, trib_error *error);
void trib_rdma_domain_close(verbs_domain *domain); /* NULL is fine */

/* Whether there is a port that could carry anything now. */
bool trib_rdma_domain_is_active(const verbs_domain *domain);

/* The device that librdmacm calls by that context; NULL if it came later than the domain. */
verbs_device *trib_rdma_device_of(verbs_domain *domain, const struct ibv_context *verbs);

/* The keys of memory that is registered as a whole; false if it is not. */
bool trib_rdma_device_find(verbs_device *device, const void *data, size_t size, uint32_t *local_key_out,
                           uint32_t *remote_key_out);

/* True if every device of the domain knows that memory as a whole: another device may take over (failover.h). */
bool trib_rdma_domain_knows(verbs_domain *domain, const void *memory, size_t size);

/* Page-aligned memory of the arena if it is registered there, else memory of its own. */
TRIB_CHECKED trib_status trib_rdma_block_take(verbs_device *device, size_t size, verbs_block *block_out,
                                              trib_error *error);
void trib_rdma_block_give(verbs_device *device, verbs_block *block);

/* What verbs answer to the wish to be rid of something. A device that has been removed or reset says EIO: the kernel holds
 * nothing of it any more. False: it is still held, and stays so, which is better than the end of the process. */
static inline bool trib_rdma_is_gone(int error)
{
    return error == 0 || error == EIO;
}

/* Why memory could not be registered, and what to do. */
trib_status trib_rdma_register_error(trib_error *error, const verbs_device *device, size_t size, int number);

#endif
