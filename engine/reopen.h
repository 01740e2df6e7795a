/*
 * reopen.h - between two epochs: opens an engine's cores again, on the same reactors, when all of them have closed
 * their links (job/formation.h). Handles of the caller stay: tensors are declared again, as they are.
 */
#ifndef TRIB_ENGINE_REOPEN_H
#define TRIB_ENGINE_REOPEN_H

#include "engine/job/job.h"

/* Core 0, by the formation's reopen_post. */
void trib_engine_reopen(trib_reactor *reactor, trib_post *post);
/* The coordinator and the member of this process, as its roles say. */
TRIB_CHECKED trib_status trib_engine_open_membership(trib_engine *engine, trib_error *error);

#endif
