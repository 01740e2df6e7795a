/* registry.h - the transports that are compiled in, by name. */
#ifndef TRIB_TRANSPORTS_REGISTRY_H
#define TRIB_TRANSPORTS_REGISTRY_H

#include "transports/transport.h"

/* NULL if there is none of that name. "auto" works between any two machines and chooses the best for each pair. */
const trib_transport_ops *trib_transport_by_name(const char *name);

/* The names, NULL-terminated. */
const char *const *trib_transport_names(void);

#endif
