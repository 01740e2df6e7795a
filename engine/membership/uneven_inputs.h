/*
 * uneven_inputs.h - the coordinator's side of trib_join: workers with different amounts of data.
 *
 * A worker without more data says so when none of its operations is under way (JOIN_DONE), with its last round of each
 * tensor. All members learn of it (JOINED), and those that sum let it contribute neutral elements from then on. When
 * the last worker has joined, nothing is under way in the whole job. Members that sum are told first that nobody has
 * joined any more, and answer (JOIN_HEARD): a worker's next contribution must not be taken for a missing one. Then each
 * worker gets the rank that joined last, and the largest rounds of all (JOIN_OVER), so that round numbers agree again.
 */
#ifndef TRIB_ENGINE_UNEVEN_INPUTS_H
#define TRIB_ENGINE_UNEVEN_INPUTS_H

#include "engine/membership/coordinator_internal.h"

/* Takes JOIN_DONE and JOIN_HEARD. Any other frame is unexpected. */
TRIB_CHECKED trib_status trib_uneven_inputs_take(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                 const void *payload, trib_error *error);
/* A member has left, or its link has ended: nobody waits for its answer, and a worker will never join. */
void trib_uneven_inputs_check(trib_coordinator *self);

#endif
