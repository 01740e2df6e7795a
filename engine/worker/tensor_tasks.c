/*
 * tensor_tasks.c - the tasks of a placed tensor: one for each partition, on the core that serves the partition's owner.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/handle.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op.h"
#include "engine/worker/task_codec.h"

static uint32_t core_of(const trib_tensor *tensor, uint32_t partition)
{
    trib_assert(partition < tensor->partition_count);
    return tensor->owners[partition].reactor % tensor->engine->core_count;
}

/* Words of 64 chunks for one task. */
static size_t bit_words(const trib_tensor *tensor)
{
    const uint32_t chunks_max = (tensor->partition_bytes + tensor->chunk_bytes - 1) / tensor->chunk_bytes;
    return (chunks_max + 63) / 64;
}

uint64_t *trib_tensor_make_bits(const trib_tensor *tensor, uint32_t tasks)
{
    return calloc(tasks * bit_words(tensor), sizeof(uint64_t));
}

/* Bytes of the slices before the task's in its sender's input, and in its receiver's output. */
static void locate_pair(const trib_partitioning *cut, trib_task *task)
{
    const uint32_t sender = trib_task_sender(task), receiver = trib_task_receiver(task);
    trib_assert(sender < cut->members && receiver < cut->members);
    const uint64_t within = trib_partitioning_offset(cut, task->partition) - cut->slices[task->slice].begin;
    task->offset = cut->slices[task->slice].begin - cut->slices[sender * cut->members].begin + within;
    task->offset_own = within;
    for (uint32_t i = 0; i < sender; i++) {
        task->offset_own += cut->slices[i * cut->members + receiver].bytes;
    }
}

static void locate(const trib_partitioning *cut, trib_task *task)
{
    task->slice = trib_partitioning_slice_of(cut, task->partition);
    task->size = trib_partitioning_size(cut, task->partition);
    task->offset = trib_partitioning_offset(cut, task->partition);
    task->offset_own = task->offset - cut->slices[task->slice].begin;
    trib_assert(task->offset_own + task->size <= cut->slices[task->slice].bytes);
    if (cut->layout == TRIB_PAIRS) {
        locate_pair(cut, task);
    }
}

void trib_tensor_make_task(trib_tensor *tensor, uint32_t partition, trib_task *task, uint64_t **bits)
{
    *task = (trib_task){
        .tensor = tensor,
        .partition = partition,
        .owner = partition < tensor->partition_count ? tensor->owners[partition] : (trib_place_owner){0},
        .missing_rank = TRIB_NO_MEMBER,
        .giver = TRIB_NO_MEMBER,
        .received = *bits,
    };
    if (partition < tensor->partition_count) {
        locate(tensor->cut, task);
    } else {
        task->offset = (uint64_t)partition * tensor->partition_bytes; /* an absent share of a slice of devices */
    }
    task->chunk_count = (task->size + tensor->chunk_bytes - 1) / tensor->chunk_bytes;
    if (task->size == 0 && partition < tensor->partition_count) {
        task->chunk_count = 1; /* an empty tensor takes part with one chunk; an absent share of a slice has none */
    }
    *bits += (task->chunk_count + 63) / 64;
}

bool trib_tensor_take_tasks(trib_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        trib_tensor_core *mine = &tensor->cores[i];
        mine->round_next = tensor->round_base + 1;
        mine->tensor = tensor;
        mine->tasks = calloc(mine->task_count > 0 ? mine->task_count : 1, sizeof *mine->tasks);
        if (mine->tasks == NULL) {
            return false;
        }
    }
    return true;
}

/* A worker has no part in what two others exchange. */
static bool takes_part(const trib_tensor *tensor, uint32_t partition)
{
    const trib_task task = {.tensor = (trib_tensor *)(uintptr_t)tensor,
                            .slice = trib_partitioning_slice_of(tensor->cut, partition)};
    return tensor->layout != TRIB_PAIRS || trib_task_sender(&task) == tensor->group_place ||
           trib_task_receiver(&task) == tensor->group_place;
}

/* Returns false if memory runs out. */
static bool take_copies(trib_tensor *tensor)
{
    const trib_engine *engine = tensor->engine;
    tensor->is_covered = engine->roster->survives && tensor->layout == TRIB_WHOLE && tensor->group == NULL;
    if (!tensor->is_covered || tensor->bytes == 0) {
        return true;
    }
    tensor->copies = engine->env.memory_alloc(engine->env.memory, tensor->bytes);
    for (uint32_t i = 0; tensor->copies != NULL && i < engine->core_count; i++) {
        for (uint32_t k = 0; k < tensor->cores[i].task_count; k++) {
            tensor->cores[i].tasks[k].copy = tensor->copies + tensor->cores[i].tasks[k].offset;
        }
    }
    return tensor->copies != NULL;
}

bool trib_tensor_make_tasks(trib_tensor *tensor)
{
    const uint32_t count = tensor->partition_count > 0 ? tensor->partition_count : 1;
    tensor->task_index = calloc(count, sizeof *tensor->task_index);
    tensor->received_bits = trib_tensor_make_bits(tensor, count);
    if (tensor->task_index == NULL || tensor->received_bits == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < tensor->partition_count; i++) {
        trib_tensor_core *mine = &tensor->cores[core_of(tensor, i)];
        tensor->task_index[i] = takes_part(tensor, i) ? mine->task_count++ : UINT32_MAX;
    }
    if (!trib_tensor_take_tasks(tensor)) {
        return false;
    }
    uint64_t *bits = tensor->received_bits;
    for (uint32_t i = 0; i < tensor->partition_count; i++) {
        if (tensor->task_index[i] == UINT32_MAX) {
            continue;
        }
        trib_task *task = &tensor->cores[core_of(tensor, i)].tasks[tensor->task_index[i]];
        trib_tensor_make_task(tensor, i, task, &bits);
        if (!trib_task_codec_open(task)) {
            return false;
        }
    }
    trib_assert(bits <= tensor->received_bits + count * bit_words(tensor));
    return take_copies(tensor) && (!tensor->on_device || tensor->engine->device_hooks->stage(tensor));
}
