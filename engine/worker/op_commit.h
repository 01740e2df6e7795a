/*
 * op_commit.h - an operation succeeds on all workers or on none: in a job that goes on after the loss of a worker
 * (TRIB_SURVIVE=workers), an operation that a worker is through with completes when every worker of the job is through
 * with its round.
 *
 * Core 0 tells the coordinator of rounds that are over here (SETTLED), and the coordinator tells all of the rounds that
 * are over everywhere (COMMIT). It tells of the end of an epoch on the same links, behind its last COMMIT. So all that
 * are left agree about which operations succeeded, whoever was lost and whoever summed. A worker's own deadline may end
 * an operation on this worker alone.
 */
#ifndef TRIB_ENGINE_OP_COMMIT_H
#define TRIB_ENGINE_OP_COMMIT_H

#include "engine/worker/op.h"

/* Any core: the operation's last core is done with it. Returns true if the operation has to wait for the other
 * workers. */
TRIB_CHECKED bool trib_commit_holds(trib_op *op);
/* Any core: the last core has unlinked the operation. Returns true if its reference is passed on to core 0, which tells
 * the coordinator. */
TRIB_CHECKED bool trib_commit_report(trib_op *op);
/* Notes that the tensor's round has succeeded. A worker is through with a tensor's rounds in their order, so the last
 * one tells of all. Returns false if memory runs out. */
TRIB_CHECKED bool trib_commit_note(trib_formation *formation, uint32_t tensor, uint32_t round);
/* Core 0: takes a COMMIT. */
TRIB_CHECKED trib_status trib_commit_take(trib_core *core, const trib_frame *frame, const void *payload,
                                          trib_error *error);
/* Core 0: the tensor's rounds up to that one have succeeded, as was decided without the coordinator. */
void trib_commit_settle(trib_core *core, uint32_t tensor, uint32_t round);
/* Core 0, at every tick: operations that wait may be cancelled, or pass their deadlines. */
void trib_commit_check(trib_core *core);
/* Core 0: the epoch or the job is over. Operations that wait fail, and so do later ones. */
void trib_commit_fail_all(trib_core *core, trib_status status, const char *text);

#endif
