/*
 * coordinator.h - keeps the membership: the members, the tensors, the owners of their partitions, and losses.
 *
 * Lives on core 0 of one engine (rank 0's, or one of its own) and speaks to members over control links alone, its own
 * process's member included, so there is one path for all.
 */
#ifndef TRIB_ENGINE_COORDINATOR_H
#define TRIB_ENGINE_COORDINATOR_H

#include "engine/core/core.h"

typedef struct trib_coordinator trib_coordinator;

/* Listens at engine->coordinator_address; *bound_out is where. */
TRIB_CHECKED trib_status trib_coordinator_open(trib_core *core, trib_address *bound_out, trib_error *error);
void trib_coordinator_close(trib_coordinator *self);
/* The members that have not joined, as a text; size: 200 or more. */
void trib_coordinator_list_missing(const trib_coordinator *self, char *text, size_t size);
/* An accepted control link has proved itself. */
void trib_coordinator_adopt(trib_link *link);
/* No other worker is still in the job. */
bool trib_coordinator_is_alone(const trib_coordinator *self);
/* Nobody is to come any more. */
void trib_coordinator_stop_listening(trib_coordinator *self);
/* The engine of this process has ended for that cause: tells everybody, as an orderly end if no worker is left. */
void trib_coordinator_end(trib_coordinator *self, const trib_cause *cause);

#endif
