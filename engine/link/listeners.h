/* listeners.h - the listeners of a reactor: one for each address of a list, so that peers have several ways to it. */
#ifndef TRIB_ENGINE_LINK_LISTENERS_H
#define TRIB_ENGINE_LINK_LISTENERS_H

#include "engine/link/link.h"

typedef struct trib_listeners {
    trib_listener *each[TRIB_NETWORKS_MAX];
    uint32_t count;
} trib_listeners;

/* Listens on each address of the list that works; at least one must. *bound_out is the list that peers connect to. */
TRIB_CHECKED trib_status trib_listeners_open(trib_listeners *self, trib_link_host *host, const trib_address *list,
                                             trib_address *bound_out, trib_error *error);
/* May be called again. */
void trib_listeners_close(trib_listeners *self);

#endif
