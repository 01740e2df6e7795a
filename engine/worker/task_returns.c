/*
 * task_returns.c - what becomes of a contribution that did not count (task_codec.h): it goes back into the residual, on
 * processors at once, on a device before its next contribution.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/worker.h"

/* Encoded chunks of a round whose owner has not answered: one behind the other, without their descriptions. */
typedef struct trib_codec_kept {
    struct trib_codec_kept *next;
    uint32_t round;
    unsigned char bytes[];
} trib_codec_kept;

static void free_returned(trib_codec_returned **list)
{
    while (*list != NULL) {
        trib_codec_returned *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

/* The place behind the last one. */
static trib_codec_returned **end_of(trib_codec_returned **list)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    return list;
}

/* Contributions that a failed job has left come first. */
const trib_codec_returned *trib_task_give_returned(trib_task *task)
{
    trib_task_codec *self = task->codec;
    *end_of(&self->given) = self->returned;
    self->returned = NULL;
    return self->given;
}

void trib_task_note_taken_back(trib_task *task)
{
    free_returned(&task->codec->given);
}

void trib_task_note_there(trib_task *task)
{
    task->codec->is_there = true;
    task->codec->keeps_there = trib_codec_is_stateful(&task->tensor->codec);
}

void trib_task_codec_close(trib_task *task)
{
    while (task->codec != NULL && task->codec->kept != NULL) {
        struct trib_codec_kept *next = task->codec->kept->next;
        free(task->codec->kept);
        task->codec->kept = next;
    }
    if (task->codec != NULL) {
        free_returned(&task->codec->returned);
        free_returned(&task->codec->given);
    }
    free(task->codec);
    task->codec = NULL;
}

static void take_chunk_back(const trib_task *task, uint32_t chunk, const unsigned char *encoded, uint32_t size)
{
    const trib_codec_memory memory = trib_task_chunk_memory(task, chunk);
    trib_codec_take_back(&task->tensor->codec, &memory, task->tensor->dtype, encoded, size,
                         trib_task_chunk_elements(task, chunk));
}

static void take_back(const trib_task *task)
{
    const trib_task_codec *self = task->codec;
    for (uint32_t chunk = 0; chunk < self->chunks_encoded; chunk++) {
        if (self->sizes[chunk] > 0) { /* else a program's codec failed, and the residual has all of the chunk */
            take_chunk_back(task, chunk, trib_view_chunk(&self->encoded, chunk) + TRIB_ENCODING_BYTES,
                            self->sizes[chunk] - TRIB_ENCODING_BYTES);
        }
    }
}

/* Puts what was not encoded of a round into the residual, from a chunk on. */
static void keep_elements(const trib_task *task, const unsigned char *source, uint32_t first)
{
    const uint32_t chunk_bytes = task->tensor->chunk_bytes;
    for (uint32_t chunk = first; source != NULL && chunk < task->chunk_count; chunk++) {
        const trib_codec_memory memory = trib_task_chunk_memory(task, chunk);
        trib_codec_keep(&task->tensor->codec, &memory, task->tensor->dtype, source + (size_t)chunk * chunk_bytes,
                        trib_task_chunk_elements(task, chunk));
    }
}

/* The bytes are lost if there is no memory for them. */
static void keep_encoded(const trib_task *task, uint32_t round)
{
    trib_task_codec *self = task->codec;
    size_t size = 0;
    for (uint32_t chunk = 0; chunk < task->chunk_count; chunk++) {
        size += sizeof(uint32_t) + self->sizes[chunk] - TRIB_ENCODING_BYTES;
    }
    trib_codec_kept *kept = malloc(sizeof *kept + size);
    if (kept == NULL) {
        return;
    }
    unsigned char *at = kept->bytes;
    for (uint32_t chunk = 0; chunk < task->chunk_count; chunk++) {
        const uint32_t bytes = self->sizes[chunk] - TRIB_ENCODING_BYTES;
        memcpy(at, &bytes, sizeof bytes);
        memcpy(at + sizeof bytes, trib_view_chunk(&self->encoded, chunk) + TRIB_ENCODING_BYTES, bytes);
        at += sizeof bytes + bytes;
    }
    kept->round = round;
    kept->next = self->kept;
    self->kept = kept;
}

/* The running round's contribution. NULL: it is on a device, and has not come to the host. */
static const unsigned char *input_of(const trib_task *task, const trib_op *op)
{
    if (task->device == NULL) {
        return (const unsigned char *)op->input + task->offset;
    }
    return task->codec->is_on_host ? task->io.source.data : NULL;
}

/* Hands a contribution that did not count to the device that has the residual. NULL if there is no memory: it is lost
 * then. */
static trib_codec_returned *add_returned(trib_task *task)
{
    trib_task_codec *self = task->codec;
    trib_codec_returned **at = end_of(&self->returned);
    *at = calloc(1, sizeof **at + (size_t)task->chunk_count * self->there.chunk_bytes);
    return *at;
}

static void put_returned(const trib_task_codec *self, trib_codec_returned *returned, uint32_t chunk,
                         const unsigned char *encoded, uint32_t size)
{
    unsigned char *to = returned->chunks + (size_t)chunk * self->there.chunk_bytes;
    trib_assert(size <= self->there.chunk_bytes - self->there_at);
    memcpy(to, &size, sizeof size);
    memcpy(to + self->there_at, encoded, size);
}

/* Chunks that COMPRESS has not come to lie where the device has put them. */
static void return_round(trib_task *task)
{
    trib_task_codec *self = task->codec;
    const uint32_t taken = self->is_open ? self->chunks_encoded : 0;
    trib_codec_returned *returned = add_returned(task);
    for (uint32_t chunk = 0; returned != NULL && chunk < task->chunk_count; chunk++) {
        const unsigned char *there = trib_view_chunk(&self->there, chunk);
        uint32_t size;
        memcpy(&size, there, sizeof size);
        if (chunk < taken) {
            put_returned(self, returned, chunk, trib_view_chunk(&self->encoded, chunk) + TRIB_ENCODING_BYTES,
                         self->sizes[chunk] - TRIB_ENCODING_BYTES);
        } else {
            put_returned(self, returned, chunk, there + self->there_at, size);
        }
    }
}

static bool has_feedback(const trib_task *task)
{
    return task->codec != NULL && task->tensor->codec.feedback != TRIB_FEEDBACK_NONE;
}

static void give_back(trib_task *task)
{
    trib_task_codec *self = task->codec;
    const bool was_encoded = self->is_open;
    const trib_op *op = task->op_core->op;
    const bool was_lost = !was_encoded || task->refused || task->chunks_sent < task->chunk_count;
    if (self->there.data != NULL && was_lost) {
        if (self->is_there) {
            return_round(task);
        }
    } else if (!was_encoded) {
        keep_elements(task, trib_codec_travels(op) ? input_of(task, op) : NULL, 0);
    } else if (task->refused || task->chunks_sent < task->chunk_count) {
        take_back(task);
        keep_elements(task, input_of(task, op), self->chunks_encoded);
    } else if (trib_worker_awaits_answer(task, op->round)) {
        keep_encoded(task, op->round);
    }
}

void trib_task_codec_settled(trib_task *task)
{
    if (has_feedback(task) && task->gave_up) {
        give_back(task);
    }
    if (task->codec != NULL) {
        task->codec->is_open = task->codec->is_on_host = task->codec->is_there = false;
        task->codec->there.data = task->codec->handed.data = NULL;
    }
}

/* On a device another round may lie in the task's memory of the host. */
void trib_task_codec_skipped(trib_task *task, const trib_op *op)
{
    if (has_feedback(task) && task->device == NULL && trib_codec_travels(op)) {
        keep_elements(task, (const unsigned char *)op->input + task->offset, 0);
    }
}

void trib_task_codec_answered(trib_task *task, uint32_t round, bool is_refused)
{
    trib_codec_kept **at = task->codec == NULL ? NULL : &task->codec->kept;
    while (at != NULL && *at != NULL && (*at)->round != round) {
        at = &(*at)->next;
    }
    if (at == NULL || *at == NULL) {
        return;
    }
    trib_codec_kept *kept = *at;
    const unsigned char *bytes = kept->bytes;
    trib_codec_returned *returned = is_refused && task->codec->keeps_there ? add_returned(task) : NULL;
    *at = kept->next;
    for (uint32_t chunk = 0; is_refused && chunk < task->chunk_count; chunk++) {
        uint32_t size;
        memcpy(&size, bytes, sizeof size);
        if (returned != NULL) {
            put_returned(task->codec, returned, chunk, bytes + sizeof size, size);
        } else if (!task->codec->keeps_there) {
            take_chunk_back(task, chunk, bytes + sizeof size, size);
        }
        bytes += sizeof size + size;
    }
    free(kept);
}
