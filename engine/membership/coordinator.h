/*
 * coordinator.h - keeps the membership: the members, the tensors, the owners of their partitions, and losses.
 *
 * The coordinator runs on core 0 of one engine: that of rank 0, or a dedicated one. It speaks to members only over
 * control links. The member of its own process uses such a link, too, so there is one path for all.
 */
#ifndef TRIB_ENGINE_COORDINATOR_H
#define TRIB_ENGINE_COORDINATOR_H

#include "engine/core/core.h"

typedef struct trib_coordinator trib_coordinator;

/* Listens at engine->coordinator_address. *bound_out gets the actual address. */
TRIB_CHECKED trib_status trib_coordinator_open(trib_core *core, trib_address *bound_out, trib_error *error);
void trib_coordinator_close(trib_coordinator *self);
/* Writes the missing members as text. size: at least 200. */
void trib_coordinator_list_missing(const trib_coordinator *self, char *text, size_t size);
/* Takes over an accepted control link that has proved the token. */
void trib_coordinator_adopt(trib_link *link);
/* True if no other worker is still in the job. */
bool trib_coordinator_is_alone(const trib_coordinator *self);
/* Tells all members that the engine of this process has ended for that cause. The end is orderly if no worker is
 * left. */
void trib_coordinator_end(trib_coordinator *self, const trib_cause *cause);

#endif
