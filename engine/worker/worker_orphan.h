/*
 * worker_orphan.h - the worker's side of the loss of a server that costs nothing (TRIB_SURVIVE=servers).
 *
 * A worker has of each partition either its whole input or the whole sum, or another worker has the sum for it. So the
 * sum lands in the task's copy, and moves to an output that is the input, too, when all of it is there. The copy is
 * kept until the next round's sum begins to land. That sum needs every worker's next contribution, so by then all
 * workers have the last one. In a broadcast the root alone keeps a copy, because it is told last that the round is
 * complete.
 *
 * In an all-reduce of several partitions one worker, the partition's keeper, keeps the copy for all (server/keeper.h).
 * A SUM that says that the keeper has the sum lands in the output directly, even if that is the input, and leaves no
 * copy. The keeper's copy stays until all workers are through with the round, so the round's sum is sent from the copy,
 * and contributions are never pushed again.
 *
 * When a server is lost, each worker closes its links to it. Then it tells the partition's next owner (REPORT) its last
 * round, whether it still has the input for it, and whose round's sum it has in its copy. The owner answers all workers
 * when all have reported (server/takeover.h). RESUME says whether this worker is to give its copy away, as the root of
 * a broadcast that takes the place of that round, and whether its own round is such a broadcast of another worker.
 * Otherwise the worker pushes its input again.
 *
 * A worker that was told of the tensor only after the loss has another owner from the beginning, and one that has
 * released it knows no partition any more. Neither reports by itself. The owner asks for reports that are missing
 * (ASK_REPORT), and such a worker answers that it waits for nothing.
 *
 * Invariants
 *
 * - No frame about the partition goes to its next owner between REPORT and RESUME.
 * - No round of the tensor begins on the core while it has orphans, nor does the tensor end.
 */
#ifndef TRIB_ENGINE_WORKER_ORPHAN_H
#define TRIB_ENGINE_WORKER_ORPHAN_H

#include "engine/worker/worker.h"

/* Core 0, before the cores hear of the loss: writes the next owners of the server's partitions. Returns false if no
 * member is left that can sum. */
TRIB_CHECKED bool trib_worker_replace_owners(trib_engine *engine, uint32_t member);
/* Any core: lets all cores go on with the losses. */
void trib_worker_post_losses(trib_engine *engine);
/* Goes on with the losses that the core has heard of, as far as all links to those servers have ended. */
void trib_worker_take_losses(trib_core *core);
/* Frees what is left when the job is over. */
void trib_worker_free_orphans(trib_core *core);

/* Returns true if the task cannot be pushed, because its owner is lost and has no successor yet. The task is pushed
 * when that is known, or fails when the epoch ends. */
bool trib_orphan_awaits_owner(const trib_core *core, const trib_task *task);
/* Notes that the task is given up: its next owner hears of it after RESUME. */
void trib_orphan_withdraw(trib_task *task);
/* Takes an ASK_REPORT. */
TRIB_CHECKED trib_status trib_orphan_answer(trib_link *link, const trib_frame *frame, trib_error *error);
/* Takes a RESUME. */
TRIB_CHECKED trib_status trib_orphan_resume(trib_link *link, const trib_frame *frame, trib_error *error);

/* True if the task's owner may be lost without a loss of its sums. */
bool trib_copy_is_made(const trib_core *core, const trib_task *task);
/* Decides where the round's sum lands. Called before each push of the round. */
void trib_copy_prepare(const trib_core *core, trib_task *task);
/* A chunk of the sum is about to land: drops the part of another round's sum that the copy has. */
static inline void trib_copy_begin(trib_task *task)
{
    task->has_landed = true;
    task->copy_round = task->lands_in_copy ? 0 : task->copy_round;
}
/* Notes a chunk of the sum that has arrived and is not counted yet. */
void trib_copy_take(const trib_core *core, trib_task *task, uint32_t chunk);

#endif
