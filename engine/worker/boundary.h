/*
 * boundary.h - a boundary between operations (trib_checkpoint): all workers have submitted the same operations before
 * it, and are through with them alike.
 *
 * It is an all-reduce on a tensor of the engine's own. Its input is a digest of what this worker has submitted before,
 * and of what has failed of that here. The result tells whether all digests are the same, and who differs. So a loss,
 * a deadline and a worker that does not come have the outcome that they have for any other operation.
 *
 * A worker contributes when all its earlier operations are over: they are marked when the boundary is submitted, and
 * core 0 keeps the boundary back until none of them is left. What is submitted later does not wait, and is not counted.
 */
#ifndef TRIB_ENGINE_BOUNDARY_H
#define TRIB_ENGINE_BOUNDARY_H

#include "engine/worker/op.h"

#define TRIB_BOUNDARY_NAME "__checkpoint"

/* ---- Submitting; the caller holds the engine's mutex ---- */
/* TRIB_STATE: an earlier boundary is under way. */
TRIB_CHECKED trib_status trib_boundary_check(trib_engine *engine, trib_error *error);
/* An operation begins. A boundary marks all that are under way. */
void trib_boundary_count(trib_op *op);
/* The boundary has been posted. */
void trib_boundary_posted(trib_engine *engine);
/* Nothing has been submitted yet: an epoch begins that knows no round of the last one, or all have joined. */
void trib_boundaries_reset(trib_engine *engine);

/* ---- Core 0 ---- */
/* Returns true if the boundary waits for earlier operations; it arrives again when they are over. */
TRIB_CHECKED bool trib_boundary_waits(trib_core *core, trib_op_core *op_core);
/* The core has ended, and the boundaries that waited on it have been dropped. */
void trib_boundary_drop_all(trib_core *core);

/* ---- Any core ---- */
/* The operation is complete, well or not, and its callback has not begun. A boundary that finds that workers differ
 * fails. */
void trib_boundary_op_over(trib_op *op);

#endif
