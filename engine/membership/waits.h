/*
 * waits.h - the coordinator's side of stalls (worker/worker_stall.c): what workers wait for, and who waits for whom.
 *
 * A worker whose operation lacks another worker's contribution says so about once a second. The coordinator answers
 * with what that one waits for, if it has said so of late. Texts alone depend on that, as a worker that is only late
 * still comes.
 *
 * A name of the program may stand for several tensors, one for each shape (trib_tensor_desc.name_length). Two workers
 * disagree if the same use of a name is an operation on different ones of these tensors for them. A worker says which
 * use it is only where it knows that, so its word stays true. Both tensors become bad, as where declarations differ.
 *
 * All tensors of a group whose operations the program numbers (TRIB_TENSOR_NUMBERED) are as those of one name, which is
 * empty: the number is the use.
 */
#ifndef TRIB_ENGINE_WAITS_H
#define TRIB_ENGINE_WAITS_H

#include "engine/membership/coordinator_internal.h"

/* Takes WAITING. */
TRIB_CHECKED trib_status trib_waits_take(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                         trib_error *error);
/* All workers have joined (trib_join), so they count the uses of names anew. */
void trib_waits_clear(trib_coordinator *self);

#endif
