/*
 * rdma_domain.h - the RDMA devices of this machine, and the memory that they know.
 *
 * All instances of an engine share one domain. It does not change between open and close. The arena calls its
 * registrars from any thread.
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_DOMAIN_H
#define TRIB_TRANSPORTS_RDMA_RDMA_DOMAIN_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>

#include "numa/arena.h"
#include "transports/rdma/rdma_release.h"

#define TRIB_RDMA_DEVICES_MAX (TRIB_ARENA_REGISTRARS_MAX - 1) /* one registrar is left for CUDA */

typedef struct verbs_device {
    struct ibv_context *verbs;
    struct ibv_pd *pd;
    trib_arena *arena; /* NULL: the domain has no arena */
    uint32_t registrar;
    bool is_registrar;
    atomic_int failure; /* errno of the last extent that could not be registered; 0: none */
} verbs_device;

typedef struct verbs_domain {
    struct ibv_context **list; /* as librdmacm returned it */
    uint32_t device_count;
    int fork_failure; /* errno of ibv_fork_init; 0: none */
    verbs_releaser *releaser;
    verbs_device devices[TRIB_RDMA_DEVICES_MAX];
} verbs_domain;

/* Memory that one device knows. */
typedef struct verbs_block {
    unsigned char *data;
    size_t size;
    uint32_t local_key, remote_key;
    struct ibv_mr *mr; /* NULL: the memory is the arena's */
} verbs_block;

/* arena may be NULL. TRIB_UNSUPPORTED if there is no device; TRIB_SYSTEM, with advice in *error, if memory cannot be
 * registered. */
TRIB_CHECKED trib_status trib_rdma_domain_open(trib_arena *arena, verbs_domain **domain_out, trib_error *error);
void trib_rdma_domain_close(verbs_domain *domain); /* NULL is fine */

/* True if a port is active. */
bool trib_rdma_domain_is_active(const verbs_domain *domain);

/* The device with that context of librdmacm; NULL if it appeared after the domain was opened. */
verbs_device *trib_rdma_device_of(verbs_domain *domain, const struct ibv_context *verbs);

/* Looks up the keys of memory; false if it is not registered as a whole. */
bool trib_rdma_device_find(verbs_device *device, const void *data, size_t size, uint32_t *local_key_out,
                           uint32_t *remote_key_out);

/* True if every device of the domain knows all of that memory. All must, because another device may take
 * over. */
bool trib_rdma_domain_knows(verbs_domain *domain, const void *memory, size_t size);

/* Takes page-aligned memory of the arena if the device knows that, otherwise allocates and registers memory. */
TRIB_CHECKED trib_status trib_rdma_block_take(verbs_device *device, size_t size, verbs_block *block_out,
                                              trib_error *error);
void trib_rdma_block_give(verbs_device *device, verbs_block *block);

/* True if a verbs call that destroys something succeeded, or if the device has been removed or reset (EIO), so that
 * the kernel holds nothing any more. False: the object stays, which is better than ending the process. */
static inline bool trib_rdma_is_gone(int error)
{
    return error == 0 || error == EIO;
}

/* Says why memory could not be registered, and what to do. */
trib_status trib_rdma_register_error(trib_error *error, const verbs_device *device, size_t size, int number);

#endif
