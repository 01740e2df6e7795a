/*
 * worker_held.c - rounds that were given up here after all of this worker's contribution was sent. The owner keeps
 * such a round until the other contributions arrive, and answers then.
 *
 * An owner keeps at most TRIB_SUM_KEPT_ROUNDS_MAX such rounds of a partition from one worker. A further round is
 * held back here until one of them is answered. A held task takes no memory and delays nothing else.
 *
 * Invariants
 *
 * - A round given up before all of it was sent is withdrawn, and so rejected: no answer is awaited.
 * - The owner answers a round before this worker learns of it, so it never has more rounds open than are counted here.
 */
#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/link/link_priority.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/worker.h"

static bool is_kept(const trib_task *task, const trib_kept_round *kept)
{
    return kept->chunks > 0 && kept->link == task->link;
}

void trib_worker_keep_round(trib_task *task)
{
    if (task->link == NULL || task->chunk_count == 0 || task->chunks_sent < task->chunk_count ||
        task->chunks_received == task->chunk_count) {
        return;
    }
    trib_kept_round *free_one = NULL;
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        free_one = is_kept(task, &task->kept[i]) ? free_one : &task->kept[i];
    }
    trib_assert(free_one != NULL);
    *free_one = (trib_kept_round){
        .link = task->link, .round = task->op_core->op->round, .chunks = task->chunk_count - task->chunks_received};
}

bool trib_worker_awaits_answer(const trib_task *task, uint32_t round)
{
    bool awaits = false;
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        awaits = awaits || (task->kept[i].chunks > 0 && task->kept[i].round == round);
    }
    return awaits;
}

/* The owner has summed the round, or refused it. */
static void answered(trib_task *task, uint32_t round, bool is_refused)
{
    if (is_refused && task->op_core != NULL && task->op_core->op->round == round) {
        task->refused = true; /* the task was given up, and has not settled */
    }
    trib_task_codec_answered(task, round, is_refused);
}

bool trib_worker_hold_back(trib_task *task)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        count += is_kept(task, &task->kept[i]);
    }
    task->held_back = count == TRIB_SUM_KEPT_ROUNDS_MAX;
    return task->held_back;
}

static void let_go(trib_task *task)
{
    trib_assert(trib_task_is_open(task) && !trib_send_request_waits(&task->request));
    trib_link *link = task->link;
    task->held_back = false;
    task->missing_rank = TRIB_NO_MEMBER;
    if (trib_scheduler_submit(link, &task->request, task->size) == TRIB_NO_MEMORY) {
        /* The server would wait for this round. The closing link fails its tasks once it has closed. */
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for what waits to be pushed");
    }
}

void trib_worker_take_kept_answer(trib_link *link, const trib_frame *frame)
{
    trib_core *core = link->core;
    if (trib_worker_is_about_ended(core, frame)) {
        return;
    }
    const trib_tensor *tensor = core->tensors[frame->tensor];
    trib_task *task = &trib_tensor_core_of(core, tensor)->tasks[tensor->task_index[frame->partition]];
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        trib_kept_round *kept = &task->kept[i];
        if (kept->chunks == 0 || kept->round != frame->round || kept->link != trib_link_main(link)) {
            continue;
        }
        if (frame->type == TRIB_FRAME_STALL) {
            task->missing_rank = task->held_back ? frame->aux : task->missing_rank;
        } else {
            kept->chunks = frame->type == TRIB_FRAME_SUM ? kept->chunks - 1 : 0;
            if (kept->chunks == 0) {
                answered(task, frame->round, frame->type != TRIB_FRAME_SUM);
            }
        }
    }
    if (task->held_back && !trib_worker_hold_back(task)) {
        let_go(task);
    }
}

/* The others have summed such a round or have joined before it. Then it counts as summed, though nothing came of it. */
void trib_worker_forget_kept(trib_task *task, uint32_t round)
{
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        if (task->kept[i].chunks > 0 && task->kept[i].round <= round) {
            task->kept[i].chunks = 0;
            answered(task, task->kept[i].round, false);
        }
    }
}

void trib_worker_held_text(const trib_core *core, const trib_task *task, char *text, size_t size)
{
    const trib_roster *roster = core->engine->roster;
    const uint32_t a = task->kept[0].round, b = task->kept[1].round;
    snprintf(
        text, size,
        "partition %u waits to be pushed until %s has summed round %u or %u, which were given up here and lack the "
        "contribution of %s",
        task->partition, trib_roster_name(roster, task->owner.member), a < b ? a : b, a < b ? b : a,
        task->missing_rank != TRIB_NO_MEMBER ? trib_roster_name(roster, task->missing_rank) : "another worker");
}
