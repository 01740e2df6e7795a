/* registry.h - the transports that are compiled in, by name. */
#ifndef TRIB_TRANSPORTS_REGISTRY_H
#define TRIB_TRANSPORTS_REGISTRY_H

#include "transports/transport.h"

/* Returns NULL if no transport has that name. "auto" works between any two machines; it picks the best transport for
 * each pair of processes. */
const trib_transport_ops *trib_transport_by_name(const char *name);

/* The names of all transports, with NULL behind the last. */
const char *const *trib_transport_names(void);

#endif
