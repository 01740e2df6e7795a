/*
 * op_carry.h - operations that go on in the next epoch: after the loss of a member in a job with TRIB_SURVIVE=continue,
 * the engine submits again the operations that the end of the epoch has cut short, with the inputs that they had.
 *
 * All workers have heard of the same rounds when an epoch ends (op_commit.h). So for each tensor the first round that
 * is not over everywhere is the same on all of them. Each worker submits again, in their order, all its operations from
 * there on, also those that have failed here alone: these spend their rounds. So the n-th one of a worker meets the
 * n-th one of every other, however far each has come. Operations that are submitted while the membership changes wait
 * behind them.
 *
 * Where the result lands in the input, the engine keeps a copy of the input until the operation is over: in memory of
 * the host, also of what is on a device. The next epoch reads the copy.
 */
#ifndef TRIB_ENGINE_OP_CARRY_H
#define TRIB_ENGINE_OP_CARRY_H

#include "engine/worker/op.h"

/* ---- Submitting; the caller holds the mutex ---- */
/* True if operations wait for the next epoch. */
static inline bool trib_carry_parks(const trib_engine *engine)
{
    return engine->formation.parks;
}
/* The operation waits for the next epoch. */
void trib_carry_park(trib_op *op);
/* Takes memory for a copy of the input, if the result may overwrite it. Releases the mutex meanwhile for a tensor on a
 * device. */
TRIB_CHECKED trib_status trib_carry_reserve(trib_op *op, const trib_op_params *params, trib_collective collective,
                                            const trib_tensor *tensor, trib_error *error);
/* Frees the memory of the copy, because the operation was not taken, or never ended. */
void trib_carry_free(trib_op *op);

/* ---- Any core ---- */
/* Copies the parts of the input that the core's tasks read, if the operation keeps a copy. */
void trib_carry_keep(trib_core *core, trib_op_core *op_core);
/* This operation is over: spares the memory of the copy for the next one on its tensor, or frees it. */
void trib_carry_release(trib_op *op);
/* Frees the spare copies of a tensor that is about to be placed anew, or forgotten. */
void trib_carry_free_spare(trib_tensor *tensor);

/* Any thread: the end of an epoch, which may let it go on in the next one, is all that the operation has failed for. */
bool trib_carry_is_cut(const trib_op *op);

/* ---- Core 0 ---- */
/* The core has ended. Returns true if the operation goes on in the next epoch, or spends its round there. */
TRIB_CHECKED bool trib_carry_take(trib_core *core, trib_op *op);
/* The cores are open again: submits the operations that were carried over. */
void trib_carry_submit(trib_engine *engine);
/* There is no next epoch: fails the operations that were carried over. Returns true if there were any: they complete
 * before the engine counts as closed. */
bool trib_carry_abandon(trib_core *core);

#endif
