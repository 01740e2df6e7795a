/*
 * registry.c - the list of the transports that are compiled in. It is explicit: nothing registers itself.
 *
 * Invariant: `names` and `transports` have the same order, and every table is complete (checked at each look-up).
 */

#include "transports/registry.h"

#include <string.h>

#include "engine/base/assert.h"
#include "transports/auto/auto.h"
#include "transports/rdma/rdma.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/transport_defaults.h"

static const trib_transport_ops *const transports[] = {
    &trib_auto_ops,
    &trib_tcp_ops,
    &trib_shm_ops,
#if TRIB_HAVE_RDMA
    &trib_rdma_ops,
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
               "every transport needs a name");

const trib_transport_ops *trib_transport_by_name(const char *name)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        trib_transport_check_ops(transports[i]);
        trib_assert(strcmp(transports[i]->name, names[i]) == 0);
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
