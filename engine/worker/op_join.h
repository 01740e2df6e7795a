/*
 * op_join.h - join: a worker has no more data, and waits until all others have none either.
 *
 * The operation takes no round and pushes nothing. Core by core, it waits until the operations before it have settled,
 * so no contribution of this worker is on its way when the coordinator learns of it. The coordinator answers when all
 * have joined (membership/uneven_inputs.h), with the rounds that the others have gone ahead. The cores take these, and
 * the operation completes.
 */
#ifndef TRIB_ENGINE_OP_JOIN_H
#define TRIB_ENGINE_OP_JOIN_H

#include "engine/worker/op_submit.h"
#include "engine/worker/worker.h"

/* The caller holds the mutex. TRIB_STATE: this worker has joined, and submits nothing until all have. TRIB_PEER_LEFT: a
 * worker left meanwhile, so that never comes. */
TRIB_CHECKED trib_status trib_op_join_check(const trib_engine *engine, trib_error *error);
/* Any thread. request->params->output, if it is not NULL, gets the rank that joined last. */
TRIB_CHECKED trib_status trib_op_join(trib_engine *engine, trib_request *request, trib_error *error);
/* Continues the operation when the core may have settled its last operation, or has its links now. */
void trib_op_join_continue(trib_core *core);
/* Core 0: takes JOIN_OVER from the coordinator. */
TRIB_CHECKED trib_status trib_op_join_take_over(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                trib_error *error);
/* Core 0: the job has ended. */
void trib_op_join_fail(trib_core *core, trib_status status, const char *text);

#endif
