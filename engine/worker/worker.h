/*
 * worker.h - functions shared by the worker's side: worker.c (operations and rounds), worker_abort.c (giving up),
 * worker_link.c (links and incoming frames), worker_held.c (rounds held back). All run on the core's own thread.
 */
#ifndef TRIB_ENGINE_WORKER_H
#define TRIB_ENGINE_WORKER_H

#include "engine/worker/op.h"

/* Returns the core's part of a placed tensor. */
static inline trib_tensor_core *trib_tensor_core_of(const trib_core *core, const trib_tensor *tensor)
{
    return &tensor->cores[core->reactor->index];
}

#define TRIB_NONTEMPORAL_BYTES (UINT64_C(32) << 20) /* copies of larger tensors bypass the caches */

/* ---- worker.c ---- */
/* Registers a placed tensor, so that frames can find it by id. Returns false if memory runs out. */
bool trib_worker_know_tensor(trib_core *core, trib_tensor *tensor);
/* Notes that the tensor has ended. Frames about it may still arrive, and are dropped. */
void trib_worker_forget_tensor(trib_core *core, const trib_tensor *tensor);
/* Returns true if the frame is about a round of a tensor that has ended. */
static inline bool trib_worker_is_about_ended(const trib_core *core, const trib_frame *frame)
{
    return frame->tensor < core->tensors_capacity && frame->round <= core->rounds_over[frame->tensor];
}
/* Releases an op_core that failed before its turn: the operation may complete. The op_core stays linked until its
 * round's turn. */
void trib_worker_release(trib_core *core, trib_op_core *op_core);
/* Starts the next round of a placed tensor if it may begin. */
void trib_worker_start_next(trib_core *core, trib_tensor *tensor);

/* A part of the core's share of the running round is over: a task, or the copy of the input (op_carry.h). */
void trib_worker_part_settled(trib_core *core, trib_op_core *op_core);

/* ---- worker_quorum.c ---- */
/* Takes QUORUM_SET: the sums of the operation lack some workers' contributions. task NULL: it is over here. */
TRIB_CHECKED trib_status trib_worker_take_set(const trib_link *link, trib_task *task, const trib_frame *frame,
                                              const void *payload, trib_error *error);

/* ---- worker_abort.c ---- */
/* Sends a withdraw: this worker's contribution to the round will not arrive. */
void trib_worker_withdraw(trib_core *core, trib_task *task);
/* Gives up the exchange with the task's server: withdraws, records a kept round, and frees the caller's buffers
 * from the server. */
void trib_worker_give_up_exchange(trib_core *core, trib_task *task);
/* Fails the open tasks of the running round. The operation already has the reason. */
void trib_worker_abort_active(trib_core *core, trib_op_core *op_core);
/* Writes what the op_core waits for into text, and returns text. */
const char *trib_worker_waiting_text(trib_core *core, trib_op_core *op_core, char *text, size_t size);
/* The timer of the op_core's deadline has fired; its user is the op_core. */
void trib_worker_deadline_passed(trib_reactor *reactor, trib_timer *timer);
/* Runs the op_core's cancel_post. */
void trib_worker_cancel_arrived(trib_reactor *reactor, trib_post *post);

/* ---- worker_stall.c ---- */
/* The coordinator's answer about a worker for which an operation waits: what that worker waits for itself. */
typedef struct trib_stall_answer {
    uint32_t rank;
    bool is_crossed; /* it waits for this worker */
    char what[TRIB_ERROR_TEXT_SIZE];
} trib_stall_answer;
/* Returns false if the coordinator has not told that of late. Any core. */
bool trib_worker_stall_answer(const trib_core *core, const trib_op *op, trib_stall_answer *answer_out);
/* Takes a checked STALL of an open task. */
void trib_worker_note_missing(const trib_core *core, trib_task *task, const trib_frame *frame, const void *payload);
/* Core 0: takes WAITED_FOR. */
TRIB_CHECKED trib_status trib_worker_take_waited_for(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                     trib_error *error);

/* ---- worker_link.c ---- */
/* Returns the member that this task is pushed to: the partition's owner or a relay. TRIB_NO_MEMBER: none. */
uint32_t trib_worker_owner(const trib_core *core, const trib_task *task);
/* True if the member is a server whose leave ends the epoch on all members alike. This core may see its connection end
 * before it hears that. */
static inline bool trib_worker_leave_ends_epoch(const trib_core *core, uint32_t member)
{
    return atomic_load(&core->engine->shrinks) && member >= core->engine->roster->worker_count;
}
/* Returns the link to that member's core; NULL: the link is gone. */
trib_link *trib_worker_owner_link(const trib_core *core, const trib_task *task);
/* Returns the link over which this process pushes the partition: the worker's contribution or, if this worker relays
 * the partition, the machine's. NULL: none. */
trib_link *trib_worker_egress_link(const trib_core *core, const trib_task *task);
/* Returns the owner code that frames to a relay carry; 0 if there is no relay. */
uint32_t trib_worker_owner_code(const trib_core *core, const trib_task *task);

/* ---- worker_held.c ---- */
/* Records a round that is given up after all its chunks were sent; its owner keeps it and will answer. */
void trib_worker_keep_round(trib_task *task);
/* True if the round was given up here, and its owner has not answered it. */
bool trib_worker_awaits_answer(const trib_task *task, uint32_t round);
/* Returns true, and holds the task back, if its owner keeps the maximum of given-up rounds. The task is pushed
 * when one is answered. */
bool trib_worker_hold_back(trib_task *task);
/* Handles a frame about a round that may be kept. The tensor and partition of the frame are valid here. */
void trib_worker_take_kept_answer(trib_link *link, const trib_frame *frame);
/* Forgets kept rounds up to this one. No answer will come, because all workers have joined since (trib_join). */
void trib_worker_forget_kept(trib_task *task, uint32_t round);
/* Writes what a held-back task waits for. */
void trib_worker_held_text(const trib_core *core, const trib_task *task, char *text, size_t size);

#endif
