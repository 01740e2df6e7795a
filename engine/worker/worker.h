/*
 * worker.h - what the parts of the worker's side share: worker.c (operations and rounds), worker_abort.c (giving up),
 * worker_link.c (links and what arrives). Everything is called on the core's own thread.
 */
#ifndef TRIB_ENGINE_WORKER_H
#define TRIB_ENGINE_WORKER_H

#include "engine/worker/op.h"

/* A placed tensor's share on that core. */
static inline trib_tensor_core *trib_tensor_core_of(const trib_core *core, const trib_tensor *tensor)
{
    return &tensor->cores[core->reactor->index];
}

/* ---- worker.c ---- */
/* Frames that name the placed tensor find it from here on. False: out of memory. */
bool trib_worker_know_tensor(trib_core *core, trib_tensor *tensor);
/* An op_core that has failed before its turn: the operation may complete, the op_core stays in the books to spend its round. */
void trib_worker_release(trib_core *core, trib_op_core *op_core);
/* Starts the next round of a placed tensor if it may begin. */
void trib_worker_start_next(trib_core *core, trib_tensor *tensor);

/* ---- worker_abort.c ---- */
/* Tells the task's server that this worker's contribution to the round will not come. */
void trib_worker_withdraw(trib_core *core, trib_task *task);
/* The exchange with the task's server is given up: it is told so, keeps what it has got, and leaves the caller's buffers. */
void trib_worker_give_up_exchange(trib_core *core, trib_task *task);
/* Fails what has not settled of the round that runs. The reason is in the operation already. */
void trib_worker_abort_active(trib_core *core, trib_op_core *op_core);
/* What the op_core waits for, in words; returns text. */
const char *trib_worker_waiting_text(trib_core *core, trib_op_core *op_core, char *text, size_t size);
/* The op_core's deadline, a timer whose user is the op_core. */
void trib_worker_deadline_passed(trib_reactor *reactor, trib_timer *timer);
/* The op_core's cancel_post. */
void trib_worker_cancel_arrived(trib_reactor *reactor, trib_post *post);

/* ---- worker_link.c ---- */
/* Who sums the task's partition, or relays it; TRIB_NO_MEMBER: nobody. */
uint32_t trib_worker_owner(const trib_core *core, const trib_task *task);
/* The link to that one's core; NULL: it is gone. */
trib_link *trib_worker_owner_link(const trib_core *core, const trib_task *task);
/* What the frames to a relay say about who sums it; 0: they go to whom it is. */
uint32_t trib_worker_owner_code(const trib_core *core, const trib_task *task);

/* ---- worker_held.c ---- */
/* The task's round is given up: if all of it has gone to its owner, that keeps it and will answer. */
void trib_worker_keep_round(trib_task *task);
/* Must the task wait, because its owner keeps too many rounds? Then it is held, and pushed when one is answered. */
bool trib_worker_hold_back(trib_task *task);
/* Something came about a round that may be kept. The frame names a tensor and a partition that are here. */
void trib_worker_hear_of_kept(trib_link *link, const trib_frame *frame);
/* What a task that is held waits for. */
void trib_worker_held_text(const trib_core *core, const trib_task *task, char *text, size_t size);

#endif
