/*
 * report.c - see report.h. A question object is shared by the asker and the cores. The last of them frees it, so an
 * asker may give up at any time.
 */
#include "engine/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/core/wireup.h"
#include "engine/membership/coordinator.h"
#include "engine/worker/pipeline.h"

typedef struct question {
    trib_engine *engine;
    atomic_uint references;
    uint32_t unanswered; /* guarded by the engine's mutex, as are entries and count */
    size_t capacity, count;
    trib_waiting *entries;
    struct ask {
        trib_post post;
        struct question *question;
    } asks[];
} question;

static void add(trib_waiting *entries, size_t capacity, size_t *count, const trib_waiting *entry)
{
    if (*count < capacity) {
        entries[*count] = *entry;
    }
    (*count)++;
}

static void report_task(trib_core *core, const trib_task *task, trib_waiting *entry)
{
    const trib_roster *roster = core->engine->roster;
    const trib_tensor *tensor = task->tensor;
    uint32_t server = task->partition < tensor->partition_count ? task->owner.member : TRIB_NO_MEMBER;
    snprintf(entry->stage, sizeof entry->stage, "%s", trib_pipeline_stage_name(task));
    entry->partition = task->partition;
    entry->since_ns = trib_now(core->reactor) - task->since_ns;
    if (task->missing_rank != TRIB_NO_MEMBER) {
        snprintf(entry->peer, sizeof entry->peer, "%.63s", trib_roster_name(roster, task->missing_rank));
    } else {
        snprintf(entry->peer, sizeof entry->peer, "%.63s", trib_roster_name(roster, server));
    }
}

/* The core's list is newest first. */
static trib_op_core *oldest_op_core(const trib_core *core)
{
    trib_op_core *op_core = core->op_cores;
    while (op_core != NULL && op_core->next != NULL) {
        op_core = op_core->next;
    }
    return op_core;
}

void trib_report_core(trib_core *core, trib_waiting *entries, size_t capacity, size_t *count)
{
    for (trib_op_core *op_core = oldest_op_core(core); op_core != NULL; op_core = op_core->previous) {
        const trib_op *op = op_core->op;
        trib_tensor *tensor = op->tensor;
        trib_waiting entry = {.round = op->round, .since_ns = trib_now(core->reactor) - op->submit_ns};
        snprintf(entry.tensor, sizeof entry.tensor, "%s", tensor->name);
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? &tensor->cores[core->reactor->index] : NULL;
        if (mine == NULL || mine->active != op_core) {
            bool joining = atomic_load(&core->engine->phase) == TRIB_PHASE_JOINING;
            snprintf(entry.stage, sizeof entry.stage, "%s", joining ? "JOIN" : mine == NULL ? "DECLARE" : "TURN");
            if (mine == NULL && core->engine->roster == NULL && core->engine->coordinator != NULL) {
                char missing[200];
                trib_coordinator_list_missing(core->engine->coordinator, missing, sizeof missing);
                snprintf(entry.peer, sizeof entry.peer, "%.63s", missing[0] != '\0' ? missing : "coordinator");
            } else {
                snprintf(entry.peer, sizeof entry.peer, "%.63s",
                         mine == NULL    ? "coordinator"
                         : !core->joined ? trib_wireup_missing_name(core)
                                         : "an earlier operation");
            }
            add(entries, capacity, count, &entry);
            continue;
        }
        for (uint32_t i = 0; i < mine->task_count; i++) {
            if (mine->tasks[i].state != TRIB_TASK_SETTLED) {
                report_task(core, &mine->tasks[i], &entry);
                add(entries, capacity, count, &entry);
            }
        }
    }
}

static void question_unref(question *self)
{
    if (atomic_fetch_sub(&self->references, 1) == 1) {
        free(self->entries);
        free(self);
    }
}

static void answer(trib_reactor *reactor, trib_post *post)
{
    question *self = ((struct ask *)post)->question;
    trib_engine *engine = self->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_report_core(reactor->owner, self->entries, self->capacity, &self->count);
    self->unanswered--;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
    question_unref(self);
}

static trib_status wait_answers(question *self, int64_t timeout_ns)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ns / INT64_C(1000000000);
    int code = 0;
    while (self->unanswered > 0 && code != ETIMEDOUT) {
        code = pthread_cond_timedwait(&self->engine->changed, &self->engine->mutex, &deadline);
    }
    return self->unanswered == 0 ? TRIB_OK : TRIB_TIMEOUT;
}

trib_status trib_report_engine(trib_engine *engine, int64_t timeout_ns, trib_waiting *entries, size_t capacity,
                               size_t *count_out)
{
    uint32_t cores = engine->core_count;
    question *self = calloc(1, sizeof *self + cores * sizeof self->asks[0]);
    /* The cores write to a copy, because the asker may give up and free its own array. */
    trib_waiting *kept_entries = calloc(capacity > 0 ? capacity : 1, sizeof *kept_entries);
    if (self == NULL || kept_entries == NULL) {
        free(self);
        free(kept_entries);
        return TRIB_NO_MEMORY;
    }
    self->engine = engine;
    self->entries = kept_entries;
    self->capacity = capacity;
    self->unanswered = cores;
    atomic_store(&self->references, cores + 1);
    for (uint32_t i = 0; i < cores; i++) {
        self->asks[i].question = self;
        self->asks[i].post.run = answer;
        trib_reactor_post(engine->reactors[i].reactor, &self->asks[i].post);
    }
    pthread_mutex_lock(&engine->mutex);
    trib_status status = wait_answers(self, timeout_ns);
    *count_out = self->count;
    if (capacity > 0) {
        memcpy(entries, self->entries, (self->count < capacity ? self->count : capacity) * sizeof *entries);
    }
    pthread_mutex_unlock(&engine->mutex);
    question_unref(self);
    return status;
}
