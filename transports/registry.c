/* registry.c - an explicit list: what is compiled in can be read here, and nothing registers itself. */

#include "transports/registry.h"

#include <string.h>

#include "engine/base/assert.h"
#include "transports/failover/failover.h"
#include "transports/rdma/rdma.h"
#include "transports/shm/shm.h"

static const trib_transport_ops *const transports[] = {
    &trib_failover_auto_ops,
    &trib_failover_tcp_ops,
    &trib_shm_ops,
#if TRIB_HAVE_RDMA
    &trib_failover_rdma_ops,
#endif
};
static const char *const names[] = {
    "auto", "tcp", "shm",
#if TRIB_HAVE_RDMA
    "rdma",
#endif
    NULL,
};

_Static_assert(sizeof names / sizeof names[0] == sizeof transports / sizeof transports[0] + 1,
               "every transport has a name");

static void check_complete(const trib_transport_ops *ops, const char *name)
{
    trib_assert(ops->name != NULL && strcmp(ops->name, name) == 0);
    trib_assert(ops->open != NULL && ops->close != NULL);
    trib_assert(ops->listen != NULL && ops->listener_close != NULL);
    trib_assert(ops->connect != NULL && ops->conn_close != NULL);
    trib_assert(ops->send != NULL && ops->recv_resume != NULL);
    trib_assert(ops->stats != NULL);
}

const trib_transport_ops *trib_transport_by_name(const char *name)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        check_complete(transports[i], names[i]);
        if (strcmp(names[i], name) == 0) {
            return transports[i];
        }
    }
    return NULL;
}

const char *const *trib_transport_names(void)
{
    return names;
}
